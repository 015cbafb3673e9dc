//! The virtual servers of a network namespace, over one socket.

use netlink_sys::protocols::NETLINK_GENERIC;
use nix::libc;

use super::{
    Destination, IpvsCommand, IpvsTimeouts, RejectedCommand, Scheduling, VirtualServerKey,
    abi::{self, cmd},
    codec,
};
use crate::{
    Errno, Error, Result, Socket,
    exchange::{exchange, submit_each},
    genl,
    message::{self, flags},
};

/// The virtual servers of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct IpvsHandle {
    socket: Socket,
    /// The number of the family `IPVS`.
    family: u16,
    /// The request; kept to reuse its allocation.
    buf: Vec<u8>,
}

impl IpvsHandle {
    /// Opens a socket of its own. `None` when the kernel has no IPVS; if there is a module, it is loaded (see
    /// [`is_loaded`](super::is_loaded)).
    pub fn open() -> Result<Option<Self>> {
        let mut socket = Socket::open_for(NETLINK_GENERIC)?;
        let family = genl::family(&mut socket, abi::FAMILY)?;
        Ok(family.map(|family| Self { socket, family, buf: Vec::new() }))
    }

    /// All virtual servers, of both families.
    pub fn virtual_servers(&mut self) -> Result<Vec<VirtualServerKey>> {
        self.list_virtual_servers(codec::read_service)
    }

    /// The same with how they schedule.
    pub fn schedulings(&mut self) -> Result<Vec<(VirtualServerKey, Scheduling)>> {
        self.list_virtual_servers(|payload| codec::read_service(payload).zip(codec::read_scheduling(payload)))
    }

    fn list_virtual_servers<T>(&mut self, read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        let mut list = Vec::new();
        self.ask(
            cmd::GET_SERVICE,
            flags::DUMP,
            |_| {},
            "list virtual servers",
            |payload| {
                list.push(read(payload).ok_or(Error::Malformed("a virtual server"))?);
                Ok(())
            },
        )?;
        Ok(list)
    }

    /// Executes commands in their order, each for itself, and tells which of them the kernel refused.
    ///
    /// # Errors
    /// When it is not known what came of them.
    pub fn execute(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedCommand>> {
        let mut refused = Vec::new();
        submit_each(
            &mut self.socket,
            &mut self.buf,
            commands,
            |buf, command, seq, ack| command.write(buf, self.family, seq, ack),
            |index, errno| refused.push(RejectedCommand { index, errno }),
        )?;
        Ok(refused)
    }

    /// How long idle connections are remembered.
    pub fn timeouts(&mut self) -> Result<IpvsTimeouts> {
        let mut timeouts = None;
        self.ask(
            cmd::GET_CONFIG,
            flags::ACK,
            |_| {},
            "read the timeouts",
            |payload| {
                timeouts = Some(codec::read_timeouts(payload).ok_or(Error::Malformed("timeouts"))?);
                Ok(())
            },
        )?;
        timeouts.ok_or(Error::Malformed("no timeouts"))
    }

    /// Sets how long idle connections are remembered; 0 leaves a timeout as it is.
    pub fn set_timeouts(&mut self, timeouts: &IpvsTimeouts) -> Result<()> {
        let write = |buf: &mut Vec<u8>| codec::write_timeouts(buf, timeouts);
        self.ask(cmd::SET_CONFIG, flags::ACK, write, "set the timeouts", |_| Ok(()))
    }

    /// The destinations of a virtual server, with the connections they have now. None if there is no such server.
    pub fn destinations(&mut self, service: &VirtualServerKey) -> Result<Vec<Destination>> {
        let family = service.family();
        let mut list = Vec::new();
        let name = |buf: &mut Vec<u8>| codec::write_service(buf, service);
        self.ask(cmd::GET_DEST, flags::DUMP, name, &format!("list destinations of {service}"), |payload| {
            list.push(codec::read_destination(payload, family).ok_or(Error::Malformed("a destination"))?);
            Ok(())
        })?;
        Ok(list)
    }

    /// Gives a destination another weight, or other thresholds. Its connections go on.
    ///
    /// # Errors
    /// When the kernel refuses; [`Error::is_not_found`] when there is no such destination.
    pub fn set_destination(&mut self, service: &VirtualServerKey, destination: &Destination) -> Result<()> {
        let write = |buf: &mut Vec<u8>| {
            codec::write_service(buf, service);
            codec::write_destination(buf, destination);
        };
        let request = format!("set destination {} of {service}", destination.address);
        self.ask(cmd::SET_DEST, flags::ACK, write, &request, |_| Ok(()))
    }

    /// Deletes a virtual server with its destinations. Their connections end: the kernel drops or answers what comes
    /// for them. None of that name is no error.
    pub fn delete_virtual_server(&mut self, service: &VirtualServerKey) -> Result<()> {
        let name = |buf: &mut Vec<u8>| codec::write_service(buf, service);
        match self.ask(cmd::DEL_SERVICE, flags::ACK, name, &format!("delete virtual server {service}"), |_| Ok(())) {
            Err(Error::Request { errno: Errno(libc::ESRCH), .. }) => Ok(()),
            result => result,
        }
    }

    /// One exchange; `write` appends the request's attributes.
    fn ask(
        &mut self,
        command: u8,
        more_flags: u16,
        write: impl FnOnce(&mut Vec<u8>),
        request: &str,
        mut read: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.buf.clear();
        let at = genl::start(&mut self.buf, self.family, command, more_flags);
        write(&mut self.buf);
        message::finish(&mut self.buf, at);
        exchange(&mut self.socket, &self.buf, request, |message| read(message.payload))
    }
}

#[cfg(test)]
mod tests;

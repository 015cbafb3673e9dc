//! The virtual servers of a network namespace, over one socket.

use netlink_sys::protocols::NETLINK_GENERIC;
use nix::libc;

use super::{
    Destination, IpvsCommand, IpvsTimeouts, Scheduling, VirtualServerKey,
    abi::{self, cmd},
    codec,
};
use crate::{
    Errno, Error, RejectedRequest, Result, Socket,
    exchange::{SEQ, collect, exchange, submit_each},
    genl,
    message::flags,
};

/// The virtual servers of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct IpvsHandle {
    socket: Socket,
    /// The number of the family `IPVS`.
    family: u16,
    /// The request; kept to reuse the allocation.
    buf: Vec<u8>,
}

impl IpvsHandle {
    /// Opens a socket. `None` if the kernel has no IPVS. Loads the module `ip_vs` if there is one (see
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

    /// All virtual servers with their scheduling.
    pub fn schedulings(&mut self) -> Result<Vec<(VirtualServerKey, Scheduling)>> {
        self.list_virtual_servers(|payload| codec::read_service(payload).zip(codec::read_scheduling(payload)))
    }

    fn list_virtual_servers<T>(&mut self, read: impl FnMut(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        self.request(cmd::GET_SERVICE, flags::DUMP, |_| {}, "list virtual servers", "a virtual server", read)
    }

    /// Executes the commands in order and returns the rejected commands. A rejected command does not stop the
    /// others.
    ///
    /// # Errors
    /// When it is unknown which commands the kernel executed.
    pub fn execute(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedRequest>> {
        let mut rejected = Vec::new();
        submit_each(
            &mut self.socket,
            &mut self.buf,
            commands,
            |buf, command, seq, ack| command.write(buf, self.family, seq, ack),
            |index, errno| rejected.push(RejectedRequest { index, errno }),
        )?;
        Ok(rejected)
    }

    /// The timeouts of idle connections.
    pub fn timeouts(&mut self) -> Result<IpvsTimeouts> {
        let read = codec::read_timeouts;
        let mut replies = self.request(cmd::GET_CONFIG, flags::ACK, |_| {}, "read the timeouts", "timeouts", read)?;
        replies.pop().ok_or(Error::Malformed("no timeouts"))
    }

    /// Sets the timeouts of idle connections; 0 leaves a timeout unchanged.
    pub fn set_timeouts(&mut self, timeouts: &IpvsTimeouts) -> Result<()> {
        self.buf.clear();
        genl::put(&mut self.buf, self.family, cmd::SET_CONFIG, flags::ACK, SEQ, |buf| {
            codec::write_timeouts(buf, timeouts);
        });
        exchange(&mut self.socket, &self.buf, "set the timeouts", |_| Ok(()))
    }

    /// The destinations of a virtual server, with their current connections. Empty if the server does not exist.
    pub fn destinations(&mut self, service: &VirtualServerKey) -> Result<Vec<Destination>> {
        let write = |buf: &mut Vec<u8>| codec::write_service(buf, service);
        let request = format!("list destinations of {service}");
        self.request(cmd::GET_DEST, flags::DUMP, write, &request, "a destination", codec::read_destination)
    }

    /// Sets the weight of these destinations to 0, so that the virtual server accepts no new connections. A missing
    /// destination is not an error.
    ///
    /// # Errors
    /// When the kernel rejects a change.
    pub fn quiesce(&mut self, service: &VirtualServerKey, destinations: &[Destination]) -> Result<()> {
        for destination in destinations.iter().filter(|destination| destination.weight > 0) {
            let request = format!("set destination {} of {service}", destination.address);
            let command = IpvsCommand::SetDestination(*service, Destination { weight: 0, ..*destination });
            match self.execute_one(&command, &request) {
                Err(error) if error.is_not_found() => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Deletes a virtual server with its destinations, which ends their connections: the kernel drops or rejects
    /// further packets. A missing virtual server is not an error.
    pub fn delete_virtual_server(&mut self, service: &VirtualServerKey) -> Result<()> {
        let request = format!("delete virtual server {service}");
        match self.execute_one(&IpvsCommand::DeleteServer(*service), &request) {
            Err(Error::Request { errno: Errno(libc::ESRCH), .. }) => Ok(()),
            result => result,
        }
    }

    fn execute_one(&mut self, command: &IpvsCommand, request: &str) -> Result<()> {
        self.buf.clear();
        command.write(&mut self.buf, self.family, SEQ, flags::ACK);
        exchange(&mut self.socket, &self.buf, request, |_| Ok(()))
    }

    /// Sends a request, to which `write` appends attributes, and collects the objects in the replies, as [`collect`].
    fn request<T>(
        &mut self,
        command: u8,
        flags: u16,
        write: impl FnOnce(&mut Vec<u8>),
        request: &str,
        object: &'static str,
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.buf.clear();
        genl::put(&mut self.buf, self.family, command, flags, SEQ, write);
        collect(&mut self.socket, &self.buf, request, object, read)
    }
}

#[cfg(test)]
mod tests;

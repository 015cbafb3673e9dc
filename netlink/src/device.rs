//! A dummy device and the addresses on it, over rtnetlink. A VIP on a dummy device is an address of the node, so that packets to it come
//! up to IPVS; nothing is ever sent through the device.

mod abi;
mod codec;

use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;

use crate::{
    Errno, Error, Result, Socket,
    exchange::{exchange, submit_each},
    message::{self, flags},
};

/// The devices of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct Handle {
    socket: Socket,
    /// The request, to be sent; kept for its room.
    buf: Vec<u8>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// Whether it is set up; addresses of one that is not lead nowhere in IPv6.
    pub state: State,
}

/// Whether a device is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `IFF_UP`.
    Up,
    /// Not.
    Down,
}

/// An address that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAddress {
    /// Which one.
    pub index: usize,
    /// Why.
    pub errno: Errno,
}

// === impl Handle ===

impl Handle {
    /// Opens a socket of its own.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open_for(NETLINK_ROUTE)?, buf: Vec::new() })
    }

    /// A device by its name: `ip link show NAME`.
    pub fn find(&mut self, name: &str) -> Result<Option<Device>> {
        self.buf.clear();
        codec::write_find(&mut self.buf, name);
        let mut found = None;
        let asked = exchange(&mut self.socket, &self.buf, &format!("find link {name}"), |message| {
            found = Some(codec::read_device(message.payload).ok_or(Error::Malformed("a link"))?);
            Ok(())
        });
        match asked {
            Err(Error::Request { errno: Errno(libc::ENODEV), .. }) => Ok(None),
            asked => asked.map(|()| found),
        }
    }

    /// Makes a dummy device and sets it up: `ip link add NAME up type dummy`.
    ///
    /// # Errors
    /// When the kernel refuses, also when there is a device of that name.
    pub fn create_dummy(&mut self, name: &str) -> Result<()> {
        self.buf.clear();
        codec::write_create_dummy(&mut self.buf, name);
        exchange(&mut self.socket, &self.buf, &format!("create dummy device {name}"), |_| Ok(()))
    }

    /// Deletes a device, and its addresses with it: `ip link delete NAME`. None of that name is no error.
    ///
    /// # Errors
    /// When the kernel refuses: not permitted, or a device that is not made by software.
    pub fn delete_device(&mut self, name: &str) -> Result<()> {
        self.buf.clear();
        codec::write_delete(&mut self.buf, name);
        match exchange(&mut self.socket, &self.buf, &format!("delete link {name}"), |_| Ok(())) {
            Err(Error::Request { errno: Errno(libc::ENODEV), .. }) => Ok(()),
            asked => asked,
        }
    }

    /// Sets a device up: `ip link set NAME up`.
    pub fn bring_up(&mut self, device: Device) -> Result<()> {
        self.buf.clear();
        codec::write_up(&mut self.buf, device.index);
        exchange(&mut self.socket, &self.buf, "set a link up", |_| Ok(()))
    }

    /// The addresses of a device, of both families, without those that IPv6 gives it itself.
    pub fn addresses(&mut self, device: Device) -> Result<Vec<IpAddr>> {
        let mut list = Vec::new();
        for family in [abi::INET, abi::INET6] {
            self.buf.clear();
            codec::write_list(&mut self.buf, family, device.index);
            exchange(&mut self.socket, &self.buf, "list addresses", |message| {
                let (index, address) = codec::read_address(message.payload).ok_or(Error::Malformed("an address"))?;
                // Older kernels list those of all devices.
                list.extend(address.filter(|_| index == device.index));
                Ok(())
            })?;
        }
        Ok(list)
    }

    /// Gives a device addresses: `ip address add ADDRESS dev NAME`. In IPv4 of scope host, and in IPv6 deprecated, so that nobody
    /// takes one for the source of what goes elsewhere. Those that it has are no errors; tells which the kernel refused.
    ///
    /// # Errors
    /// When it is not known what came of them.
    pub fn add(&mut self, device: Device, addresses: &[IpAddr]) -> Result<Vec<RefusedAddress>> {
        let (kind, more_flags) = (abi::NEW_ADDRESS, flags::CREATE | flags::EXCL);
        self.change(kind, more_flags, libc::EEXIST, device, addresses)
    }

    /// Takes addresses from a device: `ip address delete ADDRESS dev NAME`. Those that it does not have are no errors. As
    /// [`Self::add`].
    pub fn delete(&mut self, device: Device, addresses: &[IpAddr]) -> Result<Vec<RefusedAddress>> {
        self.change(abi::DELETE_ADDRESS, 0, libc::EADDRNOTAVAIL, device, addresses)
    }

    fn change(
        &mut self,
        kind: u16,
        more_flags: u16,
        no_error: i32,
        device: Device,
        addresses: &[IpAddr],
    ) -> Result<Vec<RefusedAddress>> {
        let mut refused = Vec::new();
        submit_each(
            &mut self.socket,
            &mut self.buf,
            addresses,
            |buf, address, seq, ack| {
                let at = message::start(buf, kind, flags::REQUEST | more_flags | ack, seq);
                codec::write_address(buf, device.index, *address);
                message::finish(buf, at);
            },
            |index, errno| {
                if errno.0 != no_error {
                    refused.push(RefusedAddress { index, errno });
                }
            },
        )?;
        Ok(refused)
    }
}

#[cfg(test)]
mod tests;

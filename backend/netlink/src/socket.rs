//! A netlink socket: opened with the options that error reports need, with a send buffer for the longest message.

use std::{
    io::IoSlice,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::{
    libc,
    sys::{
        socket::{MsgFlags, sendmsg, setsockopt, sockopt},
        time::TimeVal,
    },
};
use tracing::debug;

use crate::{Errno, Error, Result};

/// The receive buffer for the replies to one transaction. An error takes about 800 bytes of it.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// The kernel's datagrams in a dump have at most 32 KiB, and a message in an error at most 64 KiB.
const MAX_DATAGRAM_BYTES: usize = 128 << 10;
/// The part of the send buffer that the kernel reserves, with a margin.
const SEND_OVERHEAD_BYTES: usize = 4096;

/// A netlink socket, bound to an address of its own in the thread's network namespace.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    port: u32,
    /// The longest message that is known to fit into the send buffer.
    sendable: usize,
    /// Holds one datagram.
    buf: Vec<u8>,
}

/// The result of [`Socket::receive`].
#[derive(Debug)]
pub(crate) enum Received<'a> {
    Datagram(&'a [u8]),
    /// No datagram is queued.
    Nothing,
    /// The receive buffer was full and the kernel dropped datagrams (`ENOBUFS`); later ones can still be read.
    Overrun,
}

impl Socket {
    /// Opens a socket for the netfilter subsystems, in the calling thread's network namespace.
    pub fn open() -> Result<Self> {
        Self::open_for(NETLINK_NETFILTER)
    }

    /// Opens a socket for another of netlink's protocols (`NETLINK_GENERIC`, `NETLINK_ROUTE`).
    pub(crate) fn open_for(protocol: isize) -> Result<Self> {
        let mut inner = netlink_sys::Socket::new(protocol).map_err(failed("open a netlink socket"))?;
        let address = inner.bind_auto().map_err(failed("bind a netlink socket"))?;
        inner.set_ext_ack(true).map_err(failed("set NETLINK_EXT_ACK"))?;
        inner.set_cap_ack(true).map_err(failed("set NETLINK_CAP_ACK"))?;

        // A receive buffer that stays small loses error reports, not transactions.
        if let Err(error) = setsockopt(&inner, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES) {
            debug!(%error, "SO_RCVBUFFORCE failed, falling back to SO_RCVBUF");
            setsockopt(&inner, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES).map_err(failed("set SO_RCVBUF"))?;
        }

        Ok(Socket { inner, port: address.port_number(), sendable: 0, buf: vec![0; MAX_DATAGRAM_BYTES] })
    }

    /// The socket's own netlink address, as it appears in the notifications of its changes.
    pub fn port(&self) -> u32 {
        self.port
    }

    pub(crate) fn join(&self, group: u32) -> Result<()> {
        self.inner.add_membership(group).map_err(failed("join a netlink group"))
    }

    pub(crate) fn leave(&self, group: u32) -> Result<()> {
        self.inner.drop_membership(group).map_err(failed("leave a netlink group"))
    }

    /// Sends the parts as one message. Returns when the kernel has executed it.
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.make_room(bytes)?;

        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            match sendmsg::<()>(self.inner.as_raw_fd(), &slices, &[], MsgFlags::empty(), None) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EMSGSIZE) => return Err(Error::TooLarge { bytes }),
                Err(errno) => return Err(failed("send to netlink")(errno)),
            }
        }
    }

    /// Raises the send buffer to a message of this size, because the kernel rejects one longer than `SO_SNDBUF - 32`.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if bytes <= self.sendable {
            return Ok(());
        }

        let wanted = bytes + SEND_OVERHEAD_BYTES;
        if let Err(error) = setsockopt(&self.inner, sockopt::SndBufForce, &wanted) {
            debug!(%error, bytes, "SO_SNDBUFFORCE failed, falling back to SO_SNDBUF");
            // Limited to net.core.wmem_max without an error: sendmsg fails if it was not enough.
            setsockopt(&self.inner, sockopt::SndBuf, &wanted).map_err(failed("set SO_SNDBUF"))?;
        }
        self.sendable = bytes;
        Ok(())
    }

    /// Reads the next datagram. Waits for it at most this long; not if the timeout is zero.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Result<Received<'_>> {
        let mut flags = libc::MSG_DONTWAIT;
        if !timeout.is_zero() {
            // A timeout of zero would mean forever.
            let micros = i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX).max(1);
            let value = TimeVal::new(micros / 1_000_000, micros % 1_000_000);
            setsockopt(&self.inner, sockopt::ReceiveTimeout, &value).map_err(failed("set SO_RCVTIMEO"))?;
            flags = 0;
        }

        let received = loop {
            match self.inner.recv(&mut &mut self.buf[..], flags | libc::MSG_TRUNC).map_err(Errno::from) {
                // With a timeout, the kernel does not restart the call after a signal handler (signal(7)).
                Err(Errno(libc::EINTR)) => {}
                received => break received,
            }
        };

        match received {
            Ok(len) if len > self.buf.len() => Err(Error::Malformed("a datagram larger than the protocol allows")),
            Ok(len) => Ok(Received::Datagram(&self.buf[..len])),
            Err(Errno(libc::EAGAIN)) => Ok(Received::Nothing),
            Err(Errno(libc::ENOBUFS)) => Ok(Received::Overrun),
            Err(errno) => Err(failed("receive from netlink")(errno)),
        }
    }

    /// Discards the queued messages of an exchange that ended early.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !matches!(self.receive(Duration::ZERO)?, Received::Nothing) {}
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn failed<E: Into<Errno>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Socket { call, errno: error.into() }
}

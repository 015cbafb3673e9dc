//! ipset: sets of addresses and ports that iptables rules refer to, over nfnetlink.

mod abi;
mod codec;
mod handle;

use std::net::IpAddr;

pub use handle::Handle;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// At most 31 characters.
    pub name: String,
    /// What it holds and how: `hash:ip,port`, `bitmap:port`.
    pub kind: String,
    /// Of its addresses; `None` where there are none.
    pub family: Option<Family>,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// An entry, as far as its set's kind has these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The (first) address.
    pub ip: Option<IpAddr>,
    /// The protocol that the port is of: `IPPROTO_*`.
    pub protocol: Option<u8>,
    /// The port.
    pub port: Option<u16>,
}

/// How the destruction of a set went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// It is gone, or was not there.
    Done,
    /// It stays: a rule or another set refers to it.
    InUse,
}

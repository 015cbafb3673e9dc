//! ipset: sets of addresses and ports that iptables rules refer to, over nfnetlink.

mod abi;
mod codec;
mod entry;
mod handle;

pub use entry::IpsetEntry;
pub use handle::IpsetHandle;

use crate::{AddressFamily, Errno};

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipset {
    /// At most 31 characters.
    pub name: String,
    /// What it holds and how: `hash:ip,port`, `bitmap:port`.
    pub type_name: String,
    /// Of its addresses; `None` where there are none.
    pub family: Option<AddressFamily>,
}

/// A set to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewIpset<'a> {
    /// At most 31 characters.
    pub name: &'a str,
    /// What it holds.
    pub set_type: IpsetType,
    /// Of its addresses.
    pub family: AddressFamily,
    /// Room in its hash table to begin with; it grows.
    pub hash_size: u32,
    /// It takes no more entries than these.
    pub max_entries: u32,
    /// Whether entries carry a packet mark.
    pub skbinfo: SkbInfo,
}

/// What a set holds, of the kinds that can be made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpsetType {
    /// `hash:ip`.
    Ip,
    /// `hash:ip,port`.
    IpPort,
    /// `hash:ip,port,ip`.
    IpPortIp,
    /// `hash:ip,port,net`.
    IpPortNet,
    /// `hash:net,port`.
    NetPort,
}

/// Whether the entries of a set carry packet marks (`skbinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkbInfo {
    /// They do.
    Enabled,
    /// They do not.
    Disabled,
}

/// An entry that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedEntry {
    /// Which one.
    pub index: usize,
    /// Why; numbers from 4096 on are ipset's own.
    pub errno: Errno,
}

/// How the destruction of a set went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestroyOutcome {
    /// It is gone, or was not there.
    Destroyed,
    /// It stays: a rule or another set refers to it.
    InUse,
}

// === impl IpsetType ===

impl IpsetType {
    /// As ipset calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "hash:ip",
            Self::IpPort => "hash:ip,port",
            Self::IpPortIp => "hash:ip,port,ip",
            Self::IpPortNet => "hash:ip,port,net",
            Self::NetPort => "hash:net,port",
        }
    }

    /// The lowest revision that has all we need: marks (Linux 3.19).
    fn revision(self) -> u8 {
        match self {
            Self::Ip => 4,
            Self::IpPort | Self::IpPortIp => 5,
            Self::IpPortNet | Self::NetPort => 7,
        }
    }
}

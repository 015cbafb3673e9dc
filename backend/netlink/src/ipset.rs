//! ipset: sets of addresses and ports that iptables rules refer to, over nfnetlink.

mod abi;
pub(crate) mod codec;
mod entry;
mod handle;

pub use entry::IpsetEntry;
pub use handle::IpsetHandle;

use proto::model::IpFamily;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipset {
    /// At most 31 characters.
    pub name: String,
    /// The set's type, e.g. `hash:ip,port` or `bitmap:port`.
    pub type_name: String,
    /// The family of its addresses; `None` for a type without addresses.
    pub family: Option<IpFamily>,
}

/// A set to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewIpset<'a> {
    /// At most 31 characters.
    pub name: &'a str,
    /// The set's type.
    pub set_type: IpsetType,
    /// The family of its addresses.
    pub family: IpFamily,
    /// The initial size of the hash table; it grows.
    pub hash_size: u32,
    /// The maximum number of entries.
    pub max_entries: u32,
    /// After how many seconds an entry is deleted; `None`: entries stay.
    pub timeout: Option<u32>,
    /// Whether entries have a packet mark (`skbinfo`).
    pub has_marks: bool,
}

/// The types of sets that [`IpsetHandle::create`] supports.
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

/// The result of [`IpsetHandle::destroy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestroyOutcome {
    /// The set is destroyed, or did not exist.
    Destroyed,
    /// A rule or another set refers to the set.
    InUse,
}

// === impl IpsetType ===

impl IpsetType {
    /// The name of the type in ipset.
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

    /// The lowest revision with packet marks (Linux 3.19).
    fn revision(self) -> u8 {
        match self {
            Self::Ip => 4,
            Self::IpPort | Self::IpPortIp => 5,
            Self::IpPortNet | Self::NetPort => 7,
        }
    }
}

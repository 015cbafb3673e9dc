//! Our sets: what they are called, what they hold, and how an entry is written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::dataplane::Vip;
use ipnet::IpNet;
use netlink::ipset::{IpsetEntry, IpsetType, NewIpset, SkbInfo};
use proto::model::{IpFamily, Protocol};

/// A set, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetId {
    pub(crate) content: SetContent,
    pub(crate) family: IpFamily,
}

/// What a set holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetContent {
    /// Endpoints on this node, twice: who may reach itself.
    Hairpin,
    /// A VIP and who may use it.
    Sources,
    /// VIPs that not everybody may use.
    Restricted,
    /// The addresses on our device: what becomes of packets to ports that nobody has.
    Addresses,
    /// VIPs: what becomes of their packets.
    Vips,
    /// The same, of packets of pods and of the node itself, where that differs.
    VipsInside,
    /// Node ports: what becomes of their packets.
    NodePorts,
    /// As [`Self::VipsInside`].
    NodePortsInside,
}

/// A set grows with its entries, up to so many: far more than there are VIPs in a cluster.
const MAX_ENTRIES: u32 = 1 << 22;
/// Room to begin with, which the kernel has to give to empty sets too.
const HASH_SIZE: u32 = 1024;

// === impl Set ===

impl SetId {
    /// All there are.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        IpFamily::ALL.into_iter().flat_map(|family| SetContent::ALL.map(move |content| Self { content, family }))
    }

    /// At most 31 characters.
    pub(crate) fn name(self) -> &'static str {
        use SetContent as C;
        match (self.content, self.family) {
            (C::Hairpin, IpFamily::V4) => "FAIRLEAD-HAIRPIN",
            (C::Sources, IpFamily::V4) => "FAIRLEAD-SOURCES",
            (C::Restricted, IpFamily::V4) => "FAIRLEAD-RESTRICTED",
            (C::Addresses, IpFamily::V4) => "FAIRLEAD-ADDRESSES",
            (C::Vips, IpFamily::V4) => "FAIRLEAD-VIPS",
            (C::VipsInside, IpFamily::V4) => "FAIRLEAD-VIPS-INSIDE",
            (C::NodePorts, IpFamily::V4) => "FAIRLEAD-NODE-PORTS",
            (C::NodePortsInside, IpFamily::V4) => "FAIRLEAD-NODE-PORTS-INSIDE",
            (C::Hairpin, IpFamily::V6) => "FAIRLEAD-6-HAIRPIN",
            (C::Sources, IpFamily::V6) => "FAIRLEAD-6-SOURCES",
            (C::Restricted, IpFamily::V6) => "FAIRLEAD-6-RESTRICTED",
            (C::Addresses, IpFamily::V6) => "FAIRLEAD-6-ADDRESSES",
            (C::Vips, IpFamily::V6) => "FAIRLEAD-6-VIPS",
            (C::VipsInside, IpFamily::V6) => "FAIRLEAD-6-VIPS-INSIDE",
            (C::NodePorts, IpFamily::V6) => "FAIRLEAD-6-NODE-PORTS",
            (C::NodePortsInside, IpFamily::V6) => "FAIRLEAD-6-NODE-PORTS-INSIDE",
        }
    }

    /// As it is made.
    pub(crate) fn new_set(self) -> NewIpset<'static> {
        let (set_type, skbinfo) = match self.content {
            SetContent::Hairpin => (IpsetType::IpPortIp, SkbInfo::Disabled),
            SetContent::Sources => (IpsetType::IpPortNet, SkbInfo::Disabled),
            SetContent::Restricted => (IpsetType::IpPort, SkbInfo::Disabled),
            SetContent::Addresses => (IpsetType::Ip, SkbInfo::Enabled),
            SetContent::Vips | SetContent::VipsInside => (IpsetType::IpPort, SkbInfo::Enabled),
            SetContent::NodePorts | SetContent::NodePortsInside => (IpsetType::NetPort, SkbInfo::Enabled),
        };
        let family = match self.family {
            IpFamily::V4 => netlink::AddressFamily::V4,
            IpFamily::V6 => netlink::AddressFamily::V6,
        };
        let (hash_size, max_entries) = (HASH_SIZE, MAX_ENTRIES);
        NewIpset { name: self.name(), set_type, family, hash_size, max_entries, skbinfo }
    }
}

// === impl Content ===

impl SetContent {
    /// All.
    const ALL: [Self; 8] = [
        Self::Hairpin,
        Self::Sources,
        Self::Restricted,
        Self::Addresses,
        Self::Vips,
        Self::VipsInside,
        Self::NodePorts,
        Self::NodePortsInside,
    ];

    /// Whether its entries lead packets to virtual servers.
    pub(crate) fn leads(self) -> bool {
        matches!(self, Self::Vips | Self::VipsInside | Self::NodePorts | Self::NodePortsInside)
    }
}

// === entries ===

/// That of an address.
pub(crate) fn address(ip: IpAddr) -> IpsetEntry {
    IpsetEntry { ip: Some(ip), ..IpsetEntry::default() }
}

/// That of an address and a port.
pub(crate) fn socket(ip: IpAddr, protocol: Protocol, port: u16) -> IpsetEntry {
    IpsetEntry { protocol: Some(protocol as u8), port: Some(port), ..address(ip) }
}

/// That of an endpoint that reaches itself.
pub(crate) fn hairpin(ip: IpAddr, protocol: Protocol, port: u16) -> IpsetEntry {
    IpsetEntry { second: Some(ip), ..socket(ip, protocol, port) }
}

/// That of a VIP and a range of sources.
pub(crate) fn source(ip: IpAddr, protocol: Protocol, port: u16, range: &IpNet) -> IpsetEntry {
    IpsetEntry { second: Some(range.network()), second_prefix: Some(range.prefix_len()), ..socket(ip, protocol, port) }
}

/// Those of a front. A node port is entered with all addresses, in two halves: there is no network of all. Rules see to it that only the
/// node's own are looked up.
pub(crate) fn front(front: &Vip, family: IpFamily) -> Vec<IpsetEntry> {
    match *front {
        Vip::AddressPort { address, port, protocol } => vec![socket(address, protocol, port)],
        Vip::NodePort { port, protocol } => {
            let halves: [IpAddr; 2] = match family {
                IpFamily::V4 => [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(128, 0, 0, 0).into()],
                IpFamily::V6 => [Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0).into()],
            };
            halves.map(|half| IpsetEntry { prefix: Some(1), ..socket(half, protocol, port) }).to_vec()
        }
        Vip::Address(ip) => vec![address(ip)],
    }
}

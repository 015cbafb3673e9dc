//! The ipsets of this backend: names, types, and entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::dataplane::Vip;
use ipnet::IpNet;
use netlink::ipset::{IpsetEntry, IpsetType, NewIpset, SkbInfo};
use proto::model::{IpFamily, Protocol};

use crate::object::ipvs_family;

/// A set of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetId {
    pub(crate) content: SetContent,
    pub(crate) family: IpFamily,
}

/// The content of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetContent {
    /// Endpoints on this node, as source and destination: connections to themselves are masqueraded.
    Hairpin,
    /// VIPs with the source ranges that may use them.
    Sources,
    /// VIPs with source ranges.
    Restricted,
    /// The addresses on the device, with the verdict for packets to ports without a service port.
    Addresses,
    /// VIPs, with the mark of their packets.
    Vips,
    /// VIPs at which packets from pods and from this node get another mark.
    VipsInside,
    /// Node ports, with the mark of their packets.
    NodePorts,
    /// Node ports, as [`Self::VipsInside`].
    NodePortsInside,
}

/// `maxelem`: far more than a cluster has VIPs.
const MAX_ENTRIES: u32 = 1 << 22;
/// `hashsize`: the initial size of the hash table. The kernel allocates it for empty sets too, and grows it.
const HASH_SIZE: u32 = 1024;

// === impl Set ===

impl SetId {
    /// All sets.
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

    /// The request that creates the set.
    pub(crate) fn new_set(self) -> NewIpset<'static> {
        let (set_type, skbinfo) = match self.content {
            SetContent::Hairpin => (IpsetType::IpPortIp, SkbInfo::Disabled),
            SetContent::Sources => (IpsetType::IpPortNet, SkbInfo::Disabled),
            SetContent::Restricted => (IpsetType::IpPort, SkbInfo::Disabled),
            SetContent::Addresses => (IpsetType::Ip, SkbInfo::Enabled),
            SetContent::Vips | SetContent::VipsInside => (IpsetType::IpPort, SkbInfo::Enabled),
            SetContent::NodePorts | SetContent::NodePortsInside => (IpsetType::NetPort, SkbInfo::Enabled),
        };
        NewIpset {
            name: self.name(),
            set_type,
            family: ipvs_family(self.family),
            hash_size: HASH_SIZE,
            max_entries: MAX_ENTRIES,
            skbinfo,
        }
    }
}

// === impl Content ===

impl SetContent {
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

    /// Whether its entries mark packets for virtual servers.
    pub(crate) fn leads(self) -> bool {
        matches!(self, Self::Vips | Self::VipsInside | Self::NodePorts | Self::NodePortsInside)
    }
}

// === entries ===

/// The entry of an address.
pub(crate) fn address(ip: IpAddr) -> IpsetEntry {
    IpsetEntry { ip: Some(ip), ..IpsetEntry::default() }
}

/// The entry of an address and a port.
pub(crate) fn socket(ip: IpAddr, protocol: Protocol, port: u16) -> IpsetEntry {
    IpsetEntry { protocol: Some(protocol as u8), port: Some(port), ..address(ip) }
}

/// The entry of an endpoint in [`SetContent::Hairpin`].
pub(crate) fn hairpin(ip: IpAddr, protocol: Protocol, port: u16) -> IpsetEntry {
    IpsetEntry { ip2: Some(ip), ..socket(ip, protocol, port) }
}

/// The entry of a VIP and a source range.
pub(crate) fn source(ip: IpAddr, protocol: Protocol, port: u16, range: &IpNet) -> IpsetEntry {
    IpsetEntry { ip2: Some(range.network()), prefix2: Some(range.prefix_len()), ..socket(ip, protocol, port) }
}

/// The entries of a VIP. A node port is entered for all addresses as two /1 networks, because ipset has no /0. The
/// rules look up only the node's own addresses.
pub(crate) fn vip_entries(vip: &Vip, family: IpFamily) -> Vec<IpsetEntry> {
    match *vip {
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

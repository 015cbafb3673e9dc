//! The ipsets of this backend: names, types, and entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::dataplane::Vip;
use ipnet::IpNet;
use netlink::ipset::{IpsetEntry, IpsetType, NewIpset};
use proto::model::{IpFamily, PerFamily, Protocol};

/// A set of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SetId {
    pub(crate) content: SetContent,
    pub(crate) family: IpFamily,
}

/// The kind of entries of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetContent {
    /// Endpoints on this node, as source and destination: connections to themselves are masqueraded.
    Hairpin,
    /// Sources of connections that are not masqueraded, as source and destination, written by rules: iptables cannot
    /// compare two addresses of a packet, but looks both up. For endpoints without node name.
    Returning,
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

/// The most entries of [`SetContent::Returning`]: less than 10 MB. When full, endpoints without node name do not reach
/// themselves until entries time out.
const MAX_RETURNING: u32 = 65_536;

/// The timeout of entries of [`SetContent::Returning`], which are needed while one packet traverses the rules.
const RETURNING_TIMEOUT_SECONDS: u32 = 5;

/// `hashsize`: the initial size of the hash table. The kernel allocates it for empty sets too, and grows it.
const HASH_SIZE: u32 = 1024;

/// The names in both families, and the type of each set, in the order of [`SetContent`].
const SETS: [(SetContent, &str, &str, IpsetType); 9] = {
    use SetContent::{
        Addresses, Hairpin, NodePorts, NodePortsInside, Restricted, Returning, Sources, Vips, VipsInside,
    };
    [
        (Hairpin, "FAIRLEAD-HAIRPIN", "FAIRLEAD-6-HAIRPIN", IpsetType::IpPortIp),
        (Returning, "FAIRLEAD-RETURNING", "FAIRLEAD-6-RETURNING", IpsetType::IpPortIp),
        (Sources, "FAIRLEAD-SOURCES", "FAIRLEAD-6-SOURCES", IpsetType::IpPortNet),
        (Restricted, "FAIRLEAD-RESTRICTED", "FAIRLEAD-6-RESTRICTED", IpsetType::IpPort),
        (Addresses, "FAIRLEAD-ADDRESSES", "FAIRLEAD-6-ADDRESSES", IpsetType::Ip),
        (Vips, "FAIRLEAD-VIPS", "FAIRLEAD-6-VIPS", IpsetType::IpPort),
        (VipsInside, "FAIRLEAD-VIPS-INSIDE", "FAIRLEAD-6-VIPS-INSIDE", IpsetType::IpPort),
        (NodePorts, "FAIRLEAD-NODE-PORTS", "FAIRLEAD-6-NODE-PORTS", IpsetType::NetPort),
        (NodePortsInside, "FAIRLEAD-NODE-PORTS-INSIDE", "FAIRLEAD-6-NODE-PORTS-INSIDE", IpsetType::NetPort),
    ]
};

// === impl SetId ===

impl SetId {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        IpFamily::ALL.into_iter().flat_map(|family| SETS.map(move |(content, ..)| Self { content, family }))
    }

    /// Whether rules write the entries. Fairlead does not add, list or delete them.
    pub(crate) fn is_written_by_rules(self) -> bool {
        self.content == SetContent::Returning
    }

    /// At most 31 characters.
    pub(crate) fn name(self) -> &'static str {
        let (_, v4, v6, _) = SETS[self.content as usize];
        PerFamily { v4, v6 }[self.family]
    }

    /// The request that creates the set.
    pub(crate) fn new_set(self) -> NewIpset<'static> {
        let (.., set_type) = SETS[self.content as usize];
        let is_written_by_rules = self.is_written_by_rules();
        let has_marks = self.content == SetContent::Addresses || self.content.marks_packets();
        NewIpset {
            name: self.name(),
            set_type,
            family: self.family,
            hash_size: HASH_SIZE,
            max_entries: if is_written_by_rules { MAX_RETURNING } else { MAX_ENTRIES },
            timeout: if is_written_by_rules { Some(RETURNING_TIMEOUT_SECONDS) } else { None },
            has_marks,
        }
    }
}

// === impl SetContent ===

impl SetContent {
    /// Whether its entries mark packets for virtual servers.
    pub(crate) fn marks_packets(self) -> bool {
        matches!(self, Self::Vips | Self::VipsInside | Self::NodePorts | Self::NodePortsInside)
    }
}

// === Entries ===

pub(crate) fn address(ip: IpAddr) -> IpsetEntry {
    IpsetEntry { ip: Some(ip), ..IpsetEntry::default() }
}

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

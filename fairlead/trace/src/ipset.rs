//! Lookups in ipsets: which parts of a packet make up the entry.

use std::net::IpAddr;

use ::iptables::Side;
use ipnet::IpNet;
use netlink::ipset::{Ipset, IpsetEntry};
use proto::model::Protocol;

use crate::packet::Packet;

/// The lookup of a packet in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetLookup {
    /// Of this entry.
    Entry(IpsetEntry),
    /// The set never contains such a packet: it is of the other family, or the rule names too few parts.
    NeverMatches,
    /// The type of the set is not supported.
    Unknown,
}

/// The lookup of a rule with these sides.
pub(crate) fn lookup(set: &Ipset, sides: &[Side], packet: &Packet) -> SetLookup {
    let Some((_, kind)) = set.type_name.split_once(':') else { return SetLookup::Unknown };
    let parts: Vec<_> = kind.split(',').collect();
    if set.family.is_some_and(|of| of != packet.family()) || sides.len() < parts.len() {
        return SetLookup::NeverMatches;
    }

    let mut entry = IpsetEntry::default();
    for (part, side) in parts.iter().zip(sides) {
        let end = packet.end(*side);
        match *part {
            "ip" | "net" if entry.ip.is_none() => entry.ip = Some(end.ip()),
            "ip" | "net" => entry.ip2 = Some(end.ip()),
            "port" => {
                entry.port = Some(end.port());
                // A bitmap of ports has no protocol.
                if parts.len() > 1 {
                    entry.protocol = Some(packet.protocol.number());
                }
            }
            _ => return SetLookup::Unknown,
        }
    }
    SetLookup::Entry(entry)
}

/// The entry with the longest prefix that contains another one, as in the kernel.
pub(crate) fn find<'a>(entries: &'a [IpsetEntry], wanted: &IpsetEntry) -> Option<&'a IpsetEntry> {
    let has = |entry: &&IpsetEntry| {
        (entry.port, entry.protocol) == (wanted.port, wanted.protocol)
            && is_in(wanted.ip, entry.ip, entry.prefix)
            && is_in(wanted.ip2, entry.ip2, entry.prefix2)
    };
    let longest = |prefix: Option<u8>| prefix.unwrap_or(u8::MAX);
    entries.iter().filter(has).max_by_key(|entry| (longest(entry.prefix), longest(entry.prefix2)))
}

fn is_in(wanted: Option<IpAddr>, address: Option<IpAddr>, prefix: Option<u8>) -> bool {
    match (wanted, address, prefix) {
        (Some(wanted), Some(address), Some(prefix)) => {
            IpNet::new(address, prefix).is_ok_and(|net| net.contains(&wanted))
        }
        (wanted, address, _) => wanted == address,
    }
}

/// An entry as `ipset` prints it: `10.96.0.10,tcp:80`.
pub(crate) fn describe(entry: &IpsetEntry) -> String {
    let protocol = entry.protocol.and_then(Protocol::from_number);
    let port = entry.port.map(|port| protocol.map_or(port.to_string(), |of| format!("{}:{port}", of.lower())));
    let address = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string());
    [address(entry.ip), port, address(entry.ip2)].into_iter().flatten().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proto::model::IpFamily;

    use super::*;
    use crate::packet::PacketOrigin;

    fn packet() -> Packet {
        Packet {
            source: "192.0.2.7:40000".parse().unwrap(),
            destination: "10.96.0.10:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            origin: PacketOrigin::Node,
        }
    }

    fn described(kind: &str, sides: &[Side]) -> Option<String> {
        let set = Ipset { name: "set".to_owned(), type_name: kind.to_owned(), family: Some(IpFamily::V4) };
        match lookup(&set, sides, &packet()) {
            SetLookup::Entry(entry) => Some(describe(&entry)),
            SetLookup::NeverMatches => Some("never".to_owned()),
            SetLookup::Unknown => None,
        }
    }

    #[test]
    fn entries_are_made_of_parts_of_the_packet() {
        use Side::{Destination as D, Source as S};
        let cases = [
            ("hash:ip", &[D][..], "10.96.0.10"),
            ("hash:ip", &[S], "192.0.2.7"),
            ("bitmap:port", &[D], "80"),
            ("hash:ip,port", &[S, D], "192.0.2.7,tcp:80"),
            ("hash:net,port", &[D, D], "10.96.0.10,tcp:80"),
            ("hash:ip,port,net", &[D, D, S], "10.96.0.10,tcp:80,192.0.2.7"),
            ("hash:ip,port", &[D], "never"),
        ];
        for (kind, sides, expected) in cases {
            assert_eq!(described(kind, sides).as_deref(), Some(expected), "{kind}");
        }
        assert_eq!(described("hash:net,iface", &[S, S]), None);
        let other = Ipset { name: "set".to_owned(), type_name: "hash:ip".to_owned(), family: Some(IpFamily::V6) };
        assert_eq!(lookup(&other, &[D], &packet()), SetLookup::NeverMatches);
    }

    #[test]
    fn the_longest_prefix_is_found() {
        let ip = |text: &str| Some(text.parse().unwrap());
        let entry = |net, prefix, port, mark| IpsetEntry {
            ip: ip(net),
            prefix,
            port: Some(port),
            mark: Some(mark),
            ..IpsetEntry::default()
        };
        let entries =
            [entry("0.0.0.0", Some(1), 80, 1), entry("10.96.0.0", Some(16), 80, 2), entry("10.96.0.1", None, 80, 3)];
        let mark = |address, port| {
            let wanted = IpsetEntry { ip: ip(address), port: Some(port), ..IpsetEntry::default() };
            find(&entries, &wanted).and_then(|entry| entry.mark)
        };
        assert_eq!(mark("10.96.0.1", 80), Some(3));
        assert_eq!(mark("10.96.0.2", 80), Some(2));
        assert_eq!(mark("10.97.0.2", 80), Some(1));
        assert_eq!(mark("192.0.2.1", 80), None);
        assert_eq!(mark("10.96.0.1", 81), None);
    }
}

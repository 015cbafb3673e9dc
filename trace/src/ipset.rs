//! What a rule looks for in a set of ipset: which part of the packet stands in which place of an entry.

use std::net::IpAddr;

use ::iptables::Side;
use ipnet::IpNet;
use netlink::AddressFamily;
use netlink::ipset::{Ipset, IpsetEntry};

use crate::packet::Packet;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// This.
    Entry(IpsetEntry),
    /// Such a set never has such a packet: it is the other family's, or the rule names too few places.
    Nothing,
    /// A set of a kind that is not understood.
    Unknown,
}

/// What a rule with these sides looks for in a set.
pub(crate) fn wanted(set: &Ipset, sides: &[Side], packet: &Packet) -> Wanted {
    let Some((_, kind)) = set.type_name.split_once(':') else { return Wanted::Unknown };
    let places: Vec<_> = kind.split(',').collect();
    let family = if packet.is_v4() { AddressFamily::V4 } else { AddressFamily::V6 };
    if set.family.is_some_and(|of| of != family) || sides.len() < places.len() {
        return Wanted::Nothing;
    }
    let mut entry = IpsetEntry::default();
    for (place, side) in places.iter().zip(sides) {
        let end = match side {
            Side::Source => packet.source,
            Side::Destination => packet.destination,
        };
        match *place {
            "ip" | "net" if entry.ip.is_none() => entry.ip = Some(end.ip()),
            "ip" | "net" => entry.second = Some(end.ip()),
            "port" => {
                entry.port = Some(end.port());
                // A bitmap of ports does not ask whose they are.
                entry.protocol = (places.len() > 1).then(|| packet.protocol.number());
            }
            _ => return Wanted::Unknown,
        }
    }
    Wanted::Entry(entry)
}

/// The entry that has it, that of the longest prefix, as the kernel finds it.
pub(crate) fn find<'a>(entries: &'a [IpsetEntry], wanted: &IpsetEntry) -> Option<&'a IpsetEntry> {
    let has = |entry: &&IpsetEntry| {
        (entry.port, entry.protocol) == (wanted.port, wanted.protocol)
            && is_in(wanted.ip, entry.ip, entry.prefix)
            && is_in(wanted.second, entry.second, entry.second_prefix)
    };
    let longest = |prefix: Option<u8>| prefix.unwrap_or(u8::MAX);
    entries.iter().filter(has).max_by_key(|entry| (longest(entry.prefix), longest(entry.second_prefix)))
}

fn is_in(wanted: Option<IpAddr>, address: Option<IpAddr>, prefix: Option<u8>) -> bool {
    match (wanted, address, prefix) {
        (Some(wanted), Some(address), Some(prefix)) => {
            IpNet::new(address, prefix).is_ok_and(|net| net.contains(&wanted))
        }
        (wanted, address, _) => wanted == address,
    }
}

/// An entry in words: `10.96.0.10,tcp:80`, as `ipset` writes it.
pub(crate) fn words(entry: &IpsetEntry) -> String {
    let protocol = match entry.protocol {
        Some(6) => "tcp:",
        Some(17) => "udp:",
        Some(132) => "sctp:",
        _ => "",
    };
    let port = entry.port.map(|port| format!("{protocol}{port}"));
    let address = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string());
    [address(entry.ip), port, address(entry.second)].into_iter().flatten().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Entry as From, Protocol};

    fn packet() -> Packet {
        Packet {
            source: "192.0.2.7:40000".parse().unwrap(),
            destination: "10.96.0.10:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            entry: From::Node,
        }
    }

    fn asked(kind: &str, sides: &[Side]) -> Option<String> {
        let set = Ipset { name: "set".to_owned(), type_name: kind.to_owned(), family: Some(AddressFamily::V4) };
        match wanted(&set, sides, &packet()) {
            Wanted::Entry(entry) => Some(words(&entry)),
            Wanted::Nothing => Some("nothing".to_owned()),
            Wanted::Unknown => None,
        }
    }

    #[test]
    fn places_are_filled_from_the_packet() {
        use Side::{Destination as D, Source as S};
        let cases = [
            ("hash:ip", &[D][..], "10.96.0.10"),
            ("hash:ip", &[S], "192.0.2.7"),
            ("bitmap:port", &[D], "80"),
            ("hash:ip,port", &[S, D], "192.0.2.7,tcp:80"),
            ("hash:net,port", &[D, D], "10.96.0.10,tcp:80"),
            ("hash:ip,port,net", &[D, D, S], "10.96.0.10,tcp:80,192.0.2.7"),
            ("hash:ip,port", &[D], "nothing"),
        ];
        for (kind, sides, expected) in cases {
            assert_eq!(asked(kind, sides).as_deref(), Some(expected), "{kind}");
        }
        assert_eq!(asked("hash:net,iface", &[S, S]), None);
        let other = Ipset { name: "set".to_owned(), type_name: "hash:ip".to_owned(), family: Some(AddressFamily::V6) };
        assert_eq!(wanted(&other, &[D], &packet()), Wanted::Nothing);
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

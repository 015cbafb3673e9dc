//! Requests and replies compared with those of ipset (`captured/ipset-7.17.txt`), and sets in the kernel.

use std::process::Command;

use proto::model::IpFamily;

use super::*;
use crate::{ipset::IpsetType, message::messages, testing::in_netns, tests::captured};

const CAPTURED: &str = include_str!("../captured/ipset-7.17.txt");

fn set(name: &str, type_name: &str, family: Option<IpFamily>) -> Ipset {
    Ipset { name: name.into(), type_name: type_name.into(), family }
}

/// The sets that the captured commands and the test in the kernel create.
fn sets() -> [Ipset; 3] {
    [
        set("KUBE-CLUSTER-IP", "hash:ip,port", Some(IpFamily::V4)),
        set("KUBE-NODE-PORT-TCP", "bitmap:port", None),
        set("KUBE-6-NODE-PORT-SCTP-HASH", "hash:ip,port", Some(IpFamily::V6)),
    ]
}

fn entry(ip: &str, protocol: u8, port: u16) -> IpsetEntry {
    IpsetEntry { ip: Some(ip.parse().unwrap()), protocol: Some(protocol), port: Some(port), ..IpsetEntry::default() }
}

fn port(port: u16) -> IpsetEntry {
    IpsetEntry { port: Some(port), ..IpsetEntry::default() }
}

/// The payloads of the replies to the command.
fn replies(command: &str) -> Vec<Vec<u8>> {
    let datagrams = captured::read(CAPTURED, command);
    let messages = datagrams.iter().flat_map(|datagram| messages(datagram));
    let lists = messages.filter(|message| message.kind == abi::SUBSYSTEM | cmd::LIST);
    lists.map(|message| message.payload.to_vec()).collect()
}

#[test]
fn sets_and_entries_are_read_as_ipset_prints_them() {
    let headers: Vec<_> = replies("ipset list -terse").iter().map(|payload| codec::read_set(payload)).collect();
    assert_eq!(headers, sets().map(Some));
    let whole = replies("ipset list");
    let entries: Vec<_> = whole.iter().map(|payload| codec::read_entries(payload).unwrap()).collect();
    let expected =
        [vec![entry("10.96.0.10", 6, 80)], vec![port(30080), port(30443)], vec![entry("fd00::1", 132, 30080)]];
    assert_eq!(entries, expected);
    assert_eq!(codec::read_set(&whole[0][..20]), None);
}

#[test]
fn requests_equal_those_of_ipset() {
    type Write = fn(&mut Vec<u8>);
    let cases: [(&str, Write); 3] = [
        ("ipset list -terse", |buf| codec::write_list_headers(buf)),
        ("ipset list KUBE-NODE-PORT-TCP", |buf| codec::write_list(buf, "KUBE-NODE-PORT-TCP")),
        ("ipset destroy KUBE-NODE-PORT-TCP", |buf| codec::write_destroy(buf, "KUBE-NODE-PORT-TCP")),
    ];
    for (command, write) in cases {
        let (theirs, mut ours) = (captured::sent(CAPTURED, command), Vec::new());
        write(&mut ours);
        assert_eq!((&ours[..6], &ours[16..]), (&theirs[..6], &theirs[16..]), "{command}");
    }
}

#[test]
fn sets_in_the_kernel_are_listed_and_destroyed() {
    in_netns(|| {
        let mut handle = IpsetHandle::open().unwrap();
        assert_eq!(handle.sets(), Ok(vec![]));
        for args in [
            "create KUBE-CLUSTER-IP hash:ip,port",
            "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535",
            "create KUBE-6-NODE-PORT-SCTP-HASH hash:ip,port family inet6",
            "create lists list:set",
            "add lists KUBE-CLUSTER-IP",
        ] {
            let status = Command::new("ipset").args(args.split_whitespace()).status().unwrap();
            assert!(status.success(), "{args}");
        }
        // More than fit into one datagram.
        let ports: Vec<u16> = (1..=20_000).collect();
        let path = std::env::temp_dir().join(format!("fairlead-sets-{}", std::process::id()));
        let lines: String = ports.iter().map(|port| format!("add KUBE-NODE-PORT-TCP {port}\n")).collect();
        std::fs::write(&path, lines).unwrap();
        let restored = Command::new("ipset").args(["restore", "-file"]).arg(&path).status().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(restored.success());

        assert_eq!(handle.sets().unwrap()[..3], sets());
        let entries = handle.entries("KUBE-NODE-PORT-TCP").unwrap();
        assert_eq!(entries, ports.into_iter().map(port).collect::<Vec<_>>());
        assert!(handle.entries("missing").unwrap_err().is_not_found());

        assert_eq!(handle.destroy("KUBE-NODE-PORT-TCP"), Ok(DestroyOutcome::Destroyed));
        assert_eq!(handle.destroy("KUBE-NODE-PORT-TCP"), Ok(DestroyOutcome::Destroyed), "deleted already");
        assert_eq!(handle.destroy("KUBE-CLUSTER-IP"), Ok(DestroyOutcome::InUse));
        assert_eq!(handle.destroy("lists"), Ok(DestroyOutcome::Destroyed));
        assert_eq!(handle.destroy("KUBE-CLUSTER-IP"), Ok(DestroyOutcome::Destroyed));
        assert_eq!(handle.sets().unwrap(), sets()[2..]);
    });
}

const MARK: u32 = 0xfa00_0010;

fn new_set(name: &str, set_type: IpsetType, family: IpFamily, has_marks: bool) -> NewIpset<'_> {
    NewIpset { name, set_type, family, hash_size: 1024, max_entries: 1 << 20, timeout: None, has_marks }
}

/// An entry of each type of set, as in the captured commands.
fn entries() -> [(&'static str, &'static str, IpsetEntry); 5] {
    let ip = |text: &str| Some(text.parse().unwrap());
    [
        (
            "FAIRLEAD-VIPS",
            "10.96.0.10,tcp:80 skbmark 0xfa000010",
            IpsetEntry { mark: Some(MARK), ..entry("10.96.0.10", 6, 80) },
        ),
        (
            "FAIRLEAD-6-SOURCES",
            "fd00::1,udp:53,fd00:1::/32",
            IpsetEntry { ip2: ip("fd00:1::"), prefix2: Some(32), ..entry("fd00::1", 17, 53) },
        ),
        (
            "FAIRLEAD-NODE-PORTS",
            "128.0.0.0/1,sctp:30080 skbmark 0xfa000010",
            IpsetEntry { prefix: Some(1), mark: Some(MARK), ..entry("128.0.0.0", 132, 30080) },
        ),
        (
            "FAIRLEAD-HAIRPIN",
            "10.244.0.5,tcp:80,10.244.0.5",
            IpsetEntry { ip2: ip("10.244.0.5"), ..entry("10.244.0.5", 6, 80) },
        ),
        ("FAIRLEAD-ADDRESSES", "10.96.0.10", IpsetEntry { ip: ip("10.96.0.10"), ..IpsetEntry::default() }),
    ]
}

#[test]
fn create_requests_equal_those_of_ipset() {
    for (options, set) in [
        (
            "FAIRLEAD-VIPS hash:ip,port hashsize 4096 maxelem 1048576 skbinfo",
            NewIpset { hash_size: 4096, ..new_set("FAIRLEAD-VIPS", IpsetType::IpPort, IpFamily::V4, true) },
        ),
        (
            "FAIRLEAD-6-SOURCES hash:ip,port,net family inet6 hashsize 1024 maxelem 1048576",
            new_set("FAIRLEAD-6-SOURCES", IpsetType::IpPortNet, IpFamily::V6, false),
        ),
    ] {
        let (theirs, mut ours) = (captured::sent(CAPTURED, &format!("ipset create {options}")), Vec::new());
        codec::write_create(&mut ours, &set);
        let attributes = |message: &[u8]| {
            let attributes = crate::attr::attrs(&message[20..]);
            // ipset uses the kernel's latest revision, we the first with packet marks.
            let list = attributes.filter(|attr| attr.kind != abi::attr::REVISION);
            list.map(|attr| (attr.kind, attr.payload.to_vec())).collect::<Vec<_>>()
        };
        assert_eq!(ours[4..8], theirs[4..8], "{options}");
        assert_eq!(attributes(&ours), attributes(&theirs), "{options}");
    }
}

#[test]
fn entry_requests_equal_those_of_ipset() {
    // ipset sends the flag EXIST; we omit NLM_F_EXCL.
    let compare = |command: &str, number, name, list: &[IpsetEntry]| {
        let (theirs, mut ours) = (captured::sent(CAPTURED, command), Vec::new());
        assert_eq!(codec::write_entries(&mut ours, number, name, list), list.len());
        assert_eq!(ours[4..8], theirs[4..8], "{command}");
        let data = |message: &[u8]| {
            let attributes = crate::attr::attrs(&message[20..]);
            let lists = attributes.flat_map(|attr| match attr.kind {
                abi::attr::ADT => attr.nested().collect(),
                abi::attr::DATA => vec![attr],
                _ => vec![],
            });
            let fields = |entry: crate::attr::Attr<'_>| {
                let fields = entry.nested().filter(|field| field.kind != abi::attr::LINENO);
                fields.map(|field| (field.kind, field.payload.to_vec())).collect::<Vec<_>>()
            };
            lists.map(fields).collect::<Vec<_>>()
        };
        assert_eq!(data(&ours), data(&theirs), "{command}");
    };
    for (name, text, entry) in entries() {
        compare(&format!("ipset -exist add {name} {text}"), cmd::ADD, name, &[entry]);
    }
    let delete = "ipset -exist del FAIRLEAD-VIPS 10.96.0.11,tcp:80";
    compare(delete, cmd::DELETE, "FAIRLEAD-VIPS", &[entry("10.96.0.11", 6, 80)]);
}

#[test]
fn entries_of_all_types_are_read_as_written() {
    in_netns(|| {
        let mut handle = IpsetHandle::open().unwrap();
        let kinds = [IpsetType::IpPort, IpsetType::IpPortNet, IpsetType::NetPort, IpsetType::IpPortIp, IpsetType::Ip];
        for ((name, text, entry), kind) in entries().into_iter().zip(kinds) {
            let family = if name.contains("-6-") { IpFamily::V6 } else { IpFamily::V4 };
            let has_marks = entry.mark.is_some();
            handle.create(&new_set(name, kind, family, has_marks)).unwrap();
            assert!(handle.create(&new_set(name, kind, family, has_marks)).is_err(), "{name} exists");
            assert_eq!(handle.add(name, &[entry]), Ok(vec![]), "{name}");
            assert_eq!(handle.add(name, &[entry]), Ok(vec![]), "{name}, again");
            let list = Command::new("ipset").args(["list", name]).output().unwrap();
            assert!(String::from_utf8_lossy(&list.stdout).contains(text), "{name}: {list:?}");
            assert_eq!(handle.entries(name), Ok(vec![entry]), "{name}");
        }
        let sizes = handle.sizes().unwrap();
        assert!(sizes.len() == 5 && sizes.iter().all(|(_, size)| *size == 1), "{sizes:?}");
    });
}

#[test]
fn a_rejected_entry_does_not_stop_the_others() {
    in_netns(|| {
        let mut handle = IpsetHandle::open().unwrap();
        let set = new_set("FAIRLEAD-VIPS", IpsetType::IpPort, IpFamily::V4, true);
        handle.create(&set).unwrap();
        let vip = |number: u32, mark| {
            let ip = Some(std::net::Ipv4Addr::from_bits(0x0a60_0000 + number).into());
            IpsetEntry { ip, mark: Some(mark), ..entry("10.96.0.0", 6, 80) }
        };
        let mut list: Vec<IpsetEntry> = (0..10_000).map(|number| vip(number, number)).collect();
        // Entries of the other family: the first, one near the end of a message, and the last.
        for at in [0, 1_500, 9_999] {
            list[at].ip = Some("fd00::1".parse().unwrap());
        }
        let rejected = handle.add("FAIRLEAD-VIPS", &list).unwrap();
        assert_eq!(rejected.iter().map(|entry| entry.index).collect::<Vec<_>>(), [0, 1_500, 9_999]);
        let found = handle.entries("FAIRLEAD-VIPS").unwrap();
        assert_eq!(found.len(), 9_997);
        assert!(found.iter().all(|entry| list.contains(entry)));

        // Another mark replaces the first.
        assert_eq!(handle.add("FAIRLEAD-VIPS", &[vip(7, 70)]), Ok(vec![]));
        assert!(handle.entries("FAIRLEAD-VIPS").unwrap().contains(&vip(7, 70)));
        let rest = [vip(7, 0), vip(8, 0)];
        list.retain(|entry| entry.ip.unwrap().is_ipv4() && rest.iter().all(|rest| rest.ip != entry.ip));
        assert_eq!(handle.delete("FAIRLEAD-VIPS", &list), Ok(vec![]));
        assert_eq!(handle.delete("FAIRLEAD-VIPS", &list[..1]), Ok(vec![]), "deleted already");
        assert_eq!(handle.sizes().unwrap()[0].1, 2);
        assert!(handle.add("missing", &rest).unwrap_err().is_not_found());
    });
}

#[test]
fn entries_are_found_as_rules_find_them() {
    in_netns(|| {
        let mut handle = IpsetHandle::open().unwrap();
        for args in [
            "create ports bitmap:port range 80-90",
            "add ports 81",
            "create vips hash:ip,port",
            "add vips 10.96.0.10,tcp:80",
            "create sources hash:ip,port,net",
            "add sources 10.96.0.10,tcp:80,192.0.2.0/24",
            "add sources 10.96.0.10,tcp:80,192.0.2.128/25 nomatch",
        ] {
            let status = Command::new("ipset").args(args.split_whitespace()).status().unwrap();
            assert!(status.success(), "{args}");
        }
        let source = |ip: &str| IpsetEntry { ip2: Some(ip.parse().unwrap()), ..entry("10.96.0.10", 6, 80) };
        for (set, asked, expected) in [
            ("ports", port(81), true),
            ("ports", port(82), false),
            ("ports", port(443), false),
            ("vips", entry("10.96.0.10", 6, 80), true),
            ("vips", entry("10.96.0.10", 17, 80), false),
            ("sources", source("192.0.2.7"), true),
            ("sources", source("192.0.2.200"), false),
            ("sources", source("192.0.3.7"), false),
        ] {
            assert_eq!(handle.contains(set, &asked), Ok(expected), "{set} {asked:?}");
        }
        assert!(handle.contains("missing", &port(80)).unwrap_err().is_not_found());
    });
}

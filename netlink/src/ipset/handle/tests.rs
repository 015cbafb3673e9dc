//! What ipset sends and reads, against what we do (`captured/ipset-7.17.txt`), and sets of its in the kernel.

use std::process::Command;

use super::*;
use crate::{captured, ipset::Family, message::messages, testing::in_netns};

const CAPTURED: &str = include_str!("../captured/ipset-7.17.txt");

fn set(name: &str, kind: &str, family: Option<Family>) -> Set {
    Set { name: name.into(), kind: kind.into(), family }
}

/// The sets that both the captured commands and the test in the kernel make.
fn sets() -> [Set; 3] {
    [
        set("KUBE-CLUSTER-IP", "hash:ip,port", Some(Family::V4)),
        set("KUBE-NODE-PORT-TCP", "bitmap:port", None),
        set("KUBE-6-NODE-PORT-SCTP-HASH", "hash:ip,port", Some(Family::V6)),
    ]
}

fn entry(ip: &str, protocol: u8, port: u16) -> Entry {
    Entry { ip: Some(ip.parse().unwrap()), protocol: Some(protocol), port: Some(port) }
}

fn port(port: u16) -> Entry {
    Entry { port: Some(port), ..Entry::default() }
}

/// The payloads of what the command read about sets.
fn answers(command: &str) -> Vec<Vec<u8>> {
    let datagrams = captured::read(CAPTURED, command);
    let messages = datagrams.iter().flat_map(|datagram| messages(datagram));
    let lists = messages.filter(|message| message.kind == abi::SUBSYSTEM | abi::cmd::LIST);
    lists.map(|message| message.payload.to_vec()).collect()
}

#[test]
fn sets_and_entries_are_read_as_ipset_prints_them() {
    let headers: Vec<_> =
        answers("ipset list -terse").iter().map(|payload| codec::read_set(payload)).collect();
    assert_eq!(headers, sets().map(Some));
    let whole = answers("ipset list");
    let entries: Vec<_> = whole.iter().map(|payload| codec::read_entries(payload).unwrap()).collect();
    let expected = [
        vec![entry("10.96.0.10", 6, 80)],
        vec![port(30080), port(30443)],
        vec![entry("fd00::1", 132, 30080)],
    ];
    assert_eq!(entries, expected);
    assert_eq!(codec::read_set(&whole[0][..20]), None);
}

#[test]
fn requests_are_those_of_ipset() {
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
        let mut handle = Handle::open().unwrap();
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
        // More than one datagram holds.
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

        assert_eq!(handle.destroy("KUBE-NODE-PORT-TCP"), Ok(Destroyed::Done));
        assert_eq!(handle.destroy("KUBE-NODE-PORT-TCP"), Ok(Destroyed::Done), "gone already");
        assert_eq!(handle.destroy("KUBE-CLUSTER-IP"), Ok(Destroyed::InUse));
        assert_eq!(handle.destroy("lists"), Ok(Destroyed::Done));
        assert_eq!(handle.destroy("KUBE-CLUSTER-IP"), Ok(Destroyed::Done));
        assert_eq!(handle.sets().unwrap(), sets()[2..]);
    });
}

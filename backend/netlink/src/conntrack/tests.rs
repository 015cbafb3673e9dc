//! Against the kernel: flows of real packets and of the `conntrack` command, in a network namespace of their own.

pub(super) mod captured;

use std::{net::UdpSocket, process::Command};

use ::proto::model::IpFamily;

use super::{
    Stage::{Closing, HalfOpen, Open},
    handle::Filter,
    *,
};
use crate::testing::in_netns;

/// Runs a program in the thread's network namespace and returns its output.
fn run(program: &str, args: &str) -> String {
    let output = Command::new(program).args(args.split_whitespace()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a flow from 10.0.0.1 or fd00::1 to a VIP, with an endpoint behind it.
fn insert(protocol: &str, port: u16, more: &str) {
    let args = format!(
        "-I -p {protocol} -s 10.0.0.1 -d 10.96.0.10 --sport {port} --dport 53 --timeout 60 \
         -r 10.244.0.5 -q 10.0.0.1 --reply-port-src 5353 --reply-port-dst {port} {more}"
    );
    run("conntrack", &args);
}

fn list(handle: &mut ConntrackHandle, family: IpFamily) -> Vec<Flow> {
    let mut list = Vec::new();
    handle
        .flows(family, Protocol::Udp, |flow| {
            list.push(flow);
            Ok(())
        })
        .unwrap();
    list.sort_by_key(|flow| flow.original.source);
    list
}

fn all_entries() -> Vec<Entry> {
    let mut list = Vec::new();
    let visit = |entry: &Entry| {
        list.push(*entry);
        Ok(())
    };
    ConntrackHandle::open().unwrap().entries(visit).unwrap();
    list
}

#[test]
fn only_udp_of_the_family_is_dumped_from_all_zones() {
    in_netns(|| {
        insert("udp", 4000, "");
        insert("udp", 4001, "-w 7");
        insert("udp", 4002, "--orig-zone 8");
        insert("tcp", 4000, "--state ESTABLISHED");
        run(
            "conntrack",
            "-I -p udp -s fd00::1 -d fd00:96::a --sport 4003 --dport 53 --timeout 60 \
             -r fd00:244::5 -q fd00::1 --reply-port-src 5353 --reply-port-dst 4003",
        );
        let mut handle = ConntrackHandle::open().unwrap();
        let seen =
            |list: Vec<Flow>| -> Vec<_> { list.iter().map(|flow| (flow.original.source.port(), flow.zone)).collect() };
        let expected =
            [(4000, ConntrackZone::Both(0)), (4001, ConntrackZone::Both(7)), (4002, ConntrackZone::Original(8))];
        assert_eq!(seen(list(&mut handle, IpFamily::V4)), expected);
        let v6 = list(&mut handle, IpFamily::V6);
        assert_eq!(v6[0].reply.source, "[fd00:244::5]:5353".parse().unwrap());
        assert_eq!(seen(v6), [(4003, ConntrackZone::Both(0))]);

        // A dump that the kernel filters has the same flows as one that this crate filters.
        assert_eq!(handle.filter, Filter::Kernel);
        let mut own = ConntrackHandle::open().unwrap();
        own.filter = Filter::Client;
        assert_eq!(list(&mut own, IpFamily::V4), list(&mut handle, IpFamily::V4));

        // Deleting them deletes no other flow.
        for family in [IpFamily::V4, IpFamily::V6] {
            let flows = list(&mut handle, family);
            assert_eq!(handle.delete(&flows), Ok(flows.len()));
            assert_eq!(list(&mut handle, family), []);
            assert_eq!(handle.delete(&flows), Ok(0), "deleted already");
        }
        assert_eq!(run("conntrack", "-L").lines().count(), 1, "the TCP connection");
    });
}

#[test]
fn only_an_answered_open_tcp_connection_is_established() {
    in_netns(|| {
        insert("tcp", 1, "--state ESTABLISHED -u SEEN_REPLY,ASSURED");
        insert("tcp", 2, "--state ESTABLISHED");
        insert("tcp", 3, "--state SYN_SENT");
        insert("tcp", 4, "--state CLOSE_WAIT -u SEEN_REPLY,ASSURED");
        let mut list = Vec::new();
        let visit = |flow: Flow| {
            list.push((flow.original.source.port(), flow.is_established));
            Ok(())
        };
        ConntrackHandle::open().unwrap().flows(IpFamily::V4, Protocol::Tcp, visit).unwrap();
        list.sort_unstable();
        assert_eq!(list, [(1, true), (2, false), (3, false), (4, false)]);
    });
}

#[test]
fn only_a_tcp_connection_without_an_answer_is_half_open() {
    in_netns(|| {
        insert("tcp", 1, "--state SYN_SENT");
        insert("tcp", 2, "--state SYN_SENT -u SEEN_REPLY");
        insert("tcp", 3, "--state SYN_RECV -u SEEN_REPLY");
        insert("tcp", 4, "--state ESTABLISHED");
        insert("tcp", 5, "--state CLOSE");
        insert("udp", 6, "");
        insert("tcp", 7, "--state SYN_SENT -w 7");
        for filter in [Filter::Kernel, Filter::Client] {
            let mut handle = ConntrackHandle::open().unwrap();
            handle.filter = filter;
            let mut list = Vec::new();
            let visit = |flow: Flow| {
                list.push(flow);
                Ok(())
            };
            handle.half_open(IpFamily::V4, visit).unwrap();
            list.sort_by_key(|flow| flow.original.source);
            let ports: Vec<_> = list.iter().map(|flow| flow.original.source.port()).collect();
            assert_eq!((ports, handle.filter), (vec![1, 7], filter));
            for flow in &list {
                assert!(flow.is_half_open && !flow.is_established);
                assert_eq!(handle.find(flow), Ok(Some(*flow)));
                assert_eq!(handle.find(&Flow { id: !flow.id, ..*flow }), Ok(None), "a later one");
            }
            let mut answered = Vec::new();
            let visit = |flow: Flow| {
                answered.extend((flow.original.source.port() == 3).then_some(flow));
                Ok(())
            };
            handle.flows(IpFamily::V4, Protocol::Tcp, visit).unwrap();
            assert!(!answered[0].is_half_open);
            assert_eq!(handle.find(&answered[0]), Ok(Some(answered[0])));
            run("conntrack", "-D -p tcp --sport 1");
            assert_eq!(handle.find(&list[0]), Ok(None));
            insert("tcp", 1, "--state SYN_SENT");
        }
    });
}

#[test]
fn entries_of_both_families_are_listed_with_stage_and_traffic() {
    in_netns(|| {
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_acct", "1").unwrap();
        insert("tcp", 1, "--state SYN_SENT");
        insert("tcp", 2, "--state SYN_RECV -u SEEN_REPLY");
        insert("tcp", 3, "--state ESTABLISHED -u SEEN_REPLY,ASSURED");
        insert("tcp", 12, "--state ESTABLISHED -u SEEN_REPLY,ASSURED -w 7");
        insert("tcp", 13, "--state ESTABLISHED -u SEEN_REPLY,ASSURED --orig-zone 8");
        insert("tcp", 4, "--state CLOSE_WAIT -u SEEN_REPLY,ASSURED");
        insert("tcp", 5, "--state TIME_WAIT -u SEEN_REPLY,ASSURED");
        insert("udp", 6, "");
        insert("udp", 7, "-u SEEN_REPLY");
        let sctp = |state: &str| format!("--state {state} --orig-vtag 1 --reply-vtag 2");
        insert("sctp", 8, &sctp("COOKIE_WAIT"));
        insert("sctp", 9, &sctp("ESTABLISHED"));
        insert("sctp", 10, &sctp("SHUTDOWN_SENT"));
        run("conntrack", "-I -p icmp -s 10.0.0.1 -d 10.0.0.2 --icmp-type 8 --icmp-code 0 --icmp-id 1 --timeout 60");
        run(
            "conntrack",
            "-I -p tcp -s fd00::1 -d fd00:96::a --sport 11 --dport 53 --timeout 60 --state ESTABLISHED \
             -r fd00:244::5 -q fd00::1 --reply-port-src 5353 --reply-port-dst 11",
        );

        let mut list = all_entries();
        list.sort_by_key(|entry| entry.original.source.port());
        let seen: Vec<_> = list.iter().map(|entry| (entry.original.source.port(), entry.stage)).collect();
        let expected = [
            (1, HalfOpen),
            (2, HalfOpen),
            (3, Open),
            (4, Closing),
            (5, Closing),
            (6, HalfOpen),
            (7, Open),
            (8, HalfOpen),
            (9, Open),
            (10, Closing),
            (11, Open),
        ];
        assert_eq!(seen, expected);
        assert_eq!(list[10].reply.source, "[fd00:244::5]:5353".parse().unwrap());
        assert_eq!(list[0].traffic, Some(Traffic::default()));
    });
}

#[test]
fn traffic_of_both_directions_is_counted() {
    in_netns(|| {
        run("ip", "link set lo up");
        // The kernel tracks connections only for a rule.
        run("nft", "add table ip t");
        run("nft", "add chain ip t out { type filter hook output priority 0 ; }");
        run("nft", "add rule ip t out ct state new counter");
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_acct", "1").unwrap();
        let server = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let client = UdpSocket::bind("127.0.0.1:4000").unwrap();
        client.send_to(b"ping", server.local_addr().unwrap()).unwrap();
        server.recv(&mut [0; 4]).unwrap();
        server.send_to(b"pong", client.local_addr().unwrap()).unwrap();

        let list = all_entries();
        // IP and UDP have headers of 20 and 8 bytes.
        let traffic = Traffic { packets: 2, bytes: 2 * (20 + 8 + 4) };
        assert_eq!((list[0].traffic, list[0].stage), (Some(traffic), Open));
    });
}

#[test]
fn deleting_an_old_flow_keeps_a_new_one_with_the_same_tuples() {
    in_netns(|| {
        let mut handle = ConntrackHandle::open().unwrap();
        insert("udp", 4000, "");
        let old = list(&mut handle, IpFamily::V4);
        run("conntrack", "-F");
        insert("udp", 4000, "");
        let new = list(&mut handle, IpFamily::V4);
        assert_eq!(old[0].original, new[0].original);
        if old[0].id != new[0].id {
            assert_eq!(handle.delete(&old), Ok(0));
            assert_eq!(list(&mut handle, IpFamily::V4), new);
        }
        let other = Flow { id: !new[0].id, ..new[0] };
        assert_eq!(handle.delete(&[other, new[0], other]), Ok(1), "between two missing flows");
        assert_eq!(list(&mut handle, IpFamily::V4), []);
    });
}

#[test]
fn a_translated_flow_is_listed_with_both_tuples() {
    in_netns(|| {
        run("ip", "link set lo up");
        run("nft", "add table ip t");
        run("nft", "add chain ip t out { type nat hook output priority -100 ; }");
        run("nft", "add rule ip t out ip daddr 127.0.0.10 udp dport 53 dnat to 127.0.0.1:5353");
        let server = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let client = UdpSocket::bind("127.0.0.1:4000").unwrap();
        client.send_to(b"ping", "127.0.0.10:53").unwrap();
        server.recv(&mut [0; 4]).unwrap();
        let mut handle = ConntrackHandle::open().unwrap();
        let flows = list(&mut handle, IpFamily::V4);
        let address = |text: &str| text.parse().unwrap();
        let expected = Flow {
            protocol: Protocol::Udp,
            original: Tuple { source: address("127.0.0.1:4000"), destination: address("127.0.0.10:53") },
            reply: Tuple { source: address("127.0.0.1:5353"), destination: address("127.0.0.1:4000") },
            ..flows[0]
        };
        assert_eq!(flows, [expected]);
        assert_eq!(handle.delete(&flows), Ok(1));
        assert_eq!(list(&mut handle, IpFamily::V4), []);
    });
}

#[test]
fn an_aborted_dump_does_not_disturb_the_next() {
    in_netns(|| {
        let lines: String = (1..=1000).map(line).collect();
        load(&lines);
        let (mut handle, mut seen) = (ConntrackHandle::open().unwrap(), 0);
        let stopped = handle.flows(IpFamily::V4, Protocol::Udp, |_| {
            seen += 1;
            if seen < 10 { Ok(()) } else { Err(crate::Error::Malformed("stop")) }
        });
        assert_eq!((stopped, seen), (Err(crate::Error::Malformed("stop")), 10));
        assert_eq!(list(&mut handle, IpFamily::V4).len(), 1000);
    });
}

/// Deletes the flows during the dump, in batches.
#[test]
fn a_hundred_thousand_flows_need_a_small_buffer() {
    const FLOWS: usize = 100_000;
    in_netns(|| {
        load(&(1..=FLOWS).map(line).collect::<String>());
        let (mut reader, mut deleter) = (ConntrackHandle::open().unwrap(), ConntrackHandle::open().unwrap());
        let (mut batch, mut deleted, mut seen) = (Vec::with_capacity(256), 0, 0);
        let result = reader.flows(IpFamily::V4, Protocol::Udp, |flow| {
            seen += 1;
            batch.push(flow);
            if batch.len() == 256 {
                deleted += deleter.delete(&batch)?;
                batch.clear();
            }
            Ok(())
        });
        assert_eq!(result, Ok(()));
        deleted += deleter.delete(&batch).unwrap();
        assert!(seen >= FLOWS, "{seen}");
        assert_eq!(deleted, FLOWS);
        assert_eq!(list(&mut reader, IpFamily::V4), []);
        assert!(reader.buf.capacity() + deleter.buf.capacity() < 128 << 10, "requests of a bounded size");
    });
}

/// The command that creates the flow of this number, in the format of `conntrack -R`.
fn line(number: usize) -> String {
    let (host, port) = (number / 50_000 + 1, number % 50_000 + 1000);
    format!(
        "-I -p udp -s 10.0.0.{host} -d 10.96.0.10 --sport {port} --dport 53 --timeout 600 \
         -r 10.244.0.5 -q 10.0.0.{host} --reply-port-src 5353 --reply-port-dst {port}\n"
    )
}

fn load(lines: &str) {
    let path =
        std::env::temp_dir().join(format!("fairlead-flows-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&path, lines).unwrap();
    let output = Command::new("conntrack").arg("-R").arg(&path).output();
    std::fs::remove_file(&path).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_flow_of_any_protocol_is_looked_up() {
    in_netns(|| {
        insert("udp", 4000, "");
        insert("tcp", 4001, "--state ESTABLISHED");
        let mut handle = ConntrackHandle::open().unwrap();
        let original = |port| Tuple {
            source: format!("10.0.0.1:{port}").parse().unwrap(),
            destination: "10.96.0.10:53".parse().unwrap(),
        };
        let endpoint = "10.244.0.5:5353".parse().unwrap();
        for (protocol, port) in [(17, 4000), (6, 4001)] {
            let reply = handle.reply(protocol, &original(port)).unwrap().unwrap();
            assert_eq!((reply.source, reply.destination), (endpoint, original(port).source));
        }
        assert_eq!(handle.reply(6, &original(4000)), Ok(None), "a flow of another protocol");
    });
}

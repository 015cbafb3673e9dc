//! Requests and replies compared with those of the `conntrack` command: `captured/conntrack-1.4.7.txt`.

use ::proto::model::Protocol;

use crate::{
    conntrack::{
        ConntrackZone, Flow, Tuple, abi,
        flow::{self, DumpedFlow},
    },
    message::{self, flags, messages},
};

const CAPTURED: &str = include_str!("../captured/conntrack-1.4.7.txt");

/// The last datagram that the command sent.
pub(in crate::conntrack) fn sent(command: &str) -> Vec<u8> {
    crate::tests::captured::sent(CAPTURED, command)
}

fn flows(command: &str) -> Vec<Flow> {
    let mut list = Vec::new();
    for datagram in crate::tests::captured::read(CAPTURED, command) {
        for message in messages(&datagram).filter(|message| message.kind > message::DONE) {
            match flow::read(message.payload) {
                Some(DumpedFlow::Open(flow)) => list.push(flow),
                other => panic!("{other:?}"),
            }
        }
    }
    list
}

fn tuple(source: &str, destination: &str) -> Tuple {
    Tuple { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

fn in_zone_7() -> Flow {
    Flow {
        protocol: Protocol::Udp,
        original: tuple("10.0.0.1:4000", "10.96.0.10:53"),
        reply: tuple("10.244.0.5:5353", "10.0.0.1:4000"),
        id: flows("conntrack -D -p udp -s 10.0.0.1")[0].id,
        zone: ConntrackZone::Both(7),
        is_established: false,
        is_half_open: false,
    }
}

#[test]
fn flows_are_read_as_conntrack_prints_them() {
    let v6 = |id| Flow {
        protocol: Protocol::Udp,
        original: tuple("[fd00::1]:4000", "[fd00:96::a]:53"),
        reply: tuple("[fd00:244::5]:5353", "[fd00::1]:4000"),
        id,
        zone: ConntrackZone::Both(0),
        is_established: false,
        is_half_open: false,
    };
    let both = flows("conntrack -L -p udp");
    assert_ne!(both[0].id, both[1].id);
    let v4 = |id| Flow { id, ..in_zone_7() };
    let expected = |flow: &Flow| if flow.original.source.is_ipv4() { v4(flow.id) } else { v6(flow.id) };
    assert_eq!(both, both.iter().map(expected).collect::<Vec<_>>());
    assert_eq!(both.len(), 2);
    let only = flows("conntrack -L -f ipv6 -p udp");
    assert_eq!(only, [v6(only[0].id)]);
}

/// The `conntrack` command sends all attributes that it read, we only the tuple (in the same bytes) and the id.
#[test]
fn a_deletion_identifies_the_flow_as_conntrack_does() {
    let theirs = sent("conntrack -D -p udp -s 10.0.0.1");
    let mut ours = Vec::new();
    flow::write_request(&mut ours, abi::msg::DELETE, &in_zone_7(), flags::ACK, 1);
    assert_eq!(ours[4..8], theirs[4..8], "type and flags");
    assert_eq!(ours[16..20 + 52], theirs[16..20 + 52], "family and tuple");
    let attribute = |bytes: &[u8], kind| crate::attr::attrs(&bytes[20..]).find(kind).map(|attr| attr.payload.to_vec());
    let zone = attribute(&theirs, abi::ZONE);
    assert_eq!(zone.as_deref(), Some(&[0, 7][..]));
    assert_eq!(attribute(&ours, abi::ZONE), zone);
    assert_eq!(attribute(&ours, abi::ID), Some(in_zone_7().id.to_be_bytes().to_vec()));
}

#[test]
fn a_truncated_message_is_no_flow() {
    let datagram = crate::tests::captured::read(CAPTURED, "conntrack -L -f ipv6 -p udp").remove(0);
    let payload = messages(&datagram).next().unwrap().payload;
    // All attributes up to the end of the id are required.
    let whole = payload.len();
    assert!(flow::read(&payload[..whole - 50]).is_none());
    assert!((0..150).all(|len| flow::read(&payload[..len]).is_none()));
}

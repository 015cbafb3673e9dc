//! Requests and replies compared with those of ipvsadm (`captured/ipvsadm-1.31.txt`). The tests of `e2e` use a kernel
//! with IPVS.

use proto::model::{IpFamily, Protocol};

use super::*;
use crate::{
    ipvs::{PERSISTENT, SCHED_FALLBACK, SCHED_PORT},
    message::messages,
    tests::captured,
};

const CAPTURED: &str = include_str!("../captured/ipvsadm-1.31.txt");

fn web() -> VirtualServerKey {
    VirtualServerKey::Address(Protocol::Tcp, "10.96.0.10:80".parse().unwrap())
}

fn dns() -> VirtualServerKey {
    VirtualServerKey::Address(Protocol::Udp, "[fd00:10:96::a]:53".parse().unwrap())
}

fn destination(address: &str, weight: u32) -> Destination {
    Destination::new(address.parse().unwrap(), weight)
}

fn scheduling(scheduler: &str, flags: u32, timeout: u32) -> Scheduling {
    Scheduling { scheduler: scheduler.into(), flags, timeout }
}

/// The payloads of the replies with this command of IPVS.
fn replies(command: u8) -> Vec<Vec<u8>> {
    let datagrams = captured::read(CAPTURED, "ipvsadm -Ln");
    let messages = datagrams.iter().flat_map(|datagram| messages(datagram));
    let of_ipvs = messages.filter(|message| message.kind == 0x1c && message.payload[0] == command);
    of_ipvs.map(|message| message.payload.to_vec()).collect()
}

#[test]
fn virtual_servers_are_read_as_ipvsadm_prints_them() {
    // The kernel replies with IPVS_CMD_NEW_SERVICE.
    let list: Vec<_> = replies(1).iter().map(|payload| codec::read_service(payload)).collect();
    assert_eq!(list.len(), 3);
    for service in [web(), dns(), VirtualServerKey::FwMark(IpFamily::V4, 7)] {
        assert!(list.contains(&Some(service)), "{service}: {list:?}");
    }
    assert_eq!(dns().to_string(), "udp [fd00:10:96::a]:53");
}

#[test]
fn destinations_are_read_as_ipvsadm_prints_them() {
    // The kernel replies with IPVS_CMD_NEW_DEST.
    let replies = replies(5);
    let v4: Vec<_> = replies[..2].iter().map(|payload| codec::read_destination(payload)).collect();
    assert_eq!(v4, [Some(destination("10.244.0.3:8080", 0)), Some(destination("10.244.0.2:8080", 1))]);
    let v6 = codec::read_destination(&replies[2]);
    assert_eq!(v6, Some(destination("[fd00:10:244::2]:5353", 1)));
    assert!((0..60).all(|len| codec::read_destination(&replies[2][..len]).is_none()));
}

#[test]
fn the_key_of_a_virtual_server_equals_that_of_ipvsadm() {
    for (command, service) in [("ipvsadm -D -t 10.96.0.10:80", web()), ("ipvsadm -D -u [fd00:10:96::a]:53", dns())] {
        let theirs = captured::sent(CAPTURED, command);
        let mut ours = Vec::new();
        genl::put(&mut ours, 0x1c, cmd::DEL_SERVICE, flags::ACK, 1, |buf| codec::write_service(buf, &service));
        assert_eq!((&ours[4..8], &ours[16..20]), (&theirs[4..8], &theirs[16..20]));
        // Behind the length of the nested attribute: ipvsadm appends more, which a deletion does not need.
        assert_eq!(ours[22..], theirs[22..ours.len()]);
    }
}

#[test]
fn the_request_for_destinations_equals_that_of_ipvsadm() {
    let theirs = captured::datagrams(CAPTURED, "ipvsadm -Ln", "> ");
    for service in [web(), dns(), VirtualServerKey::FwMark(IpFamily::V4, 7)] {
        let mut ours = Vec::new();
        genl::put(&mut ours, 0x1c, cmd::GET_DEST, flags::DUMP, 1, |buf| codec::write_service(buf, &service));
        assert!(theirs.iter().any(|theirs| theirs.get(16..) == ours.get(16..)), "{service}");
    }
}

#[test]
fn the_change_of_a_destination_has_the_attributes_of_ipvsadm() {
    let cases = [
        ("ipvsadm -e -t 10.96.0.10:80 -r 10.244.0.2:8080 -m -w 0", "10.244.0.2:8080"),
        ("ipvsadm -e -u [fd00:10:96::a]:53 -r [fd00:10:244::2]:5353 -m -w 0", "[fd00:10:244::2]:5353"),
    ];
    for (command, address) in cases {
        let theirs = captured::sent(CAPTURED, command);
        let mut ours = Vec::new();
        codec::write_destination(&mut ours, &destination(address, 0));
        let read = |nest: &[u8]| {
            let mut list: Vec<_> = crate::attr::attrs(nest).map(|attr| (attr.kind, attr.payload.to_vec())).collect();
            list.sort();
            list
        };
        let theirs = crate::attr::attrs(&theirs[20..]).find(abi::DEST).unwrap();
        let ours = crate::attr::attrs(&ours).find(abi::DEST).unwrap();
        let theirs = read(theirs.payload);
        for attribute in read(ours.payload) {
            assert!(theirs.contains(&attribute), "{attribute:?} of {theirs:?}");
        }
    }
}

/// All attributes, including nested ones, sorted.
fn attributes(message: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let nests = crate::attr::attrs(&message[20..]);
    let mut list: Vec<_> =
        nests.flat_map(|nest| nest.nested().map(move |attr| (nest.kind, attr.kind, attr.payload.to_vec()))).collect();
    list.sort();
    list
}

#[test]
fn commands_equal_those_of_ipvsadm() {
    let rr = |flags, timeout| scheduling("rr", flags, timeout);
    let mark = VirtualServerKey::FwMark(IpFamily::V6, 8);
    for (line, command) in [
        ("ipvsadm -A -t 10.96.0.10:80 -s rr -p 10800", IpvsCommand::AddServer(web(), rr(PERSISTENT, 10_800))),
        (
            "ipvsadm -A -u [fd00:10:96::a]:53 -s mh -b mh-fallback,mh-port",
            IpvsCommand::AddServer(dns(), scheduling("mh", SCHED_FALLBACK | SCHED_PORT, 0)),
        ),
        ("ipvsadm -A -f 7 -s rr", IpvsCommand::AddServer(VirtualServerKey::FwMark(IpFamily::V4, 7), rr(0, 0))),
        ("ipvsadm -A -f 8 -6 -s rr", IpvsCommand::AddServer(mark, rr(0, 0))),
        ("ipvsadm -E -t 10.96.0.10:80 -s wrr", IpvsCommand::SetServer(web(), scheduling("wrr", 0, 0))),
        (
            "ipvsadm -a -t 10.96.0.10:80 -r 10.244.0.2:8080 -m",
            IpvsCommand::AddDestination(web(), destination("10.244.0.2:8080", 1)),
        ),
        (
            "ipvsadm -a -f 8 -6 -r [fd00:10:244::2]:5353 -m",
            IpvsCommand::AddDestination(mark, destination("[fd00:10:244::2]:5353", 1)),
        ),
        (
            "ipvsadm -d -t 10.96.0.10:80 -r 10.244.0.2:8080",
            IpvsCommand::DeleteDestination(web(), "10.244.0.2:8080".parse().unwrap()),
        ),
    ] {
        let theirs = captured::sent(CAPTURED, line);
        let mut ours = Vec::new();
        command.write(&mut ours, 0x1c, 1, flags::ACK);
        assert_eq!((&ours[4..8], &ours[16..20]), (&theirs[4..8], &theirs[16..20]), "{line}");
        let theirs = attributes(&theirs);
        for attribute in attributes(&ours) {
            // The kernel ignores the settings of a destination to delete.
            let is_said = theirs.contains(&attribute);
            let is_of_none = matches!(command, IpvsCommand::DeleteDestination(..))
                && [abi::dest::WEIGHT, abi::dest::FWD_METHOD].contains(&attribute.1);
            assert!(is_said || is_of_none, "{line}: {attribute:?} of {theirs:?}");
        }
    }
}

#[test]
fn the_scheduling_of_virtual_servers_is_read() {
    let list: Vec<_> = replies(1)
        .iter()
        .map(|payload| (codec::read_service(payload).unwrap(), codec::read_scheduling(payload).unwrap()))
        .collect();
    assert!(list.contains(&(web(), scheduling("rr", PERSISTENT, 10_800))), "{list:?}");
    assert!(list.contains(&(dns(), scheduling("rr", 0, 0))), "{list:?}");
}

#[test]
fn timeouts_equal_those_of_ipvsadm() {
    let timeouts = IpvsTimeouts { tcp: 900, tcp_fin: 120, udp: 300 };
    let theirs = captured::sent(CAPTURED, "ipvsadm --set 900 120 300");
    let mut ours = Vec::new();
    genl::put(&mut ours, 0x1c, cmd::SET_CONFIG, flags::ACK, 1, |buf| codec::write_timeouts(buf, &timeouts));
    assert_eq!((&ours[4..8], &ours[16..]), (&theirs[4..8], &theirs[16..]));
    let reply = captured::read(CAPTURED, "ipvsadm -L --timeout").pop().unwrap();
    assert_eq!(codec::read_timeouts(messages(&reply).next().unwrap().payload), Some(timeouts));
}

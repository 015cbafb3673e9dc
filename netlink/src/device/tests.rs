//! What ip sends and reads, against what we do (`captured/iproute2-6.1.0.txt`), and what of it a kernel without dummy devices can try.

use std::process::Command;

use super::*;
use crate::{addresses::by_interface, captured, message::messages, testing::in_netns};

const CAPTURED: &str = include_str!("captured/iproute2-6.1.0.txt");
const NAME: &str = "fairlead-ipvs0";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// From the type on, without sequence number and port.
fn content(message: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (message[4..8].to_vec(), message[16..].to_vec())
}

#[test]
fn a_dummy_device_is_made_as_ip_does() {
    let mut ours = Vec::new();
    codec::write_create_dummy(&mut ours, NAME);
    let theirs = captured::sent(CAPTURED, "ip link add fairlead-ipvs0 type dummy");
    assert_eq!(content(&ours).0, content(&theirs).0, "type and flags");
    // The form of the kind, and that it comes up at once, is ours; the names are where ip has them.
    assert_eq!(ours[32..52], theirs[32..52]);
    assert!(ours.ends_with(b"dummy\0\0\0") && theirs.ends_with(b"dummy\0\0\0"));

    let mut ours = Vec::new();
    codec::write_up(&mut ours, 2);
    let theirs = captured::sent(CAPTURED, "ip link set fairlead-ipvs0 up");
    assert_eq!(content(&ours), content(&theirs));
}

#[test]
fn addresses_are_changed_as_ip_does() {
    let new = flags::REQUEST | flags::ACK | flags::CREATE | flags::EXCL;
    for (command, kind, message_flags, address) in [
        ("ip address add 10.96.0.10/32 scope host dev fairlead-ipvs0", abi::NEW_ADDRESS, new, "10.96.0.10"),
        (
            "ip address add fd00:10:96::a/128 dev fairlead-ipvs0 nodad noprefixroute preferred_lft 0",
            abi::NEW_ADDRESS,
            new,
            "fd00:10:96::a",
        ),
        (
            "ip address delete 10.96.0.10/32 dev fairlead-ipvs0",
            abi::DELETE_ADDRESS,
            flags::REQUEST | flags::ACK,
            "10.96.0.10",
        ),
    ] {
        let mut ours = Vec::new();
        let at = message::start(&mut ours, kind, message_flags, 1);
        codec::write_address(&mut ours, 2, ip(address));
        message::finish(&mut ours, at);
        let theirs = captured::sent(CAPTURED, command);
        let sorted = |message: &[u8]| {
            let mut list: Vec<_> =
                crate::attr::attrs(&message[24..]).map(|attr| (attr.kind, attr.payload.to_vec())).collect();
            list.sort();
            list
        };
        assert_eq!(ours[4..8], theirs[4..8], "{command}");
        assert_eq!(sorted(&ours), sorted(&theirs), "{command}");
        // A deletion names no scope with us: the kernel does not compare it. ip leaves its flags out of the header too.
        let header = |message: &[u8]| (message[16], message[17], message[20..24].to_vec());
        assert_eq!(header(&ours), header(&theirs), "{command}");
    }
}

#[test]
fn addresses_are_read_as_ip_prints_them() {
    let datagrams = captured::read(CAPTURED, "ip address show dev fairlead-ipvs0");
    let messages = datagrams.iter().flat_map(|datagram| messages(datagram));
    let list: Vec<_> = messages
        .filter(|message| message.kind == abi::NEW_ADDRESS)
        .map(|message| codec::read_address(message.payload))
        .collect();
    // The last is `fe80::`, which the kernel has made.
    assert_eq!(list, [Some((2, Some(ip("10.96.0.11")))), Some((2, Some(ip("fd00:10:96::a")))), Some((2, None))]);
    assert_eq!(codec::read_address(&[0; 7]), None);
}

/// It looks the name up first, in a message of the same form, and deletes by number.
#[test]
fn a_device_is_named_and_deleted_as_ip_does() {
    let theirs = captured::datagrams(CAPTURED, "ip link delete kube-ipvs0", "> ");
    let [.., get, delete] = &theirs[..] else { panic!("{theirs:?}") };
    let mut ours = Vec::new();
    codec::write_delete(&mut ours, "kube-ipvs0");
    assert_eq!(ours[4..8], delete[4..8], "type and flags");
    // Behind IFLA_EXT_MASK.
    assert_eq!(ours[32..], get[40..]);
}

#[test]
fn a_device_is_deleted_and_another_is_not() {
    in_netns(|| {
        for name in ["one", "two"] {
            let add = ["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-peer")];
            assert!(Command::new("ip").args(add).status().unwrap().success());
        }
        let mut handle = Handle::open().unwrap();
        assert_eq!(handle.delete_device("one"), Ok(()));
        let left: Vec<_> = by_interface().unwrap().into_keys().collect();
        assert_eq!(left, ["lo", "two", "two-peer"]);
        assert_eq!(handle.delete_device("one"), Ok(()), "gone already");
        assert!(handle.delete_device("lo").is_err_and(|error| error.is_not_supported()));
    });
}

#[test]
fn many_addresses_come_and_go() {
    in_netns(|| {
        let mut handle = Handle::open().unwrap();
        assert_eq!(handle.find("one"), Ok(None));
        let add = ["link", "add", "one", "type", "veth", "peer", "name", "other"];
        assert!(Command::new("ip").args(add).status().unwrap().success());
        let device = handle.find("one").unwrap().unwrap();
        assert_eq!(device.state, State::Down);
        handle.bring_up(device).unwrap();
        assert_eq!(handle.find("one").unwrap().unwrap().state, State::Up);

        let mut all: Vec<IpAddr> = (0..3000u32).map(|n| IpAddr::from((0x0a60_0000 + n).to_be_bytes())).collect();
        all.extend([ip("fd00:10:96::1"), ip("fd00:10:96::2")]);
        assert_eq!(handle.add(device, &all), Ok(vec![]));
        assert_eq!(handle.add(device, &all[1..3]), Ok(vec![]), "they are there");
        let sorted = |mut list: Vec<IpAddr>| {
            list.sort();
            list
        };
        assert_eq!(sorted(handle.addresses(device).unwrap()), sorted(all.clone()));
        let bad = [ip("10.96.100.1"), ip("ff02::1"), ip("10.96.100.2")];
        let refused = handle.add(device, &bad).unwrap();
        assert_eq!(refused.iter().map(|refused| refused.index).collect::<Vec<_>>(), [1]);
        assert_eq!(handle.delete(device, &bad), Ok(vec![]), "those that are there, and one that is not");
        assert_eq!(handle.delete(device, &all[..3001]), Ok(vec![]));
        assert_eq!(handle.addresses(device), Ok(vec![ip("fd00:10:96::2")]));
    });
}

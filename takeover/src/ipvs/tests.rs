//! What is kube-proxy's and what stays for its connections, decided on made-up tables. The kernel's part is tried in `e2e`, for few
//! kernels have IPVS.

use netlink::{ipset::IpsetEntry, ipvs::Destination, testing::in_netns};

use super::{plan::Place, *};
use crate::testing::run;

fn service(protocol: IpvsProtocol, address: &str) -> VirtualServerKey {
    VirtualServerKey::Address(protocol, address.parse().unwrap())
}

fn server(protocol: IpvsProtocol, address: &str, place: Place, active: u32, inactive: u32) -> Server {
    let destination = Destination {
        address: "10.244.1.5:8080".parse().unwrap(),
        forwarding: 0,
        weight: 1,
        upper_threshold: 0,
        lower_threshold: 0,
        active,
        inactive,
    };
    Server { service: service(protocol, address), place, destinations: vec![destination] }
}

fn sets(names: &[&str]) -> Vec<(Family, String)> {
    names.iter().map(|name| (names::family(name).unwrap(), (*name).to_owned())).collect()
}

fn whats(leftovers: &Leftovers) -> Vec<(String, usize)> {
    leftovers.items().into_iter().map(|item| (item.what, item.count)).collect()
}

#[test]
fn only_the_names_that_kube_proxy_gives_are_its() {
    for (name, family) in [
        ("KUBE-CLUSTER-IP", Some(Family::V4)),
        ("KUBE-6-CLUSTER-IP", Some(Family::V6)),
        // Cut to what the kernel takes.
        ("KUBE-6-LOAD-BALANCER-SOURCE-CID", Some(Family::V6)),
        ("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", Some(Family::V6)),
        ("KUBE-CLUSTER-IP-2", None),
        ("KUBE-ROUTER-PODS", None),
        ("KUBE-", None),
        ("CLUSTER-IP", None),
        ("kube-cluster-ip", None),
    ] {
        assert_eq!(names::family(name), family, "{name}");
    }
    assert!(names::holds_node_ports("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"));
    assert!(!names::holds_node_ports("KUBE-HEALTH-CHECK-NODE-PORT"), "those are no virtual servers");
    assert_eq!(names::protocol("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"), IpvsProtocol::Sctp);
    assert_eq!(names::protocol("KUBE-NODE-PORT-LOCAL-UDP"), IpvsProtocol::Udp);
}

#[test]
fn virtual_servers_are_its_by_address_or_by_port_of_the_node() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let device = HashSet::from([ip("10.96.0.10"), ip("fd00:10:96::a")]);
    let mut node_ports = NodePorts::new(HashSet::from([ip("172.16.0.11"), ip("fd00:172:16::11")]));
    let port = |ip, port| IpsetEntry { ip, port: Some(port), ..IpsetEntry::default() };
    node_ports.extend(Family::V4, IpvsProtocol::Tcp, &[port(None, 30080)]);
    node_ports.extend(Family::V4, IpvsProtocol::Sctp, &[port(Some(ip("172.16.0.11")), 30090)]);
    let place_of = |service| plan::place(&service, Some(&device), &node_ports);
    for (protocol, address, expected) in [
        (IpvsProtocol::Tcp, "10.96.0.10:80", Some(Place::Device)),
        (IpvsProtocol::Udp, "[fd00:10:96::a]:53", Some(Place::Device)),
        (IpvsProtocol::Tcp, "10.96.0.11:80", None),
        (IpvsProtocol::Tcp, "172.16.0.11:30080", Some(Place::NodePort)),
        (IpvsProtocol::Udp, "172.16.0.11:30080", None),
        (IpvsProtocol::Tcp, "172.16.0.11:30081", None),
        // The set is of the other family.
        (IpvsProtocol::Tcp, "[fd00:172:16::11]:30080", None),
        (IpvsProtocol::Sctp, "172.16.0.11:30090", Some(Place::NodePort)),
        (IpvsProtocol::Sctp, "172.16.0.11:30080", None),
        // Somebody's virtual server for an address that is not the node's.
        (IpvsProtocol::Tcp, "192.0.2.1:30080", None),
    ] {
        assert_eq!(place_of(service(protocol, address)), expected, "{protocol} {address}");
    }
    assert_eq!(place_of(VirtualServerKey::FwMark(netlink::AddressFamily::V4, 7)), None);
    assert_eq!(plan::place(&service(IpvsProtocol::Tcp, "10.96.0.10:80"), None, &node_ports), None);
}

/// Whatever leads to its virtual servers there: they are its to drain and to remove.
#[test]
fn a_node_port_that_fairlead_forwards_is_not_its_any_more() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let mut node_ports = NodePorts::new(HashSet::from([ip("172.16.0.11"), ip("fd00:172:16::11")]));
    let port = |port| IpsetEntry { port: Some(port), ..IpsetEntry::default() };
    node_ports.extend(Family::V4, IpvsProtocol::Tcp, &[port(30080), port(30081)]);
    node_ports.extend(Family::V4, IpvsProtocol::Udp, &[port(30080)]);
    node_ports.extend(Family::V6, IpvsProtocol::Tcp, &[port(30080)]);
    let sctp = IpsetEntry { ip: Some(ip("172.16.0.11")), ..port(30080) };
    node_ports.extend(Family::V4, IpvsProtocol::Sctp, &[sctp]);
    // In two halves, as Fairlead has it.
    let halves = ["0.0.0.0", "128.0.0.0"];
    let fairleads =
        halves.map(|half| IpsetEntry { ip: Some(ip(half)), protocol: Some(6), prefix: Some(1), ..port(30080) });
    node_ports.retain_others(&fairleads);
    let is_its = |protocol, address| plan::place(&service(protocol, address), None, &node_ports).is_some();
    assert!(!is_its(IpvsProtocol::Tcp, "172.16.0.11:30080"));
    assert!(is_its(IpvsProtocol::Tcp, "172.16.0.11:30081"));
    assert!(is_its(IpvsProtocol::Udp, "172.16.0.11:30080"));
    assert!(is_its(IpvsProtocol::Tcp, "[fd00:172:16::11]:30080"));
    assert!(is_its(IpvsProtocol::Sctp, "172.16.0.11:30080"));
    node_ports.retain_others(&[IpsetEntry {
        ip: Some(ip("0.0.0.0")),
        protocol: Some(132),
        prefix: Some(1),
        ..port(30080)
    }]);
    let is_its = |protocol, address| plan::place(&service(protocol, address), None, &node_ports).is_some();
    assert!(!is_its(IpvsProtocol::Sctp, "172.16.0.11:30080"));
}

#[test]
fn what_is_idle_goes_with_everything() {
    let servers = vec![
        server(IpvsProtocol::Tcp, "10.96.0.10:80", Place::Device, 0, 0),
        server(IpvsProtocol::Tcp, "[fd00:10:96::a]:80", Place::Device, 0, 0),
        // Its flows begin anew.
        server(IpvsProtocol::Udp, "10.96.0.10:53", Place::Device, 0, 7),
        server(IpvsProtocol::Tcp, "172.16.0.11:30080", Place::NodePort, 0, 0),
    ];
    let all = Leftovers::new(servers, true, sets(&["KUBE-NODE-PORT-TCP", "KUBE-6-IPVS-IPS"]));
    assert_eq!(all.notes(), [""; 0]);
    let expected = [
        ("ipv4 virtual server on kube-ipvs0", 2),
        ("ipv4 virtual server on a node port", 1),
        ("ipv6 virtual server on kube-ipvs0", 1),
        ("device kube-ipvs0", 1),
        ("set KUBE-NODE-PORT-TCP", 1),
        ("set KUBE-6-IPVS-IPS", 1),
    ];
    assert_eq!(whats(&all), expected.map(|(what, count)| (what.to_owned(), count)));
    assert_eq!(whats(&Leftovers::new(vec![], false, vec![])), []);
}

#[test]
fn what_connections_need_stays() {
    let names = ["KUBE-NODE-PORT-TCP", "KUBE-CLUSTER-IP", "KUBE-6-NODE-PORT-TCP"];
    // On the device: it stays, and no set is needed to know it by.
    let on_device = server(IpvsProtocol::Tcp, "10.96.0.10:80", Place::Device, 2, 1);
    let left = Leftovers::new(vec![on_device], true, sets(&names));
    assert_eq!((left.device, left.sets.len()), (Fate::Stays, 3));
    assert!(left.notes()[0].starts_with("IPVS carries 3 connections of tcp 10.96.0.10:80, and"));
    // On a node port: the device goes, and the sets of its family stay that tell of it.
    let half_closed = server(IpvsProtocol::Tcp, "172.16.0.11:30080", Place::NodePort, 0, 1);
    let left = Leftovers::new(vec![half_closed.clone(), half_closed], true, sets(&names));
    assert_eq!(left.device, Fate::Goes);
    assert_eq!(left.sets, sets(&["KUBE-CLUSTER-IP", "KUBE-6-NODE-PORT-TCP"]));
    assert!(left.notes()[0].contains("172.16.0.11:30080 and 1 more, and"));
}

#[test]
fn without_ipvs_the_device_and_the_sets_go() {
    in_netns(|| {
        assert_eq!(Leftovers::find().unwrap().items(), []);
        for name in [DEVICE, "not-kube-ipvs0"] {
            run("ip", &["link", "add", name, "type", "veth", "peer", "name", &name.replace("ipvs0", "x")], "");
        }
        run(
            "ipset",
            &["restore"],
            "create KUBE-CLUSTER-IP hash:ip,port\ncreate KUBE-6-CLUSTER-IP hash:ip,port family inet6\n\
             create KUBE-ROUTER-PODS hash:ip\ncreate KUBE-LOOP-BACK hash:ip\ncreate others list:set\n\
             add others KUBE-LOOP-BACK\n",
        );
        let found = Leftovers::find().unwrap();
        let expected = ["device kube-ipvs0", "set KUBE-CLUSTER-IP", "set KUBE-LOOP-BACK", "set KUBE-6-CLUSTER-IP"];
        assert_eq!(whats(&found), expected.map(|what| (what.to_owned(), 1)));
        assert_eq!(found.remove().unwrap(), [set_item(Family::V4, "KUBE-LOOP-BACK")], "a set of others holds it");
        assert_eq!(whats(&Leftovers::find().unwrap()), [("set KUBE-LOOP-BACK".to_owned(), 1)]);
        assert_eq!(run("ipset", &["list", "-name"], ""), "KUBE-ROUTER-PODS\nKUBE-LOOP-BACK\nothers\n");
        assert!(addresses::by_interface().unwrap().contains_key("not-kube-ipvs0"));
    });
}

//! Which objects are kube-proxy's, and which are kept because of connections. The kernel's part is tested in `e2e`,
//! because few kernels have IPVS.

use netlink::{ipset::IpsetEntry, ipvs::Destination, testing::in_netns};

use super::*;
use crate::takeover::testing::run;

fn service(protocol: Protocol, address: &str) -> VirtualServerKey {
    VirtualServerKey::Address(protocol, address.parse().unwrap())
}

fn server(protocol: Protocol, address: &str, kind: ServerKind, active: u32, inactive: u32) -> KubeProxyServer {
    let destination = Destination { active, inactive, ..Destination::new("10.244.1.5:8080".parse().unwrap(), 1) };
    KubeProxyServer { service: service(protocol, address), kind, destinations: vec![destination] }
}

fn sets(names: &[&str]) -> Vec<(IpFamily, String)> {
    names.iter().map(|name| (names::family(name).unwrap(), (*name).to_owned())).collect()
}

fn counted(leftovers: &IpvsLeftovers) -> Vec<(String, usize)> {
    leftovers.objects().into_iter().map(|object| (object.kind, object.count)).collect()
}

#[test]
fn sets_of_kube_proxy_are_recognized_by_name() {
    for (name, family) in [
        ("KUBE-CLUSTER-IP", Some(IpFamily::V4)),
        ("KUBE-6-CLUSTER-IP", Some(IpFamily::V6)),
        // Truncated to the longest name that the kernel accepts.
        ("KUBE-6-LOAD-BALANCER-SOURCE-CID", Some(IpFamily::V6)),
        ("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", Some(IpFamily::V6)),
        ("KUBE-CLUSTER-IP-2", None),
        ("KUBE-ROUTER-PODS", None),
        ("KUBE-", None),
        ("CLUSTER-IP", None),
        ("kube-cluster-ip", None),
    ] {
        assert_eq!(names::family(name), family, "{name}");
    }
    assert!(names::holds_node_ports("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"));
    assert!(!names::holds_node_ports("KUBE-HEALTH-CHECK-NODE-PORT"), "those have no virtual servers");
    assert_eq!(names::protocol("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"), Protocol::Sctp);
    assert_eq!(names::protocol("KUBE-NODE-PORT-LOCAL-UDP"), Protocol::Udp);
}

#[test]
fn virtual_servers_are_recognized_by_address_or_node_port() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let device = HashSet::from([ip("10.96.0.10"), ip("fd00:10:96::a")]);
    let mut node_ports = NodePorts::new(HashSet::from([ip("172.16.0.11"), ip("fd00:172:16::11")]));
    let port = |ip, port| IpsetEntry { ip, port: Some(port), ..IpsetEntry::default() };
    node_ports.extend(IpFamily::V4, Protocol::Tcp, &[port(None, 30080)]);
    node_ports.extend(IpFamily::V4, Protocol::Sctp, &[port(Some(ip("172.16.0.11")), 30090)]);
    let kind_of = |service| plan::kind(&service, Some(&device), &node_ports);
    for (protocol, address, expected) in [
        (Protocol::Tcp, "10.96.0.10:80", Some(ServerKind::OnDevice)),
        (Protocol::Udp, "[fd00:10:96::a]:53", Some(ServerKind::OnDevice)),
        (Protocol::Tcp, "10.96.0.11:80", None),
        (Protocol::Tcp, "172.16.0.11:30080", Some(ServerKind::NodePort)),
        (Protocol::Udp, "172.16.0.11:30080", None),
        (Protocol::Tcp, "172.16.0.11:30081", None),
        // The set is for the other family.
        (Protocol::Tcp, "[fd00:172:16::11]:30080", None),
        (Protocol::Sctp, "172.16.0.11:30090", Some(ServerKind::NodePort)),
        (Protocol::Sctp, "172.16.0.11:30080", None),
        // The address does not belong to the node.
        (Protocol::Tcp, "192.0.2.1:30080", None),
    ] {
        assert_eq!(kind_of(service(protocol, address)), expected, "{protocol} {address}");
    }
    assert_eq!(kind_of(VirtualServerKey::FwMark(IpFamily::V4, 7)), None);
    assert_eq!(plan::kind(&service(Protocol::Tcp, "10.96.0.10:80"), None, &node_ports), None);
}

/// Fairlead drains and removes the virtual servers there.
#[test]
fn a_node_port_that_fairlead_forwards_is_not_kube_proxys() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let mut node_ports = NodePorts::new(HashSet::from([ip("172.16.0.11"), ip("fd00:172:16::11")]));
    let port = |port| IpsetEntry { port: Some(port), ..IpsetEntry::default() };
    node_ports.extend(IpFamily::V4, Protocol::Tcp, &[port(30080), port(30081)]);
    node_ports.extend(IpFamily::V4, Protocol::Udp, &[port(30080)]);
    node_ports.extend(IpFamily::V6, Protocol::Tcp, &[port(30080)]);
    let sctp = IpsetEntry { ip: Some(ip("172.16.0.11")), ..port(30080) };
    node_ports.extend(IpFamily::V4, Protocol::Sctp, &[sctp]);
    // Fairlead adds one entry for each half of the address space.
    let halves = ["0.0.0.0", "128.0.0.0"];
    let fairleads =
        halves.map(|half| IpsetEntry { ip: Some(ip(half)), protocol: Some(6), prefix: Some(1), ..port(30080) });
    node_ports.remove(&fairleads);
    let is_kube_proxys = |protocol, address| plan::kind(&service(protocol, address), None, &node_ports).is_some();
    assert!(!is_kube_proxys(Protocol::Tcp, "172.16.0.11:30080"));
    assert!(is_kube_proxys(Protocol::Tcp, "172.16.0.11:30081"));
    assert!(is_kube_proxys(Protocol::Udp, "172.16.0.11:30080"));
    assert!(is_kube_proxys(Protocol::Tcp, "[fd00:172:16::11]:30080"));
    assert!(is_kube_proxys(Protocol::Sctp, "172.16.0.11:30080"));
    node_ports.remove(&[IpsetEntry { ip: Some(ip("0.0.0.0")), protocol: Some(132), prefix: Some(1), ..port(30080) }]);
    let is_kube_proxys = |protocol, address| plan::kind(&service(protocol, address), None, &node_ports).is_some();
    assert!(!is_kube_proxys(Protocol::Sctp, "172.16.0.11:30080"));
}

#[test]
fn idle_virtual_servers_are_removed_with_device_and_sets() {
    let servers = vec![
        server(Protocol::Tcp, "10.96.0.10:80", ServerKind::OnDevice, 0, 0),
        server(Protocol::Tcp, "[fd00:10:96::a]:80", ServerKind::OnDevice, 0, 0),
        // The conntrack entries of its flows are deleted.
        server(Protocol::Udp, "10.96.0.10:53", ServerKind::OnDevice, 0, 7),
        server(Protocol::Tcp, "172.16.0.11:30080", ServerKind::NodePort, 0, 0),
    ];
    let all = IpvsLeftovers::new(servers, true, sets(&["KUBE-NODE-PORT-TCP", "KUBE-6-IPVS-IPS"]));
    assert_eq!(all.notes(), [""; 0]);
    let expected = [
        ("IPv4 virtual server on kube-ipvs0", 2),
        ("IPv4 virtual server on a node port", 1),
        ("IPv6 virtual server on kube-ipvs0", 1),
        ("device kube-ipvs0", 1),
        ("set KUBE-NODE-PORT-TCP", 1),
        ("set KUBE-6-IPVS-IPS", 1),
    ];
    assert_eq!(counted(&all), expected.map(|(object, count)| (object.to_owned(), count)));
    assert_eq!(counted(&IpvsLeftovers::new(vec![], false, vec![])), []);
}

#[test]
fn objects_with_connections_are_kept() {
    let names = ["KUBE-NODE-PORT-TCP", "KUBE-CLUSTER-IP", "KUBE-6-NODE-PORT-TCP"];
    // With connections to an address on the device, the device is kept, and no set.
    let on_device = server(Protocol::Tcp, "10.96.0.10:80", ServerKind::OnDevice, 2, 1);
    let leftovers = IpvsLeftovers::new(vec![on_device], true, sets(&names));
    assert_eq!((leftovers.deletes_device, leftovers.sets.len()), (false, 3));
    assert!(leftovers.notes()[0].starts_with("IPVS has 3 connections to tcp 10.96.0.10:80; "));
    // With connections to a node port, the sets of its family with node ports are kept, and not the device.
    let half_closed = server(Protocol::Tcp, "172.16.0.11:30080", ServerKind::NodePort, 0, 1);
    let leftovers = IpvsLeftovers::new(vec![half_closed.clone(), half_closed], true, sets(&names));
    assert!(leftovers.deletes_device);
    assert_eq!(leftovers.sets, sets(&["KUBE-CLUSTER-IP", "KUBE-6-NODE-PORT-TCP"]));
    assert!(leftovers.notes()[0].contains("172.16.0.11:30080 and 1 more; "));
}

#[test]
fn device_and_sets_are_removed_on_a_kernel_without_ipvs() {
    in_netns(|| {
        assert_eq!(IpvsLeftovers::find().unwrap().objects(), []);
        for name in [IPVS_DEVICE, "not-kube-ipvs0"] {
            run("ip", &["link", "add", name, "type", "veth", "peer", "name", &name.replace("ipvs0", "x")], "");
        }
        run(
            "ipset",
            &["restore"],
            "create KUBE-CLUSTER-IP hash:ip,port\ncreate KUBE-6-CLUSTER-IP hash:ip,port family inet6\n\
             create KUBE-ROUTER-PODS hash:ip\ncreate KUBE-LOOP-BACK hash:ip\ncreate others list:set\n\
             add others KUBE-LOOP-BACK\n",
        );
        let found = IpvsLeftovers::find().unwrap();
        let expected = ["device kube-ipvs0", "set KUBE-CLUSTER-IP", "set KUBE-LOOP-BACK", "set KUBE-6-CLUSTER-IP"];
        assert_eq!(counted(&found), expected.map(|object| (object.to_owned(), 1)));
        assert_eq!(
            found.remove().unwrap(),
            [set_object(IpFamily::V4, "KUBE-LOOP-BACK")],
            "a set of another program contains it"
        );
        assert_eq!(counted(&IpvsLeftovers::find().unwrap()), [("set KUBE-LOOP-BACK".to_owned(), 1)]);
        assert_eq!(run("ipset", &["list", "-name"], ""), "KUBE-ROUTER-PODS\nKUBE-LOOP-BACK\nothers\n");
        assert!(rtnl::addresses_by_link().unwrap().contains_key("not-kube-ipvs0"));
    });
}

#[test]
fn device_of_fairleads_ipvs_backend_is_not_kube_proxys() {
    in_netns(|| {
        run("ip", &["link", "add", IPVS_DEVICE, "type", "veth", "peer", "name", "kube-x"], "");
        run(
            "ipset",
            &["restore"],
            "create FAIRLEAD-6-VIPS hash:ip,port family inet6\ncreate KUBE-CLUSTER-IP hash:ip,port\n",
        );
        assert_eq!(counted(&IpvsLeftovers::find().unwrap()), [("set KUBE-CLUSTER-IP".to_owned(), 1)]);
        run("ipset", &["destroy", "FAIRLEAD-6-VIPS"], "");
        let expected = ["device kube-ipvs0", "set KUBE-CLUSTER-IP"];
        assert_eq!(counted(&IpvsLeftovers::find().unwrap()), expected.map(|object| (object.to_owned(), 1)));
    });
}

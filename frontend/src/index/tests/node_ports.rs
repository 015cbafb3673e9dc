//! A port at the address of a Node: external and load-balancer IPs, node ports and health checks share it.

use proto::model::TrafficPolicy;

use super::*;
use crate::testing::take_steps;

/// A Service whose port has this number, also as its node port.
fn with_node_port(name: &str, created: u64, number: u16) -> ServiceObject {
    let mut service = ServiceObject { created: Some(time(created)), ..service(name, "10.96.0.9") };
    service.ports[0].node_port = Some(super::number(number));
    service
}

/// A Service with these external and load-balancer IPs on this port.
fn at_port(name: &str, created: u64, number: u16, ips: (&[&str], &[&str])) -> ServiceObject {
    let mut service = ServiceObject { created: Some(time(created)), ..claims(name, "10.96.0.1", ips.0, ips.1) };
    service.ports[0].port = super::number(number);
    service
}

fn node_0() -> SourceUpdate {
    put(host("node-0", &["172.16.0.1"], &[]))
}

fn vips(views: &Views, name: &str) -> usize {
    let (external, of_load_balancer) = external_ips_of(views, name);
    external.len() + of_load_balancer.len()
}

#[test]
fn external_ip_of_a_node_takes_no_node_port() {
    // A load-balancer IP would go before it if its Service were older; an external IP never does.
    for (created, ips) in
        [(9, (&["172.16.0.1"][..], &[][..])), (1, (&["172.16.0.1"], &[])), (9, (&[], &["172.16.0.1"]))]
    {
        let objects = [put(with_node_port("old", 5, 30080)), put(at_port("new", created, 30080, ips)), node_0()];
        let (mut index, mut views) = indexed(objects.clone());
        assert_eq!(views[&key("old")].port.node_port, Some(number(30080)));
        assert_eq!(vips(&views, "new"), 0);
        let (field, why) = match ips.0 {
            [] => ("status.loadBalancer.ingress", "whose Service is older"),
            _ => ("spec.externalIPs", "whose node port goes before an external IP"),
        };
        let expected = format!(
            "{field}: 172.16.0.1, port 30080/TCP is used by ns/old:http/tcp, {why}: not served for this Service; \
             change one of them"
        );
        assert_eq!(messages(&index, "new"), [expected]);
        assert_eq!(indexed(objects.into_iter().rev()).1, views);
        // Served when no Service has the node port, or when no Node has the address.
        index.apply(SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", "node-0")));
        apply_changes(&mut index, &mut views);
        assert_eq!((vips(&views, "new"), messages(&index, "new").len()), (1, 0));
        index.apply(node_0());
        apply_changes(&mut index, &mut views);
        assert_eq!(vips(&views, "new"), 0);
        index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "old")));
        apply_changes(&mut index, &mut views);
        assert_eq!((vips(&views, "new"), messages(&index, "new").len()), (1, 0));
    }
}

#[test]
fn older_load_balancer_ip_of_a_node_goes_before_a_node_port() {
    let of_node = at_port("old", 1, 30080, (&[], &["172.16.0.1"]));
    let (mut index, mut views) = indexed([put(with_node_port("new", 5, 30080)), put(of_node), node_0()]);
    assert_eq!((views[&key("new")].port.node_port, vips(&views, "old")), (None, 1));
    assert_eq!(
        messages(&index, "new"),
        ["spec.ports[http/TCP].nodePort: 30080/TCP is used by ns/old:http/tcp at 172.16.0.1, an address of a Node, \
          whose Service is older: not served for this Service; change one of them"]
    );
    index.apply(SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", "node-0")));
    apply_changes(&mut index, &mut views);
    assert_eq!((views[&key("new")].port.node_port, vips(&views, "old")), (Some(number(30080)), 1));
    // With --refuse-node-addresses it is not served, and takes nothing.
    let policy = ServicePolicy { refuse_node_addresses: true, ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    let of_node = at_port("old", 1, 30080, (&[], &["172.16.0.1"]));
    [put(with_node_port("new", 5, 30080)), put(of_node), node_0()].into_iter().for_each(|update| index.apply(update));
    let mut views = Views::new();
    apply_changes(&mut index, &mut views);
    assert_eq!((views[&key("new")].port.node_port, vips(&views, "old")), (Some(number(30080)), 0));
}

#[test]
fn health_check_node_port_is_a_node_port() {
    let checked = |name, created| ServiceObject {
        health_check_node_port: Some(number(30100)),
        external_policy: TrafficPolicy::Local,
        ..at_port(name, created, 443, (&[], &["192.0.2.9"]))
    };
    let external = at_port("external", 9, 30100, (&["172.16.0.1", "192.0.2.1"], &[]));
    let other = with_node_port("other", 9, 30100);
    let (index, views) = indexed([put(checked("old", 5)), put(external), put(other.clone()), node_0()]);
    assert_eq!(views[&key("old")].port.health_check_node_port, Some(number(30100)));
    assert_eq!(external_ips_of(&views, "external").0, ["192.0.2.1"]);
    assert_eq!(views[&key("other")].port.node_port, None);
    assert_eq!(
        messages(&index, "external"),
        ["spec.externalIPs: 172.16.0.1, port 30100/TCP is used by the health checks of ns/old, whose node port goes \
          before an external IP: not served for this Service; change one of them"]
    );
    assert!(messages(&index, "other")[0].contains("is used by the health checks of ns/old, whose Service is older"));
    // The other way round.
    let (index, views) = indexed([put(checked("new", 9)), put(ServiceObject { created: Some(time(1)), ..other })]);
    assert_eq!(views[&key("new")].port.health_check_node_port, None);
    assert_eq!(
        messages(&index, "new"),
        ["spec.healthCheckNodePort: 30100/TCP is used by ns/other:http/tcp, whose Service is older: not served \
          for this Service; change one of them"]
    );
}

#[test]
fn service_may_have_its_own_node_port_at_the_address_of_a_node() {
    let mut service = at_port("s", 1, 30080, (&["172.16.0.1"], &[]));
    service.ports[0].node_port = Some(number(30080));
    let (index, views) = indexed([put(service), node_0()]);
    assert_eq!((views[&key("s")].port.node_port, vips(&views, "s")), (Some(number(30080)), 1));
    assert!(messages(&index, "s").is_empty());
}

#[test]
fn protected_ports_are_those_of_tcp_and_udp() {
    let policy = ServicePolicy { protected_ports: [179].into(), ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    let mut service = at_port("s", 1, 179, (&["172.16.0.1"], &["192.0.2.1"]));
    service.ports = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .map(|protocol| ServiceObjectPort { protocol, ..service.ports[0].clone() })
        .to_vec();
    index.apply(put(service));
    index.apply(node_0());
    let mut views = Views::new();
    apply_changes(&mut index, &mut views);
    let served = |protocol| views[&ServicePortKey::new("ns", "s", "http", protocol)].port.external_ips.len();
    assert_eq!([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(served), [0, 0, 1]);
}

#[test]
fn ports_with_a_health_check_node_port_cost_their_sum() {
    let ports = 20_000;
    let service = ServiceObject { health_check_node_port: Some(number(30100)), ..product(ports, 0).0 };
    let newer = ServiceObject { created: Some(time(2)), ..service.clone() };
    let name = service.name.clone();
    let (mut index, mut views) = (new_index(), Views::new());
    for update in [put(service), put(newer), SourceUpdate::Delete(ObjectKind::Service, name)] {
        take_steps();
        index.apply(update);
        assert_eq!(apply_changes(&mut index, &mut views).len(), ports);
        let steps = take_steps();
        assert!(steps <= 10 * ports, "{steps}");
        assert!(views.values().all(|view| view.port.health_check_node_port == Some(number(30100))));
    }
    assert!(views.is_empty());
}

#[test]
fn addresses_of_nodes_with_the_number_of_a_node_port_cost_their_sum() {
    let count = 4000;
    let addresses: Vec<_> = (0..count).map(|n: u32| IpAddr::from((0xac10_0000 + n).to_be_bytes())).collect();
    let nodes = addresses
        .iter()
        .enumerate()
        .map(|(n, address)| put(NodeInfo { addresses: vec![*address], ..node(&format!("node-{n}"), "") }));
    let (mut index, mut views) = indexed(nodes.chain([put(with_node_port("old", 5, 30080))]));
    let new = ServiceObject { external_ips: addresses.clone(), ..at_port("new", 9, 30080, (&[], &[])) };
    let newer = ServiceObject { created: Some(time(10)), ..new.clone() };
    for service in [new, newer] {
        take_steps();
        index.apply(put(service));
        apply_changes(&mut index, &mut views);
        let steps = take_steps();
        assert!(steps <= 10 * addresses.len(), "{steps}");
        assert_eq!((vips(&views, "new"), views[&key("old")].port.node_port), (0, Some(number(30080))));
    }
}

#[test]
fn many_services_that_claim_the_same_addresses_do_not_multiply_the_cost_of_a_change() {
    let ips: Vec<_> = (0..100).map(|n: u8| IpAddr::from([192, 0, 2, n])).collect();
    let claimant = |n: u64| {
        let service = at_port(&format!("s-{n:03}"), n, 80, (&[], &[]));
        put(ServiceObject { external_ips: ips.clone(), ..service })
    };
    let (mut index, mut views) = indexed((0..200).map(claimant));
    while index.has_outdated_refusals() {
        apply_changes(&mut index, &mut views);
    }
    let owner = |index: &Index| messages(index, "s-199")[0].contains("ns/s-000:http/tcp");
    assert!(owner(&index), "{:?}", messages(&index, "s-199"));
    take_steps();
    index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "s-000")));
    assert_eq!(apply_changes(&mut index, &mut views), [key("s-000"), key("s-001"), key("s-002")]);
    let steps = take_steps();
    assert!(steps <= 10 * ips.len(), "{steps}");
    assert_eq!((vips(&views, "s-001"), vips(&views, "s-002")), (ips.len(), 0));
    let mut commits = 1;
    while index.has_outdated_refusals() {
        assert_eq!(apply_changes(&mut index, &mut views), [], "only descriptions change");
        commits += 1;
    }
    assert!(!owner(&index), "{:?}", messages(&index, "s-199"));
    assert_eq!(commits, 5, "199 service ports with 101 refused claims each, 4,096 at once");
}

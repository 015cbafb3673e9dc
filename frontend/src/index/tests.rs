//! An index after any history equals one from scratch. Conflicts, trigger times and comparisons, one by one.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;

use crate::{
    object::{ServiceLimits, SliceEndpoint, SlicePort},
    testing::{
        any_service, any_update, endpoint, ip, node, number, parsed, put, service, service_cidr, slice, take_steps,
        time,
    },
};

use super::*;

mod gone;
mod hints;
mod missing_nodes;
mod node_ports;
mod plan;
mod pods;
mod service_cidrs;

type Views = BTreeMap<ServicePortKey, ServicePortView>;

fn apply_changes(index: &mut Index, views: &mut Views) -> Vec<ServicePortKey> {
    let changes = index.take_changes();
    index.describe_refusals();
    let keys = changes.ports.iter().map(|(key, _)| key.clone()).collect();
    for (key, view) in changes.ports {
        match view {
            Some(view) => views.insert(key, view),
            None => views.remove(&key),
        };
    }
    keys
}

fn problems(index: &Index) -> Vec<(ObjectKind, ObjectName, Vec<ObjectProblem>)> {
    let mut objects = BTreeMap::<_, Vec<_>>::new();
    for (kind, name, problem) in index.problems.iter() {
        objects.entry((kind, name.clone())).or_default().push(problem);
    }
    objects.into_iter().map(|((kind, name), problems)| (kind, name, problems)).collect()
}

/// The messages about one service.
fn messages(index: &Index, service: &str) -> Vec<String> {
    let of_service = index.problems.iter().filter(|(_, name, _)| &*name.name == service);
    of_service.map(|(.., problem)| format!("{}: {}", problem.field, problem.message)).collect()
}

fn new_index() -> Index {
    Index::new(UNIX_EPOCH, ClusterInfo::default(), ServicePolicy::default())
}

/// With limits that random objects exceed.
fn limited_index() -> Index {
    let limits = ServiceLimits { vips: 3, port_vips: 6, endpoints: 4, port_endpoints: 7, ..ServiceLimits::default() };
    let policy = ServicePolicy { limits, protected_ports: [53, 8080].into(), ..ServicePolicy::default() };
    Index::new(UNIX_EPOCH, ClusterInfo::default(), policy)
}

fn indexed(updates: impl IntoIterator<Item = SourceUpdate>) -> (Index, Views) {
    let (mut index, mut views) = (new_index(), Views::new());
    for update in updates {
        index.apply(update);
    }
    apply_changes(&mut index, &mut views);
    (index, views)
}

fn key(service: &str) -> ServicePortKey {
    ServicePortKey::new("ns", service, "http", Protocol::Tcp)
}

/// The objects after an update.
fn apply_to_map(objects: &mut BTreeMap<(ObjectKind, ObjectName), ParsedObject>, update: &SourceUpdate) {
    match update {
        SourceUpdate::Apply(parsed) => {
            objects.insert((parsed.kind, parsed.name.clone()), parsed.clone());
        }
        SourceUpdate::Delete(kind, name) => {
            objects.remove(&(*kind, name.clone()));
        }
        SourceUpdate::Replace(kind, all) => {
            objects.retain(|(of, _), _| of != kind);
            objects.extend(all.iter().map(|parsed| ((*kind, parsed.name.clone()), parsed.clone())));
        }
        SourceUpdate::Progress(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn any_history_equals_an_index_from_scratch(
        history in vec((any_update(), any::<bool>()), 0..60),
        limited in any::<bool>(),
    ) {
        let new = if limited { limited_index } else { new_index };
        let (mut index, mut views, mut objects) = (new(), Views::new(), BTreeMap::new());
        for (update, take_changes) in history {
            apply_to_map(&mut objects, &update);
            index.apply(update);
            if take_changes {
                apply_changes(&mut index, &mut views);
            }
        }
        apply_changes(&mut index, &mut views);

        let (mut scratch, mut expected) = (new(), Views::new());
        objects.into_values().rev().for_each(|object| scratch.apply(SourceUpdate::Apply(object)));
        apply_changes(&mut scratch, &mut expected);
        prop_assert_eq!(views, expected);
        prop_assert_eq!(problems(&index), problems(&scratch));
        let nodes = |index: &Index| {
            index.nodes.iter().map(|(name, node)| (name.clone(), node.clone())).collect::<BTreeMap<_, _>>()
        };
        prop_assert_eq!(nodes(&index), nodes(&scratch));
        let endpoints = index.slices.iter().flat_map(|(service, slices)| {
            slices.values().flat_map(move |slice| slice.endpoints.iter().map(move |endpoint| (service, endpoint)))
        });
        for (service, endpoint) in endpoints {
            let at_address = index.entries_at(&BTreeSet::from([endpoint.address]));
            let on_node = endpoint.node.as_ref().map(|node| index.entries_on(node));
            for entries in [Some(at_address), on_node].into_iter().flatten() {
                let is_listed = entries.iter().any(|entry| {
                    (&entry.service, entry.address, &entry.node) == (service, endpoint.address, &endpoint.node)
                });
                prop_assert!(is_listed, "{service} {endpoint:?}");
            }
        }
        // Deleted objects leave nothing behind.
        prop_assert_eq!(index.addresses.len(), scratch.addresses.len());
        prop_assert_eq!(index.slices.len(), scratch.slices.len());
        prop_assert_eq!(index.slice_services.len(), scratch.slice_services.len());
        prop_assert_eq!(index.claims, scratch.claims);
        prop_assert_eq!(index.limited, scratch.limited);
    }
}

#[test]
fn ports_and_endpoints_of_the_api_servers_are_no_product() {
    let endpoints = (0..1000u16).map(|n| endpoint(&format!("10.0.{}.{}", n / 250, n % 250), "node-0")).collect();
    let ports = (1..=100).map(|n| SlicePort { name: format!("p{n}").into(), protocol: Protocol::Tcp, port: number(n) });
    let name = ObjectName::new("default", "kubernetes-x");
    let (index, _) =
        indexed([put(SliceObject { name, ports: ports.collect(), ..slice("x", "kubernetes", endpoints) })]);
    assert_eq!(index.api_servers().len(), MAX_API_SERVERS);
}

#[test]
fn equal_object_changes_nothing() {
    let objects = [
        put(service("s", "10.96.0.1")),
        put(slice("x", "s", vec![endpoint("10.0.0.1", "node-0")])),
        put(node("node-0", "zone-a")),
    ];
    let (mut index, _) = indexed(objects.clone());
    for object in objects {
        index.apply(object);
        assert!(!index.is_dirty());
    }
    let newer = SliceObject { trigger: Some(time(9)), ..slice("x", "s", vec![endpoint("10.0.0.1", "node-0")]) };
    index.apply(put(newer));
    assert!(!index.is_dirty(), "a trigger time alone is no change");
}

#[test]
fn only_affected_service_ports_are_dirty() {
    let (mut index, mut views) = indexed([
        put(service("a", "10.96.0.1")),
        put(service("b", "10.96.0.2")),
        put(slice("x", "a", vec![endpoint("10.0.0.1", "node-0")])),
    ]);
    index.apply(put(slice("x", "b", vec![endpoint("10.0.0.1", "node-0")])));
    assert_eq!(apply_changes(&mut index, &mut views), [key("a"), key("b")], "a slice can change its service");
    index.apply(put(slice("x", "b", vec![endpoint("10.0.0.2", "node-0")])));
    assert_eq!(apply_changes(&mut index, &mut views), [key("b")]);
    index.apply(put(node("node-0", "zone-a")));
    assert!(apply_changes(&mut index, &mut views).is_empty());
}

#[test]
fn oldest_service_gets_the_vip_and_the_next_one_after_its_deletion() {
    let old = ServiceObject { created: Some(time(1)), ..service("z-old", "10.96.0.1") };
    let new = ServiceObject { created: Some(time(2)), ..service("a-new", "10.96.0.1") };
    let undated = ServiceObject { created: None, ..service("a-undated", "10.96.0.1") };
    let (mut index, mut views) = indexed([put(undated), put(new), put(old)]);
    let has_vip = |views: &Views, name| views[&key(name)].port.cluster_ips.v4.is_some();
    assert!(has_vip(&views, "z-old") && !has_vip(&views, "a-new") && !has_vip(&views, "a-undated"));
    assert_eq!(
        messages(&index, "a-new"),
        ["spec.clusterIPs: 10.96.0.1, port 80/TCP is used by ns/z-old:http/tcp, whose Service is older: not served \
             for this Service; change one of them"]
    );
    index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "z-old")));
    apply_changes(&mut index, &mut views);
    assert!(has_vip(&views, "a-new") && !has_vip(&views, "a-undated"));
    assert!(messages(&index, "a-new").is_empty());
    assert!(messages(&index, "a-undated")[0].contains("ns/a-new:http/tcp"));
}

#[test]
fn of_services_of_equal_age_the_name_that_sorts_first_decides() {
    for created in [Some(time(1)), None] {
        let claiming = |name| {
            let mut service = ServiceObject { created, ..service(name, "10.96.0.1") };
            service.ports[0].node_port = Some(number(30000));
            put(service)
        };
        let (index, views) = indexed([claiming("b"), claiming("a")]);
        assert!(views[&key("a")].port.node_port.is_some() && views[&key("b")].port.node_port.is_none());
        let why =
            "is used by ns/a:http/tcp, whose Service is equally old and has the name that sorts first: not served";
        let messages = messages(&index, "b");
        assert_eq!(messages.iter().filter(|message| message.contains(why)).count(), 2, "{messages:?}");
    }
}

#[test]
fn oldest_service_gets_the_node_port() {
    let with_node_port = |name, cluster_ip, created| {
        let mut service = ServiceObject { created: Some(time(created)), ..service(name, cluster_ip) };
        service.ports[0].node_port = Some(number(30000));
        service
    };
    let (index, views) = indexed([put(with_node_port("a", "10.96.0.1", 2)), put(with_node_port("b", "10.96.0.2", 1))]);
    assert_eq!(views[&key("a")].port.node_port, None);
    assert_eq!(views[&key("b")].port.node_port, Some(number(30000)));
    assert!(views[&key("a")].port.cluster_ips.v4.is_some(), "the rest of the other Service is served");
    assert_eq!(
        messages(&index, "a"),
        ["spec.ports[http/TCP].nodePort: 30000/TCP is used by ns/b:http/tcp, whose Service is older: not served \
             for this Service; change one of them"]
    );
}

/// A Service that claims addresses.
fn claims(name: &str, cluster_ip: &str, external_ips: &[&str], load_balancer_ips: &[&str]) -> ServiceObject {
    let sorted = |ips: &[&str]| {
        let mut ips: Vec<_> = ips.iter().map(|text| ip(text)).collect();
        ips.sort_unstable();
        ips
    };
    ServiceObject {
        external_ips: sorted(external_ips),
        load_balancer_ips: sorted(load_balancer_ips),
        ..service(name, cluster_ip)
    }
}

fn host(name: &str, addresses: &[&str], pod_cidrs: &[&str]) -> NodeInfo {
    let pod_cidrs = pod_cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    NodeInfo { addresses: addresses.iter().map(|text| ip(text)).collect(), pod_cidrs, ..node(name, "") }
}

fn external_ips_of(views: &Views, name: &str) -> (Vec<String>, Vec<String>) {
    let texts = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect();
    let port = &views[&key(name)].port;
    (texts(&port.external_ips), texts(&port.load_balancer_ips))
}

#[test]
fn external_ip_never_shadows_cluster_addresses() {
    let taken = ["10.96.0.2", "10.97.3.4", "10.244.1.9", "172.20.0.9"];
    let greedy = claims("greedy", "10.96.0.1", &[&taken[..], &["192.0.2.1"]].concat(), &taken);
    let greedy = ServiceObject { created: Some(time(1)), ..greedy };
    // The external IPs are those of the load balancer, which are all refused; served as either they would shadow.
    let external = ServiceObject { load_balancer_ips: Vec::new(), ..greedy.clone() };
    let owners = [
        "the cluster IP of Service ns/victim",
        "an address of the service CIDR 10.97.0.0/16",
        "an address of the pod CIDR 10.244.1.0/24 of Node node-0",
        "an endpoint in EndpointSlice ns/x",
    ];
    for (greedy, field) in [(external, "spec.externalIPs"), (greedy, "status.loadBalancer.ingress")] {
        // On another port, and newer: still protected.
        let mut victim = service("victim", "10.96.0.2");
        victim.ports[0].port = number(443);
        let objects = [
            put(greedy.clone()),
            put(victim),
            put(host("node-0", &["172.16.0.1"], &["10.244.1.0/24"])),
            put(service_cidr("more", &["10.97.0.0/16"])),
            put(slice("x", "victim", vec![endpoint("172.20.0.9", "node-0")])),
        ];
        let (mut index, mut views) = indexed(objects.clone());
        assert_eq!(external_ips_of(&views, "greedy"), (vec!["192.0.2.1".to_owned()], vec![]));
        let expected =
            |(ip, owner)| format!("{field}: {ip} is not served: it would shadow {owner}; use another address");
        let mut expected: Vec<_> = taken.iter().zip(owners).map(expected).collect();
        expected.sort_unstable();
        assert_eq!(messages(&index, "greedy"), expected);
        assert_eq!(index.problems.counts().vip_conflicts, 4);
        // The same in any order, and gone when the owners are.
        let (_, reversed) = indexed(objects.clone().into_iter().rev());
        assert_eq!(reversed, views);
        for update in &objects[1..] {
            let SourceUpdate::Apply(parsed) = update else { panic!() };
            index.apply(SourceUpdate::Delete(parsed.kind, parsed.name.clone()));
        }
        apply_changes(&mut index, &mut views);
        let (external, of_load_balancer) = external_ips_of(&views, "greedy");
        assert_eq!(external.len() + of_load_balancer.len(), 5);
        assert!(messages(&index, "greedy").is_empty());
    }
}

#[test]
fn node_address_is_served_except_on_protected_ports() {
    let policy = ServicePolicy { protected_ports: [10250].into(), ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    let mut views = Views::new();
    // As k3s: the load-balancer IP is that of the node, and the endpoint is on the host network of the same node.
    let mut ingress = claims("ingress", "10.96.0.1", &["172.16.0.2", "172.16.0.3"], &["172.16.0.1"]);
    let port =
        |name: &str, value| ServiceObjectPort { name: name.into(), port: number(value), ..ingress.ports[0].clone() };
    ingress.ports = vec![port("api", 6443), port("http", 80), port("kubelet", 10250)];
    index.apply(put(ingress));
    index.apply(put(slice("x", "ingress", vec![endpoint("172.16.0.1", "node-0"), endpoint("172.16.0.2", "node-1")])));
    index.apply(put(host("node-0", &["172.16.0.1", "172.16.0.3", "203.0.113.1"], &["10.244.0.0/24"])));
    index.apply(put(host("node-1", &["172.16.0.2"], &["172.16.0.0/16"])));
    // The API server listens on node 0, at its other address.
    index.apply(put(api_server("203.0.113.1", 6443)));
    apply_changes(&mut index, &mut views);
    let of = |views: &Views, name: &str| {
        let port = &views[&ServicePortKey::new("ns", "ingress", name, Protocol::Tcp)].port;
        (port.external_ips.len(), port.load_balancer_ips.len())
    };
    assert_eq!((of(&views, "http"), of(&views, "api"), of(&views, "kubelet")), ((2, 1), (1, 1), (0, 0)));
    assert_eq!(
        messages(&index, "ingress"),
        [
            "spec.externalIPs: 172.16.0.2 is not served on port 10250/TCP: it would shadow a process on Node node-1 \
             (--protected-ports)",
            "spec.externalIPs: 172.16.0.3 is not served on port 10250/TCP: it would shadow a process on Node node-0 \
             (--protected-ports)",
            "spec.externalIPs: 172.16.0.3 is not served on port 6443/TCP: it would shadow the API server on Node \
             node-0",
            "status.loadBalancer.ingress: 172.16.0.1 is not served on port 10250/TCP: it would shadow a process on \
             Node node-0 (--protected-ports)",
        ]
    );
}

/// The EndpointSlice of `default/kubernetes`.
fn api_server(address: &str, port: u16) -> SliceObject {
    let mut slice = slice("kubernetes", "kubernetes", vec![SliceEndpoint { node: None, ..endpoint(address, "") }]);
    slice.name = ObjectName::new("default", "kubernetes");
    slice.ports[0].port = number(port);
    slice
}

#[test]
fn node_with_the_address_of_an_api_server_takes_no_port_of_a_load_balancer() {
    let mut web = claims("web", "10.96.0.1", &[], &["198.51.100.1", "203.0.113.1"]);
    web.ports[0].port = number(443);
    let (mut index, mut views) = indexed([put(web), put(api_server("203.0.113.1", 443))]);
    let before = views.clone();
    assert_eq!(external_ips_of(&views, "web").1, ["198.51.100.1"], "the API server keeps its own address");

    index.apply(put(host("hostile", &["203.0.113.1", "198.51.100.1"], &[])));
    apply_changes(&mut index, &mut views);
    assert_eq!(views, before);

    // Also while another Service has the number as a node port.
    let mut newer = service("newer", "10.96.0.2");
    newer.created = None;
    newer.ports[0].node_port = Some(number(443));
    index.apply(put(newer));
    apply_changes(&mut index, &mut views);
    assert_eq!(external_ips_of(&views, "web").1, ["198.51.100.1"]);
    assert_eq!(views[&key("newer")].port.node_port, None);
}

#[test]
fn node_addresses_can_be_refused() {
    let policy = ServicePolicy { refuse_node_addresses: true, ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    index.apply(put(claims("s", "10.96.0.1", &["172.16.0.1"], &["192.0.2.1"])));
    index.apply(put(host("node-0", &["172.16.0.1"], &[])));
    let mut views = Views::new();
    apply_changes(&mut index, &mut views);
    assert_eq!(external_ips_of(&views, "s"), (vec![], vec!["192.0.2.1".to_owned()]));
    assert!(messages(&index, "s")[0].contains("would shadow an address of Node node-0"));
}

#[test]
fn node_that_claims_the_address_of_a_load_balancer_takes_nothing_away() {
    let objects = [put(claims("web", "10.96.0.1", &["192.0.2.1"], &["198.51.100.1"]))];
    let (mut index, mut views) = indexed(objects);
    let before = views.clone();
    index.apply(put(host("hostile", &["198.51.100.1", "192.0.2.1"], &["0.0.0.0/0", "198.0.0.0/7"])));
    apply_changes(&mut index, &mut views);
    assert_eq!(views, before);
    assert!(messages(&index, "web").is_empty());
}

#[test]
fn load_balancer_that_is_an_endpoint_without_a_node_stays() {
    let endpoint_of_another = SliceEndpoint { node: None, ..endpoint("198.51.100.1", "") };
    let (index, views) = indexed([
        put(claims("web", "10.96.0.1", &[], &["198.51.100.1"])),
        put(claims("other", "10.96.0.2", &["192.0.2.1"], &[])),
        put(slice(
            "x",
            "hairpin",
            vec![endpoint_of_another, SliceEndpoint { node: None, ..endpoint("192.0.2.1", "") }],
        )),
    ]);
    assert_eq!(external_ips_of(&views, "web").1, ["198.51.100.1"]);
    assert!(external_ips_of(&views, "other").0.is_empty(), "a user has written this one");
    assert!(messages(&index, "other")[0].contains("EndpointSlice ns/x"));
}

#[test]
fn load_balancer_ip_goes_before_an_external_ip_of_an_older_service() {
    let external = ServiceObject { created: Some(time(1)), ..claims("external", "10.96.0.1", &["192.0.2.1"], &[]) };
    let newer = ServiceObject { created: Some(time(2)), ..claims("newer", "10.96.0.2", &[], &["192.0.2.1"]) };
    let newest = ServiceObject { created: Some(time(3)), ..claims("newest", "10.96.0.3", &[], &["192.0.2.1"]) };
    let (mut index, mut views) = indexed([put(external), put(newest), put(newer.clone())]);
    assert!(external_ips_of(&views, "external").0.is_empty() && external_ips_of(&views, "newest").1.is_empty());
    assert_eq!(external_ips_of(&views, "newer").1, ["192.0.2.1"]);
    assert_eq!(
        messages(&index, "external"),
        ["spec.externalIPs: 192.0.2.1, port 80/TCP is used by ns/newer:http/tcp, for which it is a load-balancer IP: \
          not served for this Service; change one of them"]
    );
    assert_eq!(index.problems.counts().vip_conflicts, 2);
    // Closed, because its ranges cannot be used: no other Service gets the address.
    let ranges = (0..5000).map(|n: u32| IpNet::from(IpAddr::from((0x0b00_0000 + n).to_be_bytes()))).collect();
    index.apply(put(ServiceObject { source_ranges: ranges, ..newer }));
    apply_changes(&mut index, &mut views);
    assert!(views.values().all(|view| view.port.external_ips.is_empty() && view.port.load_balancer_ips.is_empty()));
    assert_eq!(index.problems.counts().limited_services, 1);
    let (notices, _) = index.problems.take_notices(Instant::now());
    let notice = notices.iter().find(|notice| &*notice.name.name == "newer").unwrap();
    assert_eq!((notice.reason, notice.count), ("LimitExceeded", 1));
}

#[test]
fn protected_node_port_is_not_served() {
    let policy = ServicePolicy { protected_ports: [10250].into(), ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    let mut with_node_port = service("a", "10.96.0.1");
    with_node_port.ports[0].node_port = Some(number(10250));
    index.apply(put(with_node_port));
    let mut views = Views::new();
    apply_changes(&mut index, &mut views);
    assert_eq!(views[&key("a")].port.node_port, None);
    assert!(messages(&index, "a")[0].contains("10250/TCP is not served"));
}

#[test]
fn external_ip_that_is_also_a_load_balancer_ip_is_no_conflict() {
    let (index, views) = indexed([put(claims("s", "10.96.0.1", &["192.0.2.1"], &["192.0.2.1"]))]);
    assert_eq!(external_ips_of(&views, "s"), (vec![], vec!["192.0.2.1".to_owned()]), "its source ranges apply");
    assert!(messages(&index, "s").is_empty());
}

/// A slice with this many ports and endpoints, and its Service: the sum of them is written, and must be the cost.
fn product(ports: usize, endpoints: u32) -> (ServiceObject, SliceObject) {
    let addresses = (0..endpoints).map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string());
    let endpoints = addresses.map(|address| endpoint(&address, "node-0")).collect();
    let (mut service, mut slice) = (service("s", "10.96.0.1"), slice("x", "s", endpoints));
    let name = |n| format!("port-{n:05}").into();
    let port = |n| ServiceObjectPort { name: name(n), port: number(n as u16 + 1), ..service.ports[0].clone() };
    service.ports = (0..ports).map(port).collect();
    slice.ports = (0..ports).map(|n| SlicePort { name: name(n), ..slice.ports[0].clone() }).collect();
    (service, slice)
}

#[test]
fn ports_times_endpoints_are_bounded_and_reported() {
    let (service, slice) = product(2000, 1000);
    let (mut index, mut views) = indexed([put(service.clone()), put(slice.clone())]);
    let endpoints = |views: &Views| views.values().map(ServicePortView::endpoints).sum::<usize>();
    assert_eq!(endpoints(&views), 100_000);
    assert_eq!(index.problems.counts(), ProblemCounts { problems: 1, vip_conflicts: 0, limited_services: 1 });
    assert!(messages(&index, "s")[0].contains("2000000 endpoints of all ports"), "{:?}", messages(&index, "s"));
    // Other ports get what a port no longer needs.
    let mut fewer = slice.clone();
    fewer.ports.truncate(100);
    index.apply(put(fewer));
    apply_changes(&mut index, &mut views);
    assert_eq!(endpoints(&views), 100_000);
    assert_eq!(index.problems.counts().limited_services, 0, "100 ports with 1000 endpoints are within the limit");
    index.apply(put(slice));
    apply_changes(&mut index, &mut views);
    let (_, scratch) = indexed([put(service), put(product(2000, 1000).1)]);
    assert_eq!(views, scratch);
    index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "s")));
    apply_changes(&mut index, &mut views);
    assert!(views.is_empty() && index.problems.iter().next().is_none() && index.limited.is_empty());
}

#[test]
fn ports_times_vips_are_bounded() {
    let (mut service, _) = product(2000, 0);
    service.external_ips = (0..1000).map(|n: u32| IpAddr::from((0xc633_6400 + n).to_be_bytes())).collect();
    let (index, views) = indexed([put(service)]);
    let vips: usize = views.values().map(|view| view.port.external_ips.len()).sum();
    assert_eq!(vips, 20_000);
    assert_eq!(index.claims.claimant_groups(), 2000 + 20_000);
    assert_eq!(index.problems.counts().limited_services, 1);
}

#[test]
fn slice_with_many_bad_fields_is_one_notice() {
    let mut index = new_index();
    let bad = |n| ObjectProblem { field: format!("endpoints[{n}]"), message: "127.0.0.1: ignored".to_owned() };
    let mut notices = 0;
    for round in 0..10 {
        let SourceUpdate::Apply(parsed) = put(slice("x", "s", vec![])) else { panic!() };
        let problems = (0..1000).map(|n| bad(n + round)).collect();
        index.apply(SourceUpdate::Apply(ParsedObject { problems, ..parsed }));
        index.take_changes();
        notices += index.problems.take_notices(Instant::now()).0.len();
    }
    assert_eq!(notices, 1);
}

#[test]
fn trigger_times_count_once_and_only_after_the_start() {
    let mut index = Index::new(time(100), ClusterInfo::default(), ServicePolicy::default());
    let triggered = |seconds, address| SliceObject {
        trigger: Some(time(seconds)),
        ..slice("x", "s", vec![endpoint(address, "node-0")])
    };
    let mut oldest_after = |update| {
        index.apply(update);
        index.take_changes().oldest_trigger
    };
    assert_eq!(oldest_after(put(triggered(99, "10.0.0.1"))), None, "before the start");
    assert_eq!(oldest_after(put(triggered(101, "10.0.0.2"))), Some(time(101)));
    assert_eq!(oldest_after(put(triggered(101, "10.0.0.3"))), None, "the same time again belongs to an earlier change");
    index.apply(put(triggered(103, "10.0.0.4")));
    index.apply(put(triggered(105, "10.0.0.5")));
    assert_eq!(index.take_changes().oldest_trigger, Some(time(103)), "the oldest of several");
}

#[test]
fn complete_after_a_list_of_each_kind() {
    let mut index = new_index();
    index.apply(put(service("s", "10.96.0.1")));
    for kind in ObjectKind::ALL {
        assert!(!index.is_complete());
        index.apply(SourceUpdate::Replace(kind, Vec::new()));
    }
    assert!(index.is_complete());
}

#[test]
fn problems_of_a_service_are_found_without_those_of_others() {
    let mut index = new_index();
    let wrong = || vec![ObjectProblem { field: "spec".to_owned(), message: "wrong".to_owned() }];
    for number in 0..100 {
        let name = format!("s{number}");
        for mut object in [parsed(service(&name, "10.96.0.1")), parsed(slice(&format!("x{number}"), &name, Vec::new()))]
        {
            object.problems = wrong();
            index.apply(SourceUpdate::Apply(object));
        }
    }
    take_steps();
    let service = ObjectName::new("ns", "s7");
    let of_one: Vec<_> = index.problems_of(&service).map(|(kind, name, _)| (kind, name.to_string())).collect();
    let expected = [(ObjectKind::Service, "ns/s7".to_owned()), (ObjectKind::EndpointSlice, "ns/x7".to_owned())];
    assert_eq!((of_one, take_steps()), (expected.to_vec(), 2));
}

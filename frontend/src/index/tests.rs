//! An index after any history equals one from scratch. Conflicts, trigger times and comparisons, one by one.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use proptest::{collection::vec, prelude::*};

use crate::testing::{any_update, endpoint, ip, node, number, put, service, service_cidr, slice, time};

use super::*;

type Views = BTreeMap<ServicePortKey, ServicePortView>;

fn apply_changes(index: &mut Index, views: &mut Views) -> Vec<ServicePortKey> {
    let changes = index.take_changes();
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
    let problems = index.problems();
    problems.map(|(kind, name, problems)| (kind, name.clone(), problems.into_iter().cloned().collect())).collect()
}

/// The messages about one service.
fn messages(index: &Index, service: &str) -> Vec<String> {
    let of_service = index.problems().filter(|(_, name, _)| &*name.name == service);
    of_service
        .flat_map(|(_, _, problems)| problems)
        .map(|problem| format!("{}: {}", problem.field, problem.message))
        .collect()
}

fn new_index() -> Index {
    Index::new(UNIX_EPOCH, ClusterInfo::default())
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
    ServicePortKey::new("ns", service, "http", proto::model::Protocol::Tcp)
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
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_history_equals_an_index_from_scratch(history in vec((any_update(), any::<bool>()), 0..60)) {
        let (mut index, mut views, mut objects) = (new_index(), Views::new(), BTreeMap::new());
        for (update, take_changes) in history {
            apply_to_map(&mut objects, &update);
            index.apply(update);
            if take_changes {
                apply_changes(&mut index, &mut views);
            }
        }
        apply_changes(&mut index, &mut views);

        let (scratch, expected) = indexed(objects.into_values().rev().map(SourceUpdate::Apply));
        prop_assert_eq!(views, expected);
        prop_assert_eq!(problems(&index), problems(&scratch));
        let nodes = |index: &Index| {
            index.nodes.iter().map(|(name, node)| (name.clone(), node.clone())).collect::<BTreeMap<_, _>>()
        };
        prop_assert_eq!(nodes(&index), nodes(&scratch));
        // Deleted objects leave nothing behind.
        prop_assert_eq!(index.slices.len(), scratch.slices.len());
        prop_assert_eq!(index.slice_services.len(), scratch.slice_services.len());
        prop_assert_eq!(index.claims, scratch.claims);
    }
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
             here; change one of them"]
    );
    index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "z-old")));
    apply_changes(&mut index, &mut views);
    assert!(has_vip(&views, "a-new") && !has_vip(&views, "a-undated"));
    assert!(messages(&index, "a-new").is_empty());
    assert!(messages(&index, "a-undated")[0].contains("ns/a-new:http/tcp"));
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
             here; change one of them"]
    );
}

#[test]
fn external_ip_never_shadows_a_cluster_ip_or_node_address() {
    let greedy = ServiceObject {
        created: Some(time(0)),
        external_ips: vec![ip("10.96.0.2"), ip("172.16.0.1"), ip("192.0.2.1")],
        load_balancer_ips: vec![ip("10.96.0.2")],
        ..service("greedy", "10.96.0.1")
    };
    // On another port, and newer: still protected.
    let mut victim = service("victim", "10.96.0.2");
    victim.ports[0].port = number(443);
    let mut host = node("node-0", "");
    host.addresses = vec![ip("172.16.0.1")];
    let (mut index, mut views) = indexed([put(greedy), put(victim), put(host)]);
    assert_eq!(views[&key("greedy")].port.external_ips, [ip("192.0.2.1")]);
    assert!(views[&key("greedy")].port.load_balancer_ips.is_empty());
    assert_eq!(
        messages(&index, "greedy"),
        [
            "spec.externalIPs: 10.96.0.2 is not served: it would shadow the cluster IP of Service \
             ns/victim; use another address",
            "spec.externalIPs: 172.16.0.1 is not served: it would shadow an address of Node node-0; \
             use another address",
            "status.loadBalancer.ingress: 10.96.0.2 is not served: it would shadow the cluster IP of Service \
             ns/victim; use another address",
        ]
    );
    index.apply(SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", "node-0")));
    index.apply(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "victim")));
    apply_changes(&mut index, &mut views);
    assert_eq!(views[&key("greedy")].port.external_ips.len(), 3);
    assert!(messages(&index, "greedy").is_empty());
}

#[test]
fn external_ip_that_is_also_a_load_balancer_ip_is_no_conflict() {
    let both = ServiceObject {
        external_ips: vec![ip("192.0.2.1")],
        load_balancer_ips: vec![ip("192.0.2.1")],
        ..service("s", "10.96.0.1")
    };
    let (index, views) = indexed([put(both)]);
    assert_eq!(views[&key("s")].port.external_ips, views[&key("s")].port.load_balancer_ips);
    assert!(messages(&index, "s").is_empty());
}

#[test]
fn trigger_times_count_once_and_only_after_the_start() {
    let mut index = Index::new(time(100), ClusterInfo::default());
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
fn service_cidrs_are_those_of_the_configuration_and_of_all_objects() {
    let configured = service_cidr("", &["10.96.0.0/16"]).cidrs;
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo { service_cidrs: configured });
    let mut after = |update: Option<SourceUpdate>| {
        update.into_iter().for_each(|update| index.apply(update));
        let cluster = index.take_changes().cluster?;
        Some(cluster.service_cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" "))
    };
    let is = |cidrs: &str| Some(cidrs.to_owned());
    assert_eq!(after(None), is("10.96.0.0/16"));
    assert_eq!(after(Some(put(service("s", "10.96.0.1")))), None, "nothing about the cluster");
    let one = service_cidr("one", &["10.96.0.0/16", "fd00::/112"]);
    assert_eq!(after(Some(put(one))), is("10.96.0.0/16 fd00::/112"));
    let two = service_cidr("two", &["10.90.0.0/16"]);
    assert_eq!(after(Some(put(two.clone()))), is("10.90.0.0/16 10.96.0.0/16 fd00::/112"));
    let deletion = SourceUpdate::Delete(ObjectKind::ServiceCidr, ObjectName::new("", "one"));
    assert_eq!(after(Some(deletion)), is("10.90.0.0/16 10.96.0.0/16"));
    let other = service_cidr("two", &["10.91.0.0/16"]);
    assert_eq!(after(Some(put(other))), is("10.91.0.0/16 10.96.0.0/16"));
    assert_eq!(after(Some(SourceUpdate::Replace(ObjectKind::ServiceCidr, Vec::new()))), is("10.96.0.0/16"));
}

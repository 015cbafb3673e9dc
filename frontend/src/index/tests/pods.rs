//! Addresses of pods, which no Service gets, and slices that only pretend to have them.

use proto::model::PerFamily;

use super::*;

fn with_cluster_cidr(updates: impl IntoIterator<Item = SourceUpdate>) -> (Index, Views) {
    let cluster_cidrs = ["10.128.0.0/10", "2001:db8::/64"].map(|cidr| cidr.parse().unwrap()).to_vec();
    let policy = ServicePolicy { cluster_cidrs, ..ServicePolicy::default() };
    let (mut index, mut views) = (Index::new(UNIX_EPOCH, ClusterInfo::default(), policy), Views::new());
    updates.into_iter().for_each(|update| index.apply(update));
    apply_changes(&mut index, &mut views);
    (index, views)
}

/// A slice of another tenant with these addresses.
fn slice_at(created: u64, addresses: &[&str]) -> SliceObject {
    let endpoints = addresses.iter().map(|address| endpoint(address, "node-0")).collect();
    SliceObject { created: Some(time(created)), ..slice("x", "other", endpoints) }
}

#[test]
fn newer_slice_closes_no_vip_of_another_service() {
    let web = ServiceObject { created: Some(time(5)), ..claims("web", "10.96.0.1", &["192.0.2.1"], &["198.51.100.1"]) };
    // Created in the same second.
    let hostile = slice_at(5, &["192.0.2.1", "198.51.100.1"]);
    let without_node = hostile.endpoints.iter().map(|endpoint| SliceEndpoint { node: None, ..endpoint.clone() });
    let without_node = SliceObject { endpoints: without_node.collect(), ..hostile.clone() };
    for hostile in [hostile.clone(), without_node, SliceObject { created: None, ..hostile }] {
        for updates in [[put(web.clone()), put(hostile.clone())], [put(hostile), put(web.clone())]] {
            let (index, views) = indexed(updates);
            assert_eq!(external_ips_of(&views, "web"), (vec!["192.0.2.1".to_owned()], vec!["198.51.100.1".to_owned()]));
            assert!(messages(&index, "web").is_empty());
        }
    }
}

#[test]
fn older_slice_keeps_its_addresses() {
    let addresses = ["192.0.2.1", "198.51.100.1"];
    let web = claims("web", "10.96.0.1", &addresses[..1], &addresses[1..]);
    for (created, is_served) in [(Some(time(4)), true), (Some(time(5)), true), (Some(time(6)), false), (None, false)] {
        let web = ServiceObject { created, ..web.clone() };
        let (mut index, mut views) = indexed([put(web), put(slice_at(5, &addresses))]);
        let count = |views: &Views| {
            let (external, of_load_balancer) = external_ips_of(views, "web");
            external.len() + of_load_balancer.len()
        };
        assert_eq!(count(&views), if is_served { 2 } else { 0 }, "{created:?}");
        assert_eq!(messages(&index, "web").len(), if is_served { 0 } else { 2 });
        // Replaced by one of the same name.
        index.apply(put(slice_at(9, &addresses)));
        apply_changes(&mut index, &mut views);
        assert_eq!(count(&views), if created.is_some() { 2 } else { 0 }, "{created:?}");
    }
}

#[test]
fn address_in_a_cluster_cidr_is_that_of_a_pod() {
    let pods = ["10.131.0.9", "2001:db8::9"];
    let both_families = |service: ServiceObject| {
        let cluster_ips = PerFamily { v6: Some(ip("fd00::1")), ..service.cluster_ips };
        ServiceObject { cluster_ips, created: Some(time(1)), ..service }
    };
    let greedy = both_families(claims("greedy", "10.96.0.1", &pods, &[]));
    let (index, views) = with_cluster_cidr([put(greedy)]);
    assert_eq!(external_ips_of(&views, "greedy"), (vec![], vec![]));
    let expected = [
        "10.131.0.9 is not served: it would shadow an address of the cluster CIDR 10.128.0.0/10",
        "2001:db8::9 is not served: it would shadow an address of the cluster CIDR 2001:db8::/64",
    ];
    let expected = expected.map(|message| format!("spec.externalIPs: {message}; use another address"));
    assert_eq!(messages(&index, "greedy"), expected);

    // A cluster CIDR may contain load balancers and nodes.
    let load_balancer = claims("balanced", "10.96.0.1", &["10.131.0.1"], &pods[..1]);
    let node = host("node-0", &["10.131.0.1"], &[]);
    let (mut index, mut views) = with_cluster_cidr([put(load_balancer), put(node)]);
    let served = (vec!["10.131.0.1".to_owned()], vec!["10.131.0.9".to_owned()]);
    assert_eq!(external_ips_of(&views, "balanced"), served);
    // But no pod, however new its slice is.
    index.apply(put(slice_at(9, &pods[..1])));
    apply_changes(&mut index, &mut views);
    assert_eq!(external_ips_of(&views, "balanced"), (served.0, vec![]));
    assert!(messages(&index, "balanced")[0].contains("an endpoint in EndpointSlice ns/x"));
}

#[test]
fn cluster_cidr_of_nearly_all_addresses_protects_nothing() {
    let policy = ServicePolicy { cluster_cidrs: vec!["0.0.0.0/0".parse().unwrap()], ..ServicePolicy::default() };
    let mut index = Index::new(UNIX_EPOCH, ClusterInfo::default(), policy);
    index.apply(put(claims("web", "10.96.0.1", &["192.0.2.1"], &[])));
    let mut views = Views::new();
    apply_changes(&mut index, &mut views);
    assert_eq!(external_ips_of(&views, "web").0, ["192.0.2.1"]);
}

#[test]
fn claimants_change_only_with_the_oldest_slice_of_their_address() {
    let web = claims("web", "10.96.0.1", &["192.0.2.1"], &[]);
    let keeps = slice_at(6, &["192.0.2.1"]);
    let (mut index, mut views) = indexed([put(web), put(keeps.clone())]);
    let mut changed_by = |slice: SliceObject| {
        index.apply(put(slice));
        apply_changes(&mut index, &mut views)
    };
    let unready = |slice: &SliceObject| SliceObject {
        endpoints: slice.endpoints.iter().map(|endpoint| SliceEndpoint { ready: false, ..endpoint.clone() }).collect(),
        ..slice.clone()
    };
    assert_eq!(changed_by(unready(&keeps)), [key("other")]);
    let newer = SliceObject { name: ObjectName::new("ns", "y"), ..slice_at(7, &["192.0.2.1"]) };
    assert_eq!(changed_by(newer), [key("other")]);
    assert_eq!(changed_by(slice_at(6, &["192.0.2.2"])), [key("other"), key("web")]);
    assert_eq!(changed_by(keeps), [key("other"), key("web")]);
}

//! Plans leave the index as it is.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn planned_index_equals_one_without_plans(
        history in vec((any_update(), any::<bool>()), 0..40),
        planned in vec(any_update(), 1..6),
        limited in any::<bool>(),
    ) {
        let new = if limited { limited_index } else { new_index };
        let (mut index, mut views) = (new(), Views::new());
        let (mut untouched, mut expected) = (new(), Views::new());
        let objects: Vec<_> = planned.into_iter().filter_map(|update| match update {
            SourceUpdate::Apply(parsed) if matches!(parsed.kind, ObjectKind::Service | ObjectKind::EndpointSlice) => {
                Some(parsed)
            }
            _ => None,
        }).collect();
        for (update, take_changes) in history {
            index.apply(update.clone());
            untouched.apply(update);
            index.plan(objects.clone()).unwrap();
            prop_assert_eq!(&index.pending, &untouched.pending);
            prop_assert_eq!(&index.claims, &untouched.claims);
            prop_assert_eq!(&index.limited, &untouched.limited);
            if take_changes {
                prop_assert_eq!(apply_changes(&mut index, &mut views), apply_changes(&mut untouched, &mut expected));
            }
        }
        apply_changes(&mut index, &mut views);
        apply_changes(&mut untouched, &mut expected);
        prop_assert_eq!(views, expected);
        prop_assert_eq!(problems(&index), problems(&untouched));
        prop_assert_eq!(&index.services, &untouched.services);
        prop_assert_eq!(&index.slices, &untouched.slices);
        prop_assert_eq!(&index.slice_services, &untouched.slice_services);
        prop_assert_eq!(index.addresses.len(), untouched.addresses.len());
    }

    #[test]
    fn plan_has_the_changes_that_follow(
        history in vec(any_update(), 0..30),
        service in any_service(),
    ) {
        let (mut index, mut views) = indexed(history);
        let before = views.clone();
        let created = index.services.get(&service.name).and_then(|service| service.created);
        let service = ServiceObject { created, ..service };
        let plan = index.plan(vec![parsed(service.clone())]).unwrap();
        index.apply(put(service));
        apply_changes(&mut index, &mut views);
        let keys: BTreeSet<_> = before.keys().chain(views.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.get(*key) != views.get(*key));
        let changed: Vec<_> = changed.map(ToString::to_string).collect();
        let planned: Vec<_> = plan.changes.iter().map(|change| change.service_port.clone()).collect();
        prop_assert_eq!(planned, changed);
    }

    #[test]
    fn plan_counts_the_nodes_whose_state_differs(
        history in vec(any_update(), 0..30),
        planned in any_update(),
    ) {
        let (mut index, mut views) = indexed(history);
        let before = views.clone();
        let SourceUpdate::Apply(mut parsed) = planned else { return Ok(()) };
        match &mut parsed.object {
            Some(ClusterObject::Service(service)) => {
                service.created = index.services.get(&parsed.name).and_then(|service| service.created);
            }
            Some(ClusterObject::EndpointSlice(slice)) => {
                slice.created = index.slice(&parsed.name).and_then(|slice| slice.created);
            }
            _ => return Ok(()),
        }
        if index.nodes.is_empty() {
            return Ok(());
        }
        let plan = index.plan(vec![parsed.clone()]).unwrap();
        index.apply(SourceUpdate::Apply(parsed));
        apply_changes(&mut index, &mut views);
        let keys: BTreeSet<_> = before.keys().chain(views.keys()).collect();
        let changed = keys.into_iter().filter(|key| before.get(*key) != views.get(*key));
        let expected: Vec<_> = changed.map(|key| {
            let (before, after) = (before.get(key), views.get(key));
            index.nodes.values().filter(|node| state_of(before, node) != state_of(after, node)).count() as u64
        }).collect();
        let counted: Vec<_> = plan.changes.iter().map(|change| change.nodes.as_ref().unwrap().count).collect();
        prop_assert_eq!(counted, expected);
    }
}

/// What a node is sent of a service port.
fn state_of(view: Option<&ServicePortView>, node: &NodeInfo) -> impl PartialEq {
    view.map(|view| {
        let pools = view.pools().map(|(.., pools)| pools.resolve(&node.name, &node.zone));
        (&view.port, pools.collect::<Vec<_>>())
    })
}

#[test]
fn planned_slices_are_no_changed_entries() {
    let mut index = new_index();
    for kind in ObjectKind::ALL {
        index.apply(SourceUpdate::Replace(kind, Vec::new()));
    }
    index.apply(put(slice("web-1", "web", vec![endpoint("10.1.0.1", "node-0")])));
    index.take_changed_entries();

    index.plan(vec![parsed(slice("web-1", "web", vec![endpoint("10.1.0.2", "node-0")]))]).unwrap();

    assert_eq!(index.take_changed_entries(), ChangedEntries::default());
}

#[test]
fn endpoints_before_count_as_well() {
    let mut index = new_index();
    let mut without = Vec::new();
    for service in ["s0", "s1", "s2"] {
        let ports = || (1..=10u16).map(|n| (Arc::<str>::from(format!("p{n:02}")), number(n)));
        let object = ServiceObject {
            ports: ports()
                .map(|(name, port)| ServiceObjectPort { name, protocol: Protocol::Tcp, port, node_port: None })
                .collect(),
            ..crate::testing::service(service, &format!("10.96.0.{}", &service[1..]))
        };
        index.apply(put(object.clone()));
        for n in 0..10 {
            let endpoints = (0..1000).map(|m| endpoint(&format!("10.{n}.{}.{}", m / 250, m % 250), "node-0")).collect();
            let name = format!("{service}-{n}");
            let slice_ports = ports().map(|(name, port)| SlicePort { name, protocol: Protocol::Tcp, port }).collect();
            index.apply(put(SliceObject { ports: slice_ports, ..slice(&name, service, endpoints) }));
        }
        // Its ports have no endpoints.
        let renamed = object.ports.iter().map(|port| ServiceObjectPort { name: "".into(), ..port.clone() }).take(1);
        without.push(parsed(ServiceObject { ports: renamed.collect(), ..object }));
    }
    index.take_changes();
    assert_eq!(index.plan(without[..1].to_vec()).unwrap().change_count, 11);
    let error = index.plan(without).unwrap_err();
    assert!(error.contains("more than 200000 endpoints are affected, before and after"), "{error}");
}

#[test]
fn each_new_vip_conflict_counts() {
    let ips: Vec<_> = (1..=20).map(|n| ip(&format!("192.0.2.{n}"))).collect();
    let owner = ServiceObject { load_balancer_ips: ips.clone(), ..service("owner", "10.96.0.1") };
    let claims = ServiceObject { external_ips: ips, ..service("new", "10.96.0.2") };
    let (mut index, _) = indexed([put(owner.clone())]);
    let plan = |index: &mut Index, service: &ServiceObject| index.plan(vec![parsed(service.clone())]).unwrap();
    assert_eq!(plan(&mut index, &claims).conflict_count, 20, "also those that are not described");
    index.apply(put(claims.clone()));
    index.take_changes();
    assert_eq!(plan(&mut index, &claims).conflict_count, 0);
    let port = ServiceObjectPort { name: "other".into(), ..owner.ports[0].clone() };
    let renamed = plan(&mut index, &ServiceObject { ports: vec![port], ..owner });
    assert_eq!(renamed.conflict_count, 0, "the same claims are refused, for another reason");
}

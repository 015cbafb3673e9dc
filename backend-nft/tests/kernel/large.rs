//! Maps that are too large to be dumped are listed by their keys; elements with other keys are detected by their
//! number.

use std::{net::Ipv4Addr, num::NonZeroU16};

use backend::{
    Backend as _, Changes, NodeState,
    driver::MAX_TRANSACTION_WRITES,
    testing::{ProgramAll as _, Stack, apply, mk_key, mk_state, synthetic, transition},
};
use netlink::nft::{NftHandle, TableFamily};
use proto::model::{Endpoint, IpFamily, Operation, PoolClass, PoolId};

use crate::support::{backend, nft, reconcile, rename_tables, run};

#[test]
fn changes_of_a_large_map_are_repaired() {
    run(|| async {
        // 25,000 endpoints in each family.
        let state = synthetic(2_500, 10, Stack::Dual);
        assert!(reconcile(&state).await.writes > 50_000);
        assert_eq!(reconcile(&state).await.writes, 0);
        let element = |slot: &str| format!("element ip fairlead1 endpoints {{ 10.96.0.9 . tcp . 80 . {slot} }}");
        let foreign = element("77 : 192.0.2.1 . 80");
        for (changes, writes) in [
            (&["delete", &element("3")][..], 1),
            (&["add", &foreign], 1),
            // The number of elements does not change.
            (&["delete", &element("3"), "add", &foreign], 2),
            (&["delete", &element("3"), "add", &element("3 : 192.0.2.1 . 80")], 2),
        ] {
            let change: Vec<String> = changes.chunks(2).map(|change| change.join(" ")).collect();
            nft(&change.join(" ; "));
            assert_eq!(reconcile(&state).await.writes, writes, "{changes:?}");
            assert_eq!(reconcile(&state).await.writes, 0, "{changes:?}");
        }
    });
}

/// The attack: 20 ports with 2,000 source ranges each were 40,000 elements of an interval set, whose insertion takes
/// quadratic time.
#[test]
fn ports_with_source_ranges_write_the_ranges_once() {
    run(|| async {
        reconcile(&mk_state().build()).await;
        let ranges: Vec<String> = (0..2_000).map(|n| format!("10.{}.{}.0/25", n / 250, n % 250)).collect();
        let services = (1..=20).fold(mk_state(), |state, port| {
            state.service(&format!("default/lb:{port}"), |lb| {
                let lb = lb.port(port).load_balancer_ip("203.0.113.1");
                ranges.iter().fold(lb, |lb, range| lb.source_range(range))
            })
        });
        let state = services.build();
        // The ranges; a chain with two rules; two verdicts for each port.
        assert_eq!(reconcile(&state).await.writes, 2_000 + 3 + 20 * 2);
        assert_eq!(elements("allowed-sources"), 2_000);
        assert_eq!(reconcile(&state).await.writes, 0);
    });
}

/// The attack: 1,000 external IPs and 500 endpoints were 501,644 writes.
#[test]
fn a_service_with_many_vips_writes_its_endpoints_once() {
    run(|| async {
        reconcile(&mk_state().build()).await;
        let endpoints: Vec<String> = (0..500).map(|n| format!("10.244.{}.{}:8080", n / 250, n % 250 + 1)).collect();
        let web = |web: backend::testing::ServiceBuilder| {
            let vips = (0..1_000).map(|n| format!("198.18.{}.{}", n / 250, n % 250 + 1));
            let web = vips.fold(web.cluster_ip("10.96.0.1"), |web, vip| web.external_ip(&vip));
            web.endpoints(endpoints.iter().map(String::as_str))
        };
        let state = mk_state().service("default/web", web).build();
        // An alias and a verdict for each VIP, the verdict and the element of the cluster IP; four chains of two or
        // three rules.
        let (vips, chains) = (2 * 1_000 + 2, 2 * (1 + 2) + 2 * (1 + 3));
        assert_eq!(reconcile(&state).await.writes, vips + 500 + chains);
        assert_eq!((elements("endpoints-many"), elements("aliases")), (500, 1_000));
        assert_eq!(reconcile(&state).await.writes, 0);
    });
}

/// A service port whose endpoints are seven elements each, and one of another namespace.
fn attack(endpoints: u32, bystander: u32) -> NodeState {
    let address = |n: u32| format!("10.{}.{}.{}:80", 1 + (n >> 16), n >> 8 & 255, n & 255);
    let addresses: Vec<String> = (0..endpoints).map(address).collect();
    let addresses = || addresses.iter().map(String::as_str);
    let mut state = mk_state();
    if endpoints > 0 {
        state = state.service("evil/large", |large| {
            let large = large.cluster_ip("10.96.0.66").external_ip("198.18.0.66").external_local().affinity(60);
            large.endpoints(addresses()).local_endpoints(addresses())
        });
    }
    let own: Vec<String> = (0..bystander).map(address).collect();
    state.service("shop/web", |web| web.cluster_ip("10.96.0.1").endpoints(own.iter().map(String::as_str))).build()
}

/// Changes the number of endpoints of the other namespace.
fn change_bystander(state: &mut NodeState, endpoints: u32) -> Changes {
    let port = NonZeroU16::new(80).unwrap();
    let endpoints = (0..endpoints).map(|n| Endpoint::new(Ipv4Addr::from(0x0a01_0000 + n).into(), port)).collect();
    let pool = PoolId { key: mk_key("shop/web"), class: PoolClass::Cluster, family: IpFamily::V4 };
    apply(state, [Operation::ReplacePool { pool, endpoints }])
}

/// The endpoints of the attack: 200,000 elements.
const ENDPOINTS: u32 = 28_600;

/// The attack: the change of another namespace waited for one large transaction. Each call of the backend is at most
/// one transaction.
#[test]
fn a_large_service_port_is_programmed_in_several_transactions() {
    run(|| async {
        let mut current = attack(0, 1);
        let mut first = backend();
        first.reconcile_all(&current).await.unwrap();
        let changes = transition(&mut current, &attack(ENDPOINTS, 1));
        let mut report = first.apply(&current, &changes).await.unwrap();
        let (mut calls, mut writes, shop) = (1, report.writes, mk_key("shop/web"));
        while calls < 6 {
            let mut changes = change_bystander(&mut current, calls % 5 + 2);
            for waited in 1.. {
                report = first.apply(&current, &changes).await.unwrap();
                assert!(report.writes <= MAX_TRANSACTION_WRITES + 100, "{} writes", report.writes);
                calls += 1;
                writes += report.writes;
                changes = Changes::default();
                if report.unfinished.as_ref().is_none_or(|unfinished| !unfinished.contains(&shop)) {
                    assert!(waited <= 2, "another namespace waited for {waited} transactions");
                    break;
                }
            }
        }
        assert!(report.unfinished.is_some_and(|unfinished| unfinished.contains(&mk_key("evil/large"))));

        // A restart in the middle continues with what the kernel contains.
        drop(first);
        let mut second = backend();
        let rest = second.reconcile_all(&current).await.unwrap().writes;
        let total = writes + rest;
        assert!((200_200..201_200).contains(&total), "{writes} and {rest} writes");
        assert_eq!((elements("live"), elements("local-affine-endpoints")), (ENDPOINTS as usize, ENDPOINTS as usize));
        assert_eq!(reconcile(&current).await.writes, 0);

        // Its removal is split too.
        let changes = transition(&mut current, &attack(0, 2));
        let mut report = second.apply(&current, &changes).await.unwrap();
        while report.unfinished.is_some() {
            assert!(report.writes <= MAX_TRANSACTION_WRITES + 100, "{} writes", report.writes);
            report = second.apply(&current, &Changes::default()).await.unwrap();
        }
        assert_eq!((elements("live"), elements("hairpin"), elements("vips")), (0, 0, 1));
    });
}

/// The number of elements of an IPv4 map.
fn elements(map: &str) -> usize {
    let mut handle = NftHandle::open().unwrap();
    let table = handle.tables(TableFamily::Ip).unwrap().remove(0);
    handle.elements(&table, map, || 0, |count, _| *count += 1).unwrap()
}

/// No transaction is large, and no table of ours is left besides.
#[test]
fn a_large_table_of_another_layout_is_replaced_by_slices() {
    run(|| async {
        let state = synthetic(2_500, 10, Stack::V4);
        let in_one_build = reconcile(&state).await.writes;
        let before = elements("vips");
        rename_tables("fairlead");
        let mut replacing = backend();
        let mut report = replacing.reconcile(&state).await.unwrap();
        let mut writes = report.writes;
        while report.unfinished.is_some() {
            let hooks = nft("list chains ip").matches("hook prerouting priority dstnat;").count();
            assert_eq!((hooks, nft("list tables ip").lines().count()), (1, 2), "the old table serves");
            report = replacing.apply(&state, &Changes::default()).await.unwrap();
            assert!(report.writes <= MAX_TRANSACTION_WRITES + 200, "{} writes", report.writes);
            writes += report.writes;
        }
        // And two deletions.
        assert_eq!(writes, in_one_build + 2);
        assert_eq!((elements("vips"), nft("list tables ip")), (before, "table ip fairlead1\n".to_owned()));
        assert_eq!(reconcile(&state).await.writes, 0);
    });
}

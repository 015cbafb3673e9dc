//! Random histories against the fake kernel: updates have the result of a reconcile, and the kernel accepts their
//! transactions.

mod pools;
mod sources;

use backend::testing::ProgramAll as _;
use backend::{
    NodeState,
    dataplane::{DataplaneOptions, LocalDetector, Vip},
    testing::{History, ServiceBuilder, apply, mk_key, mk_state},
};
use proto::model::{Endpoint, Operation, PoolClass, PoolId};

use super::*;
use crate::{
    element::{ElementData, Map},
    fake_driver::FakeDriver,
    kernel::fake::Fake,
};

fn driver(kernel: &Fake) -> FakeDriver {
    let cidrs = ["10.244.0.0/16", "fd00:244::/32"].map(|cidr| cidr.parse().unwrap());
    driver_for(kernel, LocalDetector::ClusterCidr(cidrs.to_vec()))
}

fn driver_for(kernel: &Fake, local_detector: LocalDetector) -> FakeDriver {
    kernel.driver(DataplaneOptions { local_detector, ..DataplaneOptions::default() })
}

async fn from_scratch(state: &NodeState) -> Fake {
    let kernel = Fake::default();
    driver(&kernel).reconcile_all(state).await.unwrap();
    kernel
}

#[tokio::test]
async fn updates_have_the_result_of_a_reconcile() {
    for seed in 0..15 {
        let (kernel, mut history) = (Fake::default(), History::new(seed));
        history.jump();
        let mut driver = driver(&kernel);
        driver.reconcile_all(history.state()).await.unwrap();
        kernel.transactions();
        for step in 0..60 {
            let changes = if step % 20 == 19 { history.jump() } else { history.step() };
            let applied = driver.apply_all(history.state(), &changes).await.unwrap();
            assert_eq!(applied.failures, [], "seed {seed}, step {step}");
            assert!(kernel.transactions() <= 1, "seed {seed}, step {step}: the fake rejected a transaction");
            // The slots may differ by history, so shapes are compared.
            let fresh = from_scratch(history.state()).await;
            assert_eq!(
                sizes(&kernel, history.state()).await,
                sizes(&fresh, history.state()).await,
                "seed {seed}, step {step}"
            );
        }
    }
}

/// The sizes of the tables. A restart writes nothing, so the content is correct; equal sizes show that nothing is left
/// over.
async fn sizes(kernel: &Fake, state: &NodeState) -> Vec<String> {
    assert_eq!(driver(kernel).reconcile_all(state).await.unwrap().writes, 0);
    kernel.transactions();
    let tables = kernel.tables();
    tables.iter().map(|(_, table)| table.as_ref().map(|table| table.shape()).unwrap_or_default()).collect()
}

/// A pool that grows and shrinks uses the chains of earlier sizes again, and their number is limited.
#[tokio::test]
async fn some_unused_chains_are_kept() {
    let (kernel, sized) = (Fake::default(), |size: u8| {
        let endpoints: Vec<_> = (1..=size).map(|n| format!("10.244.1.{n}:80")).collect();
        let web = |web: ServiceBuilder| web.cluster_ip("10.96.0.1").endpoints(endpoints.iter().map(String::as_str));
        mk_state().service("default/web", web).build()
    });
    let (mut driver, mut state) = (driver(&kernel), sized(1));
    driver.reconcile_all(&state).await.unwrap();
    kernel.added_chains();
    let mut max_unused = 0;
    for size in (2..=200).chain([199, 200, 199]) {
        let changes = backend::testing::transition(&mut state, &sized(size));
        driver.apply_all(&state, &changes).await.unwrap();
        max_unused = max_unused.max(kernel.unused_chains());
    }
    let added = kernel.added_chains();
    assert!(added[..199].iter().all(|count| *count > 0));
    assert_eq!(added[199..], [0, 0, 0]);
    assert!((60..=64).contains(&max_unused), "{max_unused}");
    assert_eq!(kernel.tables(), from_scratch(&state).await.tables());
    assert_eq!(self::driver(&kernel).reconcile_all(&state).await.unwrap().writes, 0, "unused chains are no drift");
}

#[tokio::test]
async fn fulfils_the_backend_contract() {
    for seed in 0..10 {
        let kernel = Fake::default();
        // The histories change pod CIDRs too.
        let backend = || match seed % 2 {
            0 => driver(&kernel),
            _ => driver_for(&kernel, LocalDetector::NodeCidr),
        };
        backend::testing::contract::check_all(backend, seed).await;
    }
}

fn pool_change(add: &[&str], remove: &[&str]) -> Operation {
    let endpoints = |list: &[&str]| {
        let parsed = list.iter().map(|text| text.parse::<std::net::SocketAddr>().unwrap());
        parsed.map(|at| Endpoint::new(at.ip(), at.port().try_into().unwrap())).collect()
    };
    let pool = PoolId { key: mk_key("default/web"), class: PoolClass::Cluster, family: IpFamily::V4 };
    Operation::ChangePool { pool, add: endpoints(add), remove: endpoints(remove) }
}

/// Replacing deletes and adds an element. Adding adds an element and changes the verdict, which leads to another chain:
/// the chain and its two or three rules.
#[tokio::test]
async fn a_change_of_one_endpoint_writes_few_objects() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let endpoints = ["10.244.1.1:80", "10.244.1.2:80", "10.244.1.3:80"];
    // Other services with the same numbers of endpoints use the chains.
    let mut state = mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints))
        .service("default/two", |two| two.cluster_ip("10.96.0.2").endpoints(["10.244.1.7:80", "10.244.1.8:80"]))
        .service("default/three", |three| three.cluster_ip("10.96.0.3").endpoints(endpoints))
        .build();
    driver.reconcile_all(&state).await.unwrap();
    for (change, writes) in [
        (pool_change(&["10.244.1.9:80"], &["10.244.1.1:80"]), 2),
        (pool_change(&[], &["10.244.1.3:80"]), 3),
        (pool_change(&["10.244.1.4:80"], &[]), 3),
        // The first of three is removed: the last one moves to its slot.
        (pool_change(&[], &["10.244.1.9:80"]), 5),
        // Chains for one endpoint: cluster-ip-pool-1 with two rules, pool-1 with two.
        (pool_change(&[], &["10.244.1.4:80"]), 2 + 4 + 5),
    ] {
        let changes = apply(&mut state, [change.clone()]);
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{change:?}");
    }
}

/// The endpoints move to the map of larger pools, and back, and keep their slots.
#[tokio::test]
async fn a_pool_that_exceeds_the_size_of_its_map_moves_to_another() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let endpoints: Vec<String> = (1..=16).map(|n| format!("10.244.1.{n}:80")).collect();
    let mut state = mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints.iter().map(String::as_str)))
        .build();
    driver.reconcile_all(&state).await.unwrap();
    let before = kernel.tables();
    for change in [pool_change(&["10.244.2.1:80"], &[]), pool_change(&[], &["10.244.2.1:80"])] {
        let changes = apply(&mut state, [change]);
        driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables());
    }
    assert_eq!(kernel.tables(), before);
}

/// Two services with one number of endpoints and one timeout share a chain.
#[tokio::test]
async fn affinity_is_added_changed_and_removed() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |seconds: [u32; 2]| {
        let service = |web: ServiceBuilder, cluster_ip, seconds| {
            let web = web.external_ip(cluster_ip).endpoints(["10.244.1.1:80", "10.244.1.2:80"]);
            if seconds == 0 { web } else { web.affinity(seconds) }
        };
        mk_state()
            .service("default/web", |web| service(web, "203.0.113.1", seconds[0]))
            .service("default/two", |two| service(two, "203.0.113.2", seconds[1]))
            .build()
    };
    let mut state = with([0, 0]);
    driver.reconcile_all(&state).await.unwrap();
    // Two slots, two members, a verdict that is deleted and added; two chains of two and three rules.
    let (elements, chains) = (2 + 2 + 2, 2 + 2 + 3);
    for (seconds, writes) in [
        ([60, 0], elements + chains),
        ([60, 60], elements),
        // The verdict, and new chains.
        ([60, 70], 2 + chains),
        // All chains exist from here on.
        ([70, 60], 4),
        ([70, 70], 2),
        ([70, 0], elements),
        ([0, 0], elements),
    ] {
        let changes = backend::testing::transition(&mut state, &with(seconds));
        kernel.transactions();
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{seconds:?}");
        assert!(kernel.transactions() <= 1, "{seconds:?}: the fake rejected a transaction");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{seconds:?}");
    }
}

/// Its clients do not match the first rule of session affinity any more.
#[tokio::test]
async fn a_removed_endpoint_is_removed_from_the_live_set() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let endpoints = ["10.244.1.1:80", "10.244.1.2:80", "10.244.1.3:80"];
    let mut state =
        mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1").affinity(60).endpoints(endpoints)).build();
    driver.reconcile_all(&state).await.unwrap();
    let changes = apply(&mut state, [pool_change(&[], &["10.244.1.1:80"])]);
    driver.apply_all(&state, &changes).await.unwrap();
    let members = |data: &ElementData| matches!(data, ElementData::Member(..));
    let mut live = Vec::new();
    kernel.tamper(|elements| live.extend(elements.values().filter(|data| members(data)).copied()));
    let member = |n| ElementData::Member([10, 244, 1, n].into(), 80);
    assert_eq!(live, [member(2), member(3)]);
}

#[tokio::test]
async fn a_contested_vip_belongs_to_the_first_service_port() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let both = |a: &str, b: &str| {
        mk_state()
            .service("x/a", |service| service.cluster_ip("10.96.0.1").external_ip(a).endpoints(["10.244.1.1:80"]))
            .service("x/b", |service| service.cluster_ip("10.96.0.2").external_ip(b).endpoints(["10.244.1.2:80"]))
            .build()
    };
    let mut state = both("203.0.113.9", "203.0.113.1");
    driver.reconcile_all(&state).await.unwrap();
    for (target, failures) in [
        (both("203.0.113.1", "203.0.113.1"), 1),
        (both("203.0.113.9", "203.0.113.1"), 0),
        (both("203.0.113.1", "203.0.113.9"), 0),
    ] {
        let changes = backend::testing::transition(&mut state, &target);
        let applied = driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(applied.failures.len(), failures);
        assert_eq!(kernel.tables(), from_scratch(&target).await.tables());
        assert_eq!(driver.reconcile_all(&target).await.unwrap(), backend::SyncReport { writes: 0, ..applied });
    }
}

#[tokio::test]
async fn a_changed_node_address_changes_a_rule() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state = mk_state().build();
    driver.reconcile_all(&state).await.unwrap();
    let target = mk_state().node_addresses(["192.168.1.9", "fd00:1::1"]).build();
    let changes = backend::testing::transition(&mut state, &target);
    // The chain is flushed, and has four rules.
    assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, 5);
    assert_eq!(kernel.tables(), from_scratch(&target).await.tables());
}

/// The element of a cluster IP exists as long as any service port uses it.
#[tokio::test]
async fn ports_share_a_cluster_ip() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |ports: &[&str]| {
        let services = ports.iter().fold(mk_state(), |state, port| {
            state.service(&format!("default/{port}"), |service| service.cluster_ip("10.96.0.1"))
        });
        services.build()
    };
    let mut state = with(&[]);
    driver.reconcile_all(&state).await.unwrap();
    // The verdict reject of the VIP, and the address.
    for (ports, writes) in [(&["dns/tcp", "dns/udp"][..], 2 + 1), (&["dns/udp"], 1), (&["dns/sctp"], 2), (&[], 1 + 1)] {
        let changes = backend::testing::transition(&mut state, &with(ports));
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{ports:?}");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{ports:?}");
    }
}

/// Only the chains that match the source class change.
#[tokio::test]
async fn a_changed_pod_cidr_of_the_node_changes_rules() {
    let kernel = Fake::default();
    let mut driver = driver_for(&kernel, LocalDetector::NodeCidr);
    let with = |cidrs: &[&str]| {
        let state = mk_state().pod_cidrs(cidrs.iter().copied()).service("default/web", |web| {
            let web = web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").node_port(30080);
            web.endpoints(["10.244.1.1:80"])
        });
        state.build()
    };
    let mut state = with(&[]);
    driver.reconcile_all(&state).await.unwrap();
    // Two chains for policy Local and one for cluster IPs, flushed: three rules each, and a fourth; one rule, and a
    // second.
    for (cidrs, writes) in [
        (&["10.244.1.0/24"][..], 2 * (1 + 4) + (1 + 2)),
        (&["10.244.2.0/24"], 2 * (1 + 4) + (1 + 2)),
        (&["10.244.2.0/24", "10.244.2.7/24"], 0),
        // There is no chain for cluster IPs in IPv6.
        (&["10.244.2.0/24", "fd00:244:2::/64"], 2 * (1 + 4)),
        (&["fd00:244:2::/64"], 2 * (1 + 3) + (1 + 1)),
    ] {
        let changes = backend::testing::transition(&mut state, &with(cidrs));
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{cidrs:?}");
        let fresh = Fake::default();
        driver_for(&fresh, LocalDetector::NodeCidr).reconcile_all(&state).await.unwrap();
        assert_eq!(kernel.tables(), fresh.tables(), "{cidrs:?}");
    }
}

#[tokio::test]
async fn service_cidrs_change() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |cidrs: &[&str]| mk_state().service_cidrs(cidrs.iter().copied()).build();
    let mut state = with(&[]);
    driver.reconcile_all(&state).await.unwrap();
    // The chain is flushed, and has one more rule.
    for (cidrs, writes) in [
        (&["10.96.0.0/16", "fd00:96::/112"][..], 2 * 3),
        (&["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112"], 4),
        (&["10.97.0.0/16", "fd00:96::/112"], 3),
        (&["10.97.0.0/16", "fd00:96::/112", "::/0"], 0),
        (&[], 2 * 2),
    ] {
        let changes = backend::testing::transition(&mut state, &with(cidrs));
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{cidrs:?}");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{cidrs:?}");
    }
}

#[tokio::test]
async fn apply_detects_drift_and_repairs_it() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let mut state =
        mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(["10.244.1.1:80"])).build();
    driver.reconcile_all(&state).await.unwrap();
    kernel.tamper(|elements| elements.retain(|(map, ..), _| *map != Map::Endpoints));
    let changes = apply(&mut state, [pool_change(&[], &["10.244.1.1:80"])]);
    assert_eq!(driver.apply_all(&state, &changes).await.unwrap().failures, []);
    assert_eq!(kernel.tables(), from_scratch(&state).await.tables());
}

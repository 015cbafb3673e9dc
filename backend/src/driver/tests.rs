//! Quarantine, bisecting and the order of service ports, on a data plane that is a map.

use std::collections::BTreeMap;

use proto::model::{IpFamily, NodeInfo, ServicePort, ServicePortFailure};

use super::{queue::is_urgent, *};
use crate::{
    dataplane::{self, Vip},
    testing::{mk_state, transition},
};

/// A kernel that rejects transactions with invalid service ports.
#[derive(Default)]
struct FakePlane {
    invalid: BTreeSet<String>,
    /// Whether a rejection names the service ports.
    names: bool,
    programmed: BTreeMap<ServicePortKey, usize>,
    /// The writes of each transaction, including rejected ones.
    transactions: Vec<usize>,
    reads: usize,
    is_untouched: bool,
    families: UsableFamilies,
}

/// The VIPs of each service port.
#[derive(Default)]
struct FakeApplied(BTreeMap<ServicePortKey, Vec<(IpFamily, Vip)>>);

impl Applied for FakeApplied {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.0.get(key).cloned().unwrap_or_default()
    }

    fn has_unneeded(&self) -> bool {
        false
    }
}

fn size(state: &NodeState, key: &ServicePortKey) -> usize {
    state.service_port(key).map_or(0, |service_port| 1 + service_port.cluster.v4.len())
}

impl DataPlane for FakePlane {
    const NAME: &'static str = "fake";
    type Applied = FakeApplied;

    async fn observe(&mut self, _: &NodeState, _: &VipOwnership) -> Result<Synced<FakeApplied>> {
        self.reads += 1;
        Ok(Synced { applied: FakeApplied::default(), writes: 0 })
    }

    fn is_untouched(&mut self) -> bool {
        self.is_untouched
    }

    fn budget(&self, _: &FakeApplied) -> usize {
        100
    }

    fn writes(&self, _: &mut FakeApplied, change: &Change<'_>, key: &ServicePortKey) -> usize {
        size(change.state, key).abs_diff(self.programmed.get(key).copied().unwrap_or(0))
    }

    async fn commit(&mut self, applied: &mut FakeApplied, change: &Change<'_>) -> Result<CommitOutcome> {
        let (mut left, mut sizes, mut unfinished) = (change.budget, Vec::new(), Vec::new());
        for key in &change.service_ports {
            let writes = self.writes(applied, change, key);
            let before = self.programmed.get(key).copied().unwrap_or(0);
            let desired = size(change.state, key);
            let after = if writes > left { before + left } else { desired };
            unfinished.extend((after != desired).then(|| key.clone()));
            left -= writes.min(left);
            sizes.push((key.clone(), after));
        }
        let writes = change.budget - left;
        if writes > 0 {
            self.transactions.push(writes);
        }
        let invalid = (0..).zip(&change.service_ports).filter(|(_, key)| self.invalid.contains(&*key.name));
        let named: Vec<_> = invalid.map(|(index, _)| (index, "invalid".to_owned())).collect();
        if writes > 0 && !named.is_empty() {
            let unnamed = (!self.names).then(|| "invalid".to_owned());
            let named = if self.names { named } else { Vec::new() };
            return Ok(CommitOutcome::Rejected(Rejection { named, unnamed }));
        }
        for key in &change.service_ports {
            let port = change.state.service_port(key).map(|service_port| &service_port.port);
            let vips = port.into_iter().flat_map(|port| dataplane::vips(port, IpFamily::V4));
            applied.0.insert(key.clone(), vips.map(|(vip, _)| (IpFamily::V4, vip)).collect());
        }
        self.programmed.extend(sizes);
        self.programmed.retain(|_, size| *size > 0);
        Ok(CommitOutcome::Committed { writes, unfinished })
    }

    fn families(&self) -> &UsableFamilies {
        &self.families
    }

    fn node_dependents(&self, _: &NodeInfo, _: &NodeInfo) -> Option<fn(&ServicePort) -> bool> {
        None
    }

    async fn drifted(&mut self, _: &mut Option<FakeApplied>) -> Drift {
        std::future::pending().await
    }

    async fn cleanup(&mut self) -> Result<()> {
        Ok(())
    }

    async fn installed_objects(&mut self) -> Result<Vec<InstalledObject>> {
        Ok(Vec::new())
    }
}

/// Service ports with this many endpoints each.
fn state<'a>(services: impl IntoIterator<Item = (&'a str, usize)>) -> NodeState {
    let services = services.into_iter().fold(mk_state(), |state, (key, endpoints)| {
        let endpoints: Vec<String> =
            (0..endpoints).map(|n| format!("10.{}.{}.{}:80", n >> 16, n >> 8 & 255, n & 255)).collect();
        state.service(key, |service| service.endpoints(endpoints.iter().map(String::as_str)))
    });
    services.build()
}

/// Calls the driver until nothing is left. Returns the failures of the last call, and the number of calls.
async fn finish(driver: &mut Driver<FakePlane>, state: &NodeState) -> (Vec<ServicePortFailure>, usize) {
    for calls in 1..100_000 {
        let report = driver.apply(state, &Changes::default()).await.unwrap();
        if report.unfinished.is_none() {
            return (report.failures, calls);
        }
    }
    panic!("it does not end");
}

async fn programmed(driver: &mut Driver<FakePlane>, state: &NodeState, changes: &Changes, key: &str) -> usize {
    let key = crate::testing::mk_key(key);
    let mut report = driver.apply(state, changes).await.unwrap();
    for calls in 1..1_000 {
        if report.unfinished.as_ref().is_none_or(|unfinished| !unfinished.contains(&key)) {
            return calls;
        }
        report = driver.apply(state, &Changes::default()).await.unwrap();
    }
    panic!("{key} is never programmed");
}

#[tokio::test]
async fn any_number_of_rejected_service_ports_is_quarantined() {
    let names: Vec<String> = (0..1_500).map(|n| format!("shop/svc-{n:04}")).collect();
    let state = state(names.iter().map(|name| (name.as_str(), 1)));
    for detail in [true, false] {
        let invalid: BTreeSet<String> = (0..500).map(|n| format!("svc-{:04}", n * 3)).collect();
        let mut driver = Driver::new(FakePlane { invalid, names: detail, ..FakePlane::default() });
        driver.reconcile(&state).await.unwrap();
        let (failures, _) = finish(&mut driver, &state).await;
        assert_eq!((failures.len(), driver.plane.programmed.len()), (500, 1_000), "named: {detail}");
        // Bisecting needs at most two transactions for each level of each rejected service port.
        let transactions = driver.plane.transactions.len();
        assert!(transactions <= 60 + 500 * 2 * 7, "named: {detail}: {transactions}");

        // A retry is bounded, and does not forget those that were not tried.
        driver.plane.transactions.clear();
        driver.reconcile(&state).await.unwrap();
        let (failures, _) = finish(&mut driver, &state).await;
        assert_eq!((failures.len(), driver.plane.programmed.len()), (500, 1_000), "named: {detail}");
        assert!(driver.plane.transactions.len() <= 2 * 32 + 10, "{}", driver.plane.transactions.len());

        // All are programmed once the kernel accepts them.
        driver.plane.invalid.clear();
        driver.reconcile(&state).await.unwrap();
        let (failures, _) = finish(&mut driver, &state).await;
        assert_eq!((failures.len(), driver.plane.programmed.len()), (0, 1_500), "named: {detail}");
    }
}

#[tokio::test]
async fn a_change_of_another_namespace_waits_for_two_transactions_at_most() {
    let mut current = state([("shop/web", 1)]);
    let mut driver = Driver::new(FakePlane { names: true, ..FakePlane::default() });
    driver.reconcile(&current).await.unwrap();
    // One large service port, and many that fill transactions of their own.
    let many: Vec<String> = (0..200).map(|n| format!("evil/svc-{n}")).collect();
    let attack = || many.iter().map(|name| (name.as_str(), 20)).chain([("evil/large", 20_000)]);
    let changes = transition(&mut current, &state(attack().chain([("shop/web", 1)])));
    driver.apply(&current, &changes).await.unwrap();
    for endpoints in 2..30 {
        let changes = transition(&mut current, &state(attack().chain([("shop/web", endpoints)])));
        let calls = programmed(&mut driver, &current, &changes, "shop/web").await;
        assert!(calls <= 2, "{calls} transactions");
    }
    assert!(driver.plane.programmed.len() < 202, "the attack is still being programmed");
    finish(&mut driver, &current).await;
    assert_eq!(driver.plane.programmed.len(), 202);
    assert!(driver.plane.transactions.iter().all(|writes| *writes <= 100));
}

#[tokio::test]
async fn no_service_port_waits_forever() {
    let mut current = state([]);
    let mut driver = Driver::new(FakePlane::default());
    driver.reconcile(&current).await.unwrap();
    let mut size = 0;
    // The namespace with more pending writes gets every second transaction.
    for round in 0.. {
        size = (size + 1) % 50;
        let names: Vec<String> = (0..10).map(|n| format!("busy/svc-{n}")).collect();
        let busy = names.iter().map(|name| (name.as_str(), 50 + size));
        let changes = transition(&mut current, &state(busy.chain([("shop/large", 2_000)])));
        let report = driver.apply(&current, &changes).await.unwrap();
        if !report.unfinished.unwrap_or_default().contains(&crate::testing::mk_key("shop/large")) {
            break;
        }
        assert!(round < 100, "the large service port is not programmed");
    }
}

#[tokio::test]
async fn rejections_do_not_cause_reads_of_the_kernel_without_limit() {
    let mut current = state([("shop/web", 1)]);
    let mut driver = Driver::new(FakePlane { names: true, ..FakePlane::default() });
    driver.reconcile(&current).await.unwrap();
    for n in 0..50 {
        let name = format!("evil/svc-{n}");
        driver.plane.invalid.insert(format!("svc-{n}"));
        let changes = transition(&mut current, &state([("shop/web", 1), (&name, 3)]));
        driver.apply(&current, &changes).await.unwrap();
    }
    assert_eq!(driver.plane.reads, 2, "the first one, and one that looks for changes of another process");
    assert_eq!(driver.plane.programmed.len(), 1);
}

/// No reconcile comes while one tenant's changes are unfinished.
#[tokio::test(start_paused = true)]
async fn rejected_service_ports_are_tried_again_while_changes_keep_coming() {
    let mut current = state([("shop/invalid", 1)]);
    let mut driver = Driver::new(FakePlane { names: true, ..FakePlane::default() });
    driver.plane.invalid.insert("invalid".to_owned());
    let report = driver.reconcile(&current).await.unwrap();
    assert_eq!(report.failures.len(), 1);
    driver.plane.invalid.clear();
    let begun = Instant::now();
    for round in 0.. {
        let changes = transition(&mut current, &state([("shop/invalid", 1), ("evil/large", 2_000 + round * 200)]));
        let report = driver.apply(&current, &changes).await.unwrap();
        assert!(report.unfinished.is_some());
        if report.failures.is_empty() {
            break;
        }
        assert!(begun.elapsed() <= 2 * RETRY_INTERVAL);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(begun.elapsed() >= RETRY_INTERVAL);
}

/// The shortest of three times in which one transaction deletes this many service ports.
async fn time_to_delete(count: u32) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let services = (0..count).fold(mk_state(), |state, n| {
            let [.., high, low] = n.to_be_bytes();
            state.service(&format!("shop/svc-{n}"), |service| service.cluster_ip(&format!("10.96.{high}.{low}")))
        });
        let mut current = services.build();
        let mut driver = Driver::new(FakePlane::default());
        driver.is_unlimited = true;
        driver.reconcile(&current).await.unwrap();
        assert_eq!(driver.plane.programmed.len(), count as usize);
        let changes = transition(&mut current, &mk_state().build());
        let begun = Instant::now();
        driver.apply(&current, &changes).await.unwrap();
        shortest = shortest.min(begun.elapsed());
        assert_eq!((driver.plane.programmed.len(), driver.held.len()), (0, 0));
    }
    shortest
}

/// Their VIPs are held until then. If each deletion visited all of them, four times as many took 16 times as long.
#[tokio::test]
async fn the_time_to_delete_service_ports_is_proportional_to_their_number() {
    let (some, many) = (time_to_delete(2_000).await, time_to_delete(8_000).await);
    assert!(many < some * 10, "{some:?}, {many:?}");
}

#[test]
fn api_server_and_cluster_dns_are_urgent() {
    let state = mk_state()
        .service("default/kubernetes", |api| api.port(443))
        .service("kube-system/kube-dns/udp", |dns| dns.port(53))
        .service("kube-system/coredns", |dns| dns.port(53))
        .service("kube-system/kube-dns-metrics", |metrics| metrics.port(9153))
        .service("default/dns", |dns| dns.port(53))
        .service("shop/kubernetes", |other| other.port(443))
        .build();
    let ports = state.service_ports().values().map(|service| &service.port);
    let urgent = ports.filter(|port| is_urgent(&port.key, port.port.get()));
    let urgent: Vec<String> = urgent.map(|port| port.key.to_string()).collect();
    assert_eq!(urgent, ["default/kubernetes/tcp", "kube-system/coredns/tcp", "kube-system/kube-dns/udp"]);
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_nobody_else_has_changed_is_read_once_an_hour() {
    let mut driver = Driver::new(FakePlane { is_untouched: true, names: true, ..FakePlane::default() });
    driver.plane.invalid.insert("invalid".to_owned());
    let mut state = state([("default/a", 3), ("default/invalid", 5)]);
    driver.reconcile(&state).await.unwrap();
    let (failures, _) = finish(&mut driver, &state).await;
    assert_eq!((driver.plane.reads, failures.len()), (1, 1));
    // A reconcile programs what has changed, and tries again what the kernel has rejected.
    driver.plane.invalid.clear();
    transition(&mut state, &self::state([("default/a", 4), ("default/b", 1), ("default/invalid", 5)]));
    driver.reconcile(&state).await.unwrap();
    let (failures, _) = finish(&mut driver, &state).await;
    assert_eq!((driver.plane.reads, failures.len()), (1, 0));
    assert_eq!(driver.plane.programmed.values().copied().collect::<Vec<_>>(), [5, 2, 6]);
    let report = driver.reconcile(&state).await.unwrap();
    assert_eq!((driver.plane.reads, report.writes, report.unfinished), (1, 0, None));

    driver.plane.is_untouched = false;
    driver.reconcile(&state).await.unwrap();
    assert_eq!(driver.plane.reads, 2);
    finish(&mut driver, &state).await;
    driver.plane.is_untouched = true;
    tokio::time::advance(MAX_READ_AGE - Duration::from_secs(1)).await;
    driver.reconcile(&state).await.unwrap();
    assert_eq!(driver.plane.reads, 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    driver.reconcile(&state).await.unwrap();
    assert_eq!(driver.plane.reads, 3);
}

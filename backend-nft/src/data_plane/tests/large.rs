//! One service port with more elements than a transaction may write.

use backend::{
    Backend as _, Changes, NodeState,
    testing::{ProgramAll as _, StateBuilder, apply, mk_key, mk_state, transition},
};
use proto::model::{Endpoint, IpFamily, Operation, PoolClass, PoolId, ServicePortKey};

use super::*;
use crate::element::Map;

/// With session affinity, each endpoint on this node is three elements of each pool, and one for the hairpin.
const ELEMENTS_EACH: usize = 7;
const BUDGET: usize = 500;

fn addresses(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("10.{}.{}.{}:80", 1 + (n >> 16), n >> 8 & 255, n & 255)).collect()
}

fn with_attack(state: StateBuilder, endpoints: u32) -> StateBuilder {
    let endpoints = addresses(endpoints);
    let endpoints = || endpoints.iter().map(String::as_str);
    state.service("evil/large", |large| {
        let large = large.cluster_ip("10.96.0.66").external_ip("198.18.0.66").external_local().affinity(60);
        large.endpoints(endpoints()).local_endpoints(endpoints())
    })
}

fn with_bystander(state: StateBuilder, endpoints: u32) -> StateBuilder {
    let endpoints = addresses(endpoints);
    state.service("shop/web", |web| web.cluster_ip("10.96.0.1").endpoints(endpoints.iter().map(String::as_str)))
}

/// The number of transactions until a service port is programmed.
async fn transactions_until(
    driver: &mut FakeDriver,
    kernel: &Fake,
    state: &NodeState,
    changes: &Changes,
    key: &ServicePortKey,
) -> usize {
    kernel.transactions();
    let mut report = driver.apply(state, changes).await.unwrap();
    for _ in 0..100 {
        if report.unfinished.as_ref().is_none_or(|unfinished| !unfinished.contains(key)) {
            return kernel.transactions();
        }
        report = driver.apply(state, &Changes::default()).await.unwrap();
    }
    panic!("{key} is never programmed");
}

/// Changes the number of endpoints of the bystander.
fn change_bystander(state: &mut NodeState, endpoints: u32) -> Changes {
    let pool = PoolId { key: mk_key("shop/web"), class: PoolClass::Cluster, family: IpFamily::V4 };
    let addresses = addresses(endpoints).into_iter().map(|text| text.parse::<std::net::SocketAddr>().unwrap());
    let endpoints = addresses.map(|at| Endpoint::new(at.ip(), at.port().try_into().unwrap())).collect();
    apply(state, [Operation::ReplacePool { pool, endpoints }])
}

/// Adds and removes a service port with this many endpoints, in transactions of this many elements.
async fn attack(endpoints: u32, budget: usize) {
    let kernel = Fake::default();
    let mut driver = parts::in_batches_of(budget, &kernel);
    let mut current = with_bystander(mk_state(), 1).build();
    driver.reconcile_all(&current).await.unwrap();
    kernel.written_elements();
    let changes = transition(&mut current, &with_bystander(with_attack(mk_state(), endpoints), 1).build());
    let mut report = driver.apply(&current, &changes).await.unwrap();
    let (key, mut most) = (mk_key("shop/web"), 0);
    for bystander in 2.. {
        let changes = change_bystander(&mut current, bystander % 20 + 1);
        most = most.max(transactions_until(&mut driver, &kernel, &current, &changes, &key).await);
        report = driver.apply(&current, &Changes::default()).await.unwrap();
        if report.unfinished.is_none() {
            break;
        }
    }
    assert_eq!(report.failures, []);
    assert!(most <= 2, "{most} transactions");
    let written = kernel.written_elements();
    assert!(written.iter().all(|elements| *elements <= budget + 6), "{written:?}");
    let elements = ELEMENTS_EACH * endpoints as usize;
    let total: usize = written.iter().sum();
    assert!((elements..elements + 5_000).contains(&total), "{total} elements are written once");
    assert!(written.len() <= 4 * (elements / budget), "{} transactions", written.len());
    assert_eq!(kernel.element_counts()[&Map::Live], endpoints as usize);

    // Its removal too.
    let changes = transition(&mut current, &with_bystander(mk_state(), 3).build());
    driver.apply_all(&current, &changes).await.unwrap();
    let written = kernel.written_elements();
    assert!(written.iter().all(|elements| *elements <= budget + 6), "{written:?}");
    // Endpoints, verdict, cluster IP.
    assert_eq!(kernel.element_counts().values().sum::<usize>(), 3 + 1 + 1);
}

#[tokio::test]
async fn a_change_of_another_namespace_waits_for_two_transactions_of_a_large_service_port() {
    attack(2_000, BUDGET).await;
}

#[tokio::test]
async fn two_hundred_thousand_elements_of_a_service_port_are_written_in_transactions_of_eight_thousand() {
    attack(28_600, backend::driver::MAX_TRANSACTION_WRITES).await;
}

/// The next process reads what the kernel contains, and continues.
#[tokio::test]
async fn a_restart_in_the_middle_of_a_large_change_converges_without_wrong_endpoints() {
    let kernel = Fake::default();
    kernel.record_reachable();
    let small = |first: u32| {
        let endpoints: Vec<String> = (first..first + 300).map(|n| format!("10.7.{}.{}:80", n >> 8, n & 255)).collect();
        let endpoints = || endpoints.iter().map(String::as_str);
        let web = |web: backend::testing::ServiceBuilder| {
            let web = (0..60).fold(web.cluster_ip("10.96.0.1"), |web, n| web.external_ip(&format!("198.18.0.{n}")));
            web.external_local().endpoints(endpoints()).local_endpoints(endpoints().take(150))
        };
        mk_state().service("shop/large", web).build()
    };
    let (old, new) = (small(0), small(150));
    let in_batches = || parts::in_batches_of(100, &kernel);
    let writes = in_batches().reconcile_all(&old).await.unwrap().writes;
    assert!(writes > 700, "{writes}");
    for calls in [0, 1, 2, 4] {
        let mut driver = in_batches();
        let mut current = old.clone();
        driver.reconcile_all(&current).await.unwrap();
        let changes = transition(&mut current, &new);
        let mut report = driver.apply(&current, &changes).await.unwrap();
        for _ in 0..calls {
            report = driver.apply(&current, &Changes::default()).await.unwrap();
        }
        assert!(report.unfinished.is_some_and(|unfinished| !unfinished.is_empty()), "after {calls} calls");

        let mut driver = in_batches();
        assert_eq!(driver.reconcile_all(&new).await.unwrap().failures, []);
        parts::assert_no_wrong_endpoint([&old, &new], &kernel);
        let fresh = Fake::default();
        in_batches_on(&fresh, &new).await;
        parts::assert_equal_pools(&kernel, &fresh);
        assert_eq!(in_batches().reconcile_all(&new).await.unwrap().writes, 0);
        in_batches().reconcile_all(&old).await.unwrap();
    }
}

async fn in_batches_on(kernel: &Fake, state: &NodeState) {
    parts::in_batches_of(100, kernel).reconcile_all(state).await.unwrap();
}

/// The ranges are complete before a VIP leads to them, and the old ones are removed afterwards.
#[tokio::test]
async fn a_change_of_many_source_ranges_is_several_transactions() {
    const RANGES: u32 = 1_000;
    let kernel = Fake::default();
    kernel.record_reachable();
    let mut driver = parts::in_batches_of(BUDGET, &kernel);
    let with = |ranges: u32, added: bool| {
        let web = |port: u16| {
            move |lb: backend::testing::ServiceBuilder| {
                let lb = lb.port(port).load_balancer_ip("203.0.113.1").endpoints(["10.244.1.1:80", "10.244.1.2:80"]);
                let lb = (0..ranges).fold(lb, |lb, n| lb.source_range(&format!("10.{}.{}.0/25", n >> 8, n & 255)));
                if added { lb.source_range("192.0.2.0/24") } else { lb }
            }
        };
        mk_state().service("default/lb:80", web(80)).service("default/lb:443", web(443)).build()
    };
    let mut state = with(RANGES, false);
    driver.reconcile_all(&state).await.unwrap();
    for (ranges, added) in [(RANGES, true), (RANGES - 1, true), (0, true), (RANGES, true), (0, false)] {
        kernel.written_elements();
        let changes = transition(&mut state, &with(ranges, added));
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().failures, []);
        let written = kernel.written_elements();
        assert!(written.iter().all(|elements| *elements <= BUDGET + 6), "{written:?}");
        let sources = kernel.element_counts().get(&Map::AllowedSources).copied().unwrap_or(0);
        assert_eq!(sources, ranges as usize + usize::from(added), "unused groups are removed");
        let fresh = Fake::default();
        in_batches_on(&fresh, &state).await;
        parts::assert_equal_pools(&kernel, &fresh);
        assert_eq!(parts::in_batches_of(BUDGET, &kernel).reconcile_all(&state).await.unwrap().writes, 0);
        assert!(written.iter().sum::<usize>() <= 2 * (RANGES as usize + 1) + 12, "each range is written once");
    }
}

/// A change to yet another list, while the first one is programmed in part.
#[tokio::test]
async fn an_abandoned_group_of_source_ranges_is_removed() {
    let kernel = Fake::default();
    kernel.record_reachable();
    let mut driver = parts::in_batches_of(100, &kernel);
    let with = |from: u32| {
        let lb = |lb: backend::testing::ServiceBuilder| {
            let lb = lb.load_balancer_ip("203.0.113.1").endpoints(["10.244.1.1:80"]);
            (from..from + 900).fold(lb, |lb, n| lb.source_range(&format!("10.{}.{}.0/25", n >> 8, n & 255)))
        };
        with_bystander(mk_state().service("default/lb", lb), 2).build()
    };
    let mut state = with(0);
    driver.reconcile_all(&state).await.unwrap();
    for from in [1, 2, 3] {
        let changes = transition(&mut state, &with(from));
        driver.apply(&state, &changes).await.unwrap();
        driver.apply(&state, &Changes::default()).await.unwrap();
    }
    assert!(kernel.element_counts()[&Map::AllowedSources] > 900);
    driver.apply_all(&state, &Changes::default()).await.unwrap();
    assert_eq!(kernel.element_counts()[&Map::AllowedSources], 900);
    let fresh = Fake::default();
    in_batches_on(&fresh, &state).await;
    parts::assert_equal_pools(&kernel, &fresh);
}

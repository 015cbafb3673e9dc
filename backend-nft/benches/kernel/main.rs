//! Measures the backend with the real kernel, and a layout with a chain per service loaded by `nft -f` for comparison.
//!
//! ```text
//!   cargo bench -p fairlead-backend-nft                    1,000, 10,000 and 50,000 services, the comparison at 1,000
//!   cargo bench -p fairlead-backend-nft -- --full          with the comparison at 10,000 (minutes)
//!   cargo bench -p fairlead-backend-nft -- data-path       one part: flows, large, services, data-path
//!   cargo bench -p fairlead-backend-nft -- -o json         as JSON
//! ```
//!
//! Each measurement has a thread and a network namespace of its own. Needs root.

// A panic is how a benchmark fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chains;
mod data_path;
mod flows;
mod report;
mod sendmsg;
mod snapshot;
mod steps;

use backend::testing::ProgramAll as _;
use std::{
    net::IpAddr,
    num::NonZeroU16,
    time::{Duration, Instant},
};

use backend::{
    NodeState,
    dataplane::{DataplaneOptions, LocalDetector},
    testing::{Stack, apply, synthetic},
};
use backend_nft::Nft;
use netlink::testing::in_netns;
use proto::model::{Endpoint, IpFamily, Operation, PoolClass, PoolId, ServicePortKey};
use report::{BenchReport, rss};

/// Endpoints of each service.
const EACH: u32 = 10;

/// The parts that can be selected.
const PARTS: [&str; 4] = ["flows", "large", "services", "data-path"];

fn main() {
    sendmsg::record();
    let arguments: Vec<String> = std::env::args().collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let is_selected = |part: &str| has(part) || !PARTS.iter().any(|part| has(part));
    let mut report = BenchReport::default();
    // First, because the memory of the process only grows.
    if is_selected("flows") {
        report.extend(flows::measure());
    }
    if is_selected("large") {
        for (services, each) in [(10_000, 25), (50_000, 5)] {
            report.extend(in_netns(move || runtime().block_on(measure_large(services, each))));
        }
    }
    if is_selected("services") {
        for services in [1_000, 10_000] {
            report.extend(in_netns(move || runtime().block_on(measure(services))));
            report.extend(in_netns(move || runtime().block_on(measure_mixed(services))));
            if services == 1_000 || has("--full") {
                let ours = report.last("cold load, in all", services);
                report.extend(in_netns(move || chains::measure(services, EACH, ours)));
            }
        }
    }
    if has("data-path") || has("--full") {
        data_path::measure([1_000, 10_000, 30_000]).into_iter().for_each(|measured| report.extend(measured));
        report.extend(data_path::measure_spread(1_000));
    }
    if has("json") { report.print_json() } else { report.print() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

async fn measure(services: u32) -> BenchReport {
    let mut report = BenchReport::new(services);
    let state = synthetic(services, EACH, Stack::V4);

    let mut backend = backend();
    cold(&mut report, &mut backend, &state).await;
    report.duration("reconcile, nothing changed", time(&mut backend, &state).await);
    report.duration("restart, nothing changed", time(&mut self::backend(), &state).await);

    steps::measure(&mut report, &mut backend, state).await;
    report
}

/// Returns when the first transaction ended.
async fn cold(report: &mut BenchReport, backend: &mut Nft, state: &NodeState) -> Instant {
    sendmsg::transactions();
    report.duration("cold load, in all", time(backend, state).await);
    let transactions = sendmsg::transactions();
    let took = || transactions.iter().map(|(_, took)| *took);
    report.duration("cold load, inside sendmsg", took().sum());
    report.duration("cold load, longest transaction", took().max().unwrap());
    report.count("cold load, transactions", transactions.len());
    transactions[0].0
}

/// Measures a large node, from the bytes of a snapshot to the kernel.
async fn measure_large(services: u32, each: u32) -> BenchReport {
    let mut report = BenchReport::new(services);
    let snapshot = snapshot::encode(services, each);
    let mut backend = backend();
    let start = Instant::now();
    let state = snapshot::decode(&snapshot);
    report.duration("snapshot: decoded, staged, committed", start.elapsed());
    let first = cold(&mut report, &mut backend, &state).await;
    report.duration("snapshot: until default/kubernetes answers", first - start);
    report.duration("snapshot: until everything is programmed", start.elapsed());
    report.bytes("memory: the process", rss());
    report.duration("snapshot: restart, nothing changed", time(&mut self::backend(), &state).await);
    steps::replace(&mut report, &mut backend, state).await;
    report
}

/// Measures a similar number of endpoints in pools of 1 to 200.
async fn measure_mixed(services: u32) -> BenchReport {
    let mut report = BenchReport::new(services);
    let state = mixed(services);
    let mut backend = backend();
    report.duration("cold load, pools of 1 to 200", time(&mut backend, &state).await);
    report.duration("restart, pools of 1 to 200", time(&mut self::backend(), &state).await);
    report
}

fn mixed(services: u32) -> NodeState {
    let mut state = synthetic(services, 0, Stack::V4);
    let keys: Vec<ServicePortKey> = state.service_ports().keys().cloned().collect();
    let mut addresses = 0x0a80_0001..;
    let operations: Vec<Operation> = (0..)
        .zip(keys)
        .map(|(n, key)| {
            // One in fifty pools is large.
            let len = if n % 50 == 0 { 20 + n % 181 } else { 1 + n % 17 };
            let endpoints = addresses
                .by_ref()
                .take(len)
                .map(|address: u32| Endpoint::new(IpAddr::V4(address.into()), NonZeroU16::new(8080).unwrap()));
            let pool = PoolId { key, class: PoolClass::Cluster, family: IpFamily::V4 };
            Operation::ReplacePool { pool, endpoints: endpoints.collect() }
        })
        .collect();
    apply(&mut state, operations);
    state
}

fn backend() -> Nft {
    let local_detector = LocalDetector::ClusterCidr(vec!["10.128.0.0/9".parse().unwrap()]);
    backend_nft::open(DataplaneOptions { local_detector, ..DataplaneOptions::default() }).unwrap()
}

async fn time(backend: &mut Nft, state: &NodeState) -> Duration {
    let start = Instant::now();
    let applied = backend.reconcile_all(state).await.unwrap();
    assert_eq!(applied.failures, []);
    start.elapsed()
}

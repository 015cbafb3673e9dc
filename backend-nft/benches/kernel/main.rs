//! How long the kernel takes, beside a layout with a chain per service loaded by `nft -f`.
//!
//! ```text
//!   cargo bench -p fairlead-backend-nft                    1,000 and 10,000 services, the comparison at 1,000
//!   cargo bench -p fairlead-backend-nft -- --full          the comparison at 10,000 too (minutes)
//!   cargo bench -p fairlead-backend-nft -- -o json         for programs
//! ```
//!
//! Each measurement has a thread and a network namespace of its own. Needs root.

// A panic is how a benchmark fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chains;
mod report;
mod steps;

use std::time::Instant;

use agent::{
    Backend, NodeState,
    testing::{Stack, synthetic},
};
use backend_nft::{Nft, Options};
use netlink::testing::in_netns;
use report::{Report, rss};

/// Endpoints of each service.
const EACH: u32 = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let mut report = Report::default();
    for services in [1_000, 10_000] {
        report.extend(in_netns(move || runtime().block_on(measure(services))));
        if services == 1_000 || has("--full") {
            let ours = report.last("cold load, in all", services);
            report.extend(in_netns(move || chains::measure(services, EACH, ours)));
        }
    }
    if has("json") { report.print_json() } else { report.print() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

async fn measure(services: u32) -> Report {
    let mut report = Report::new(services);
    let before = rss();
    let state = synthetic(services, EACH, Stack::V4);
    report.bytes("memory: the state", rss() - before);

    let mut backend = backend();
    report.duration("cold load, in all", time(&mut backend, &state).await);
    if std::env::var_os("MIXED").is_some() {
        use proto::model::*;
        let mut mixed = state.clone();
        let keys: Vec<_> = mixed.services().keys().cloned().collect();
        let mut n = 0u32;
        let ops: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(i, key)| {
                let len = if i % 50 == 0 { 20 + i as u32 % 181 } else { 1 + i as u32 % 17 };
                let endpoints = (0..len)
                    .map(|_| {
                        n += 1;
                        Endpoint::new(
                            std::net::Ipv4Addr::from(0x0a80_0000 + n).into(),
                            80.try_into().unwrap(),
                        )
                    })
                    .collect();
                Operation::ReplacePool {
                    pool: PoolId { key: key.clone(), class: PoolClass::Cluster, family: Family::V4 },
                    endpoints,
                }
            })
            .collect();
        agent::testing::apply(&mut mixed, ops);
        backend.cleanup().await.unwrap();
        eprintln!("endpoints {n}");
        report.duration("mixed cold", time(&mut backend, &mixed).await);
        backend.cleanup().await.unwrap();
        report.duration("cold load, in all", time(&mut backend, &state).await);
    }
    report.bytes("memory: state and backend", rss() - before);
    report.duration("reconcile, nothing changed", time(&mut backend, &state).await);
    report.bytes("memory: after a reconcile", rss() - before);

    steps::measure(&mut report, &mut backend, state).await;
    report
}

fn backend() -> Nft {
    Nft::new(Options { cluster_cidrs: vec!["10.128.0.0/9".parse().unwrap()], ..Options::default() }).unwrap()
}

async fn time(backend: &mut Nft, state: &NodeState) -> std::time::Duration {
    let start = Instant::now();
    let applied = backend.reconcile(state).await.unwrap();
    assert_eq!(applied.failures, []);
    start.elapsed()
}

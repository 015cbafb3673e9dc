//! How long changes take, beside what `iptables-restore` alone takes for the same lines, and beside kube-proxy's way: all chains that
//! services share written again with every change.
//!
//! ```text
//!   cargo bench -p fairlead-backend-iptables                   100 and 1,000 services with 10 endpoints each, both variants
//!   cargo bench -p fairlead-backend-iptables -- --full         10,000 too: minutes, and iptables-nft is not asked for a plain cold load
//!   cargo bench -p fairlead-backend-iptables -- nft            one variant: nft or legacy
//!   cargo bench -p fairlead-backend-iptables -- -o json        for programs
//! ```
//!
//! The backend has a network namespace, and the plain tools another one that holds the same; they take turns. Needs root.

// A panic is how a benchmark fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod plain;
mod report;
mod rules;
mod steps;

use std::time::{Duration, Instant};

use agent::{
    Backend, NodeState,
    testing::{Stack, synthetic},
    traffic::{LocalPods, Options},
};
use backend_iptables::{Iptables, Variant};
use netlink::testing::in_netns;
use plain::Plain;
use report::Report;

/// Endpoints of each service.
const EACH: u32 = 10;

/// With more, iptables-nft takes minutes for what it is given at once: it walks through a list of all chains with each line.
const MOST_AT_ONCE: u32 = 1_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let variants = Variant::ALL.map(|variant| variant.to_string());
    let wanted = |variant: &str| has(variant) || !variants.iter().any(|variant| has(variant));
    let mut report = Report::default();
    for services in [100, 1_000, 10_000] {
        for variant in Variant::ALL {
            if wanted(&variant.to_string()) && (services < 10_000 || has("--full")) {
                report.extend(in_netns(move || runtime().block_on(measure(variant, services))));
            }
        }
    }
    if has("json") { report.print_json() } else { report.print() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn measure(variant: Variant, services: u32) -> Report {
    let mut report = Report::new(variant, services);
    let plain = Plain::new(variant);
    let state = synthetic(services, EACH, Stack::V4);
    let mut backend = backend(variant);
    let cold = time(&mut backend, &state).await;
    report.duration("cold load", cold);
    let saved = plain::saved(variant);
    if variant == Variant::Legacy || services <= MOST_AT_ONCE {
        let alone = plain.load(saved.clone());
        report.duration("cold load, iptables-restore", alone);
        report.ratio("cold load, to iptables-restore", cold, alone);
    } else {
        plain.fill(state.clone());
    }
    report.duration("reconcile, nothing changed", time(&mut backend, &state).await);
    steps::measure(&mut report, &mut backend, &plain, state, &saved[0]).await;
    report
}

fn backend(variant: Variant) -> Iptables {
    let local_pods = LocalPods::ClusterCidr(vec!["10.128.0.0/9".parse().unwrap()]);
    Iptables::new(Options { local_pods, ..Options::default() }, Some(variant))
}

async fn time(backend: &mut Iptables, state: &NodeState) -> Duration {
    let start = Instant::now();
    let applied = backend.reconcile(state).await.unwrap();
    assert_eq!(applied.failures, []);
    start.elapsed()
}

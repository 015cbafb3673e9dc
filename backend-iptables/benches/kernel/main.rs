//! Measures changes, compared with `iptables-restore` alone for the same lines, and with the method of kube-proxy,
//! which writes all shared chains with every change.
//!
//! ```text
//!   cargo bench -p fairlead-backend-iptables                   100 and 1,000 services, 10 endpoints each, both
//!   cargo bench -p fairlead-backend-iptables -- --full         10,000 too (minutes): iptables-nft by changes only
//!   cargo bench -p fairlead-backend-iptables -- nft            one variant: nft or legacy
//!   cargo bench -p fairlead-backend-iptables -- -o json        for programs
//! ```
//!
//! The backend has a network namespace, and the plain programs another one with the same rules; they run in turn. Needs
//! root. All namespaces of a machine share the xtables lock: nothing else may use iptables-legacy meanwhile.

// A panic is how a benchmark fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod plain;
mod report;
mod rules;
mod steps;

use backend::testing::ProgramAll as _;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backend::{
    NodeState,
    dataplane::{DataplaneOptions, LocalDetector},
    testing::{Stack, synthetic},
};
use backend_iptables::Iptables;
use iptables::Variant;
use netlink::testing::in_netns;
use plain::Plain;
use report::Report;
use rules::Rules;
use steps::Texts;

/// Endpoints of each service.
const EACH: u32 = 10;

/// With more, iptables-nft takes minutes to save the rules, and to restore them at once: both walk a list of all chains
/// for each chain.
const MOST_FOR_NFT: u32 = 1_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let variants = Variant::ALL.map(|variant| variant.to_string());
    let wanted = |variant: &str| has(variant) || !variants.iter().any(|variant| has(variant));
    let mut report = Report::default();
    for services in [100, 1_000, 10_000] {
        if services == 10_000 && !has("--full") {
            break;
        }
        let texts = Arc::new(in_netns(move || runtime().block_on(Texts::new(services))));
        for variant in Variant::ALL.into_iter().filter(|variant| wanted(&variant.to_string())) {
            let texts = texts.clone();
            report.extend(in_netns(move || runtime().block_on(measure(variant, services, &texts))));
        }
    }
    if has("json") { report.print_json() } else { report.print() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn measure(variant: Variant, services: u32, texts: &Texts) -> Report {
    let mut report = Report::new(variant, services);
    let plain = Plain::new(variant);
    let state = synthetic(services, EACH, Stack::V4);
    let mut backend = backend(variant);
    let cold = time(&mut backend, &state).await;
    report.duration("cold load", cold);
    let is_slow = variant == Variant::Nft && services > MOST_FOR_NFT;
    if is_slow {
        plain.fill(state.clone());
    } else {
        let alone = plain.load(texts.saved.clone());
        report.duration("cold load, iptables-restore", alone);
        report.ratio("cold load, to iptables-restore", cold, alone);
        report.duration("reconcile, nothing changed", time(&mut backend, &state).await);
    }
    let state = steps::measure(&mut report, &mut backend, &plain, state, texts).await;
    if !is_slow {
        let led_to = Rules::parse(&plain::saved(variant)[0]).sorted();
        assert_eq!(led_to, Rules::parse(&texts.saved[0]).sorted(), "the changes must have led back");
        assert_eq!(backend.reconcile_all(&state).await.unwrap().writes, 0);
    }
    report
}

fn backend(variant: Variant) -> Iptables {
    let local_detector = LocalDetector::ClusterCidr(vec!["10.128.0.0/9".parse().unwrap()]);
    backend_iptables::open(DataplaneOptions { local_detector, ..DataplaneOptions::default() }, Some(variant))
}

async fn time(backend: &mut Iptables, state: &NodeState) -> Duration {
    let start = Instant::now();
    let applied = backend.reconcile_all(state).await.unwrap();
    assert_eq!(applied.failures, []);
    start.elapsed()
}

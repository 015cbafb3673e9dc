//! Random histories with the fake kernel: applying changes leads to the same rules as a reconcile from an empty kernel,
//! each script is accepted, and a VIP with rules before and after a change always has rules in between.

use backend::testing::ProgramAll as _;
use std::time::Duration;

use backend::{
    Backend as _, Changes, Drift,
    testing::{ErrorDetail, History, contract},
};
use iptables::Ruleset;
use proptest::prelude::*;

use super::*;
use crate::kernel::Suspicion;

/// A node with a network plugin and kubelet.
const FOREIGN: &str = "*filter
:CNI-FORWARD - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j CNI-FORWARD
-A CNI-FORWARD -m comment --comment \"not -j KUBE-FORWARD\" -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j MASQUERADE
COMMIT
";

/// Every change is one script. (The driver takes the largest number for a preview.)
const UNLIMITED: usize = usize::MAX - 1;

fn node() -> FakeKernel {
    let kernel = FakeKernel::default();
    IpFamily::ALL.into_iter().for_each(|family| kernel.change_by_other(family, FOREIGN));
    kernel
}

/// Pods in the node's own CIDR, which is among what changes, or in fixed ranges.
fn driver_for(kernel: &FakeKernel, seed: u64) -> FakeDriver {
    if seed.is_multiple_of(2) {
        return driver(kernel);
    }
    kernel.driver(DataplaneOptions { local_detector: LocalDetector::NodeCidr, ..DataplaneOptions::default() })
}

fn shapes(kernel: &FakeKernel) -> [Vec<String>; 2] {
    IpFamily::ALL.map(|family| kernel.shape(family))
}

/// The VIPs that are served or rejected. A VIP that moves to another service port is released first if both changes do
/// not fit into one script: then each is listed with its service port.
fn answered(rules: &Ruleset, script_lines: usize) -> BTreeSet<String> {
    let chains = [SharedChain::Services, SharedChain::UnservedServices, SharedChain::UnservedExternal];
    let lines = chains.into_iter().flat_map(|shared| rules.rules(shared.table(), shared.chain()));
    let vip = |line: &String| {
        let (vip, rest) = line.split_once(" -m comment ")?;
        let (comment, port) = rest.split_once("--dport ")?;
        let service_port = comment.split(['"', ' ']).find(|word| word.contains('/')).unwrap_or_default();
        let service_port = if script_lines == UNLIMITED { "" } else { service_port };
        Some(format!("{vip} {} {service_port}", port.split(' ').next()?))
    };
    lines.filter_map(vip).collect()
}

/// Whether the applied state of the driver equals the rules of the kernel.
async fn is_unchanged(driver: &mut FakeDriver, kernel: &FakeKernel) -> bool {
    IpFamily::ALL.into_iter().for_each(|family| kernel.suspect(Suspicion::Compare(family)));
    // The comparison is immediate; without drift the driver waits for the next one.
    tokio::time::timeout(Duration::ZERO, driver.drifted()).await.is_err()
}

async fn check_history(seed: u64, steps: usize, max_lines: usize, script_lines: usize) {
    let (kernel, mut history) = (node(), History::new(seed));
    kernel.set_max_lines(max_lines);
    kernel.set_script_lines(script_lines);
    history.jump();
    let mut driver = driver_for(&kernel, seed);
    driver.reconcile_all(history.state()).await.unwrap();
    kernel.take_restores();
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let changes = if step % 20 == 19 { history.jump() } else { history.step() };
        let before = IpFamily::ALL.map(|family| answered(&kernel.ruleset(family), script_lines));
        let applied = driver.apply_all(history.state(), &changes).await.unwrap();
        assert_eq!(applied.failures, [], "{at}");
        let restores = kernel.take_restores();
        assert!(restores.iter().all(|restore| restore.accepted), "{at}: {restores:?}");
        assert!(restores.len() <= 2 || script_lines < UNLIMITED || changes.node, "{at}: {restores:?}");
        for Restore { family, steps, script, .. } in &restores {
            let always = &before[*family as usize] & &answered(&kernel.ruleset(*family), script_lines);
            for rules in steps {
                let lost: Vec<_> = always.difference(&answered(rules, script_lines)).cloned().collect();
                assert!(lost.is_empty(), "{at}: {lost:?} had no rules within\n{script}");
            }
        }

        let fresh = node();
        driver_for(&fresh, seed).reconcile_all(history.state()).await.unwrap();
        assert_eq!(shapes(&kernel), shapes(&fresh), "{at}");
        // The order of rules in shared chains is free, except for the fixed rules.
        assert_eq!(driver_for(&kernel, seed).reconcile_all(history.state()).await.unwrap().writes, 0, "{at}");
        assert!(is_unchanged(&mut driver, &kernel).await, "{at}");
        kernel.take_restores();
    }
    driver.cleanup().await.unwrap();
    assert_eq!(shapes(&kernel), shapes(&node()), "seed {seed}: rules of other programs have changed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn apply_leads_to_the_same_rules_as_reconcile(
        seed in any::<u64>(),
        steps in 1..30_usize,
        max_lines in prop_oneof![1..30_usize, Just(usize::MAX)],
        script_lines in prop_oneof![1..60_usize, Just(UNLIMITED)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(check_history(seed, steps, max_lines, script_lines));
    }
}

/// A history in which scripts fail, service ports are rejected, others change our rules and the process restarts: after
/// each step without failures, the kernel contains what a new one would.
async fn check_faults(seed: u64, steps: usize, script_lines: usize) {
    let (kernel, mut history, mut rng) = (FakeKernel::default(), History::new(seed), fastrand::Rng::with_seed(seed));
    kernel.set_script_lines(script_lines);
    history.jump();
    let mut driver = driver_for(&kernel, seed);
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let changes = history.step();
        let is_rejecting = rng.u8(0..4) == 0;
        match rng.u8(0..8) {
            0..4 => kernel.fail_after(rng.usize(0..4)),
            4 => drop(kernel.remove_any(rng.usize(..))),
            5 => driver = driver_for(&kernel, seed),
            _ => {}
        }
        if is_rejecting {
            let detail = if rng.bool() { ErrorDetail::Named } else { ErrorDetail::Unnamed };
            kernel.reject(["-d 10.96.0.2/32", "10.244.1.1:8080", "fd00:96:1::3/128"], detail);
            let _ = driver.apply(history.state(), &changes).await;
            let changes = history.step();
            let _ = driver.apply(history.state(), &changes).await;
            kernel.reject([], detail);
        } else {
            let _ = driver.apply(history.state(), &changes).await;
        }
        kernel.fail_after(usize::MAX);
        let changes = history.step();
        let mut report = driver.apply(history.state(), &changes).await.expect(&at);
        let mut calls = 0;
        while report.unfinished.is_some() || !report.failures.is_empty() {
            report = match report.unfinished {
                Some(_) => driver.apply(history.state(), &Changes::default()).await,
                None => driver.reconcile(history.state()).await,
            }
            .expect(&at);
            calls += 1;
            assert!(calls < 1_000, "{at}: {report:#?}");
        }
        if !is_unchanged(&mut driver, &kernel).await {
            driver.reconcile_all(history.state()).await.unwrap();
        }
        let fresh = FakeKernel::default();
        driver_for(&fresh, seed).reconcile_all(history.state()).await.unwrap();
        for family in IpFamily::ALL {
            let [found, expected] =
                [&kernel, &fresh].map(|kernel| kernel.shape_but(family, |chain| chain.policy.is_some()));
            let differing: Vec<_> = found.iter().filter(|chain| !expected.contains(chain)).collect();
            let missing: Vec<_> = expected.iter().filter(|chain| !found.contains(chain)).collect();
            assert!(differing.is_empty() && missing.is_empty(), "{at}: {differing:#?} instead of {missing:#?}");
        }
        assert_eq!(driver_for(&kernel, seed).reconcile_all(history.state()).await.unwrap().writes, 0, "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn kernel_converges_after_faults(
        seed in any::<u64>(),
        steps in 1..20_usize,
        script_lines in prop_oneof![1..60_usize, Just(UNLIMITED)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(check_faults(seed, steps, script_lines));
    }
}

#[tokio::test]
async fn drift_of_our_chains_is_detected() {
    let state = state(|web| web.endpoints(TWO));
    for family in IpFamily::ALL {
        for (change, is_drift) in [
            ("*nat\n-A CNI-HOSTPORT -j ACCEPT\nCOMMIT\n", false),
            ("*nat\n-I OUTPUT -j CNI-HOSTPORT\nCOMMIT\n", false),
            ("*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n", true),
            ("*nat\n-I KUBE-SERVICES -j RETURN\nCOMMIT\n", true),
            ("*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n", true),
            (
                "*filter\n-D INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS\nCOMMIT\n",
                true,
            ),
        ] {
            let kernel = node();
            let mut driver = driver(&kernel);
            driver.reconcile_all(&state).await.unwrap();
            kernel.change_by_other(family, change);
            assert_eq!(is_unchanged(&mut driver, &kernel).await, !is_drift, "{family}: {change}");
            let (what, by) = ("rule".to_owned(), "unknown".to_owned());
            kernel.suspect(Suspicion::Compare(family));
            if is_drift {
                assert_eq!(driver.drifted().await, Drift::Changed { object: what, process: by, pid: 0 });
            }
        }
    }
}

#[tokio::test]
async fn fulfils_the_backend_contract() {
    for seed in 0..10 {
        let kernel = node();
        kernel.set_script_lines(if seed < 5 { UNLIMITED } else { 10 * seed as usize });
        contract::check_all(|| driver_for(&kernel, seed), seed).await;
    }
}

//! Random histories against the fake: what changes lead to is what is built from nothing, by scripts that a kernel takes, and nobody who
//! is served, or refused, before and after a change is neither in between.

use std::time::Duration;

use backend::{
    Drift,
    testing::{History, contract},
};
use proptest::prelude::*;

use super::*;
use crate::kernel::{Suspicion, fake::Tables};

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

fn node() -> Fake {
    let kernel = Fake::default();
    IpFamily::ALL.into_iter().for_each(|family| kernel.stranger(family, FOREIGN));
    kernel
}

/// Pods in the node's own CIDR, which is among what changes, or in fixed ranges.
fn driver_for(kernel: &Fake, seed: u64) -> FakeDriver {
    if seed.is_multiple_of(2) {
        return driver(kernel);
    }
    kernel.driver(DataplaneOptions { local_detector: LocalDetector::NodeCidr, ..DataplaneOptions::default() })
}

fn shapes(kernel: &Fake) -> [Vec<String>; 2] {
    IpFamily::ALL.map(|family| kernel.tables(family).shape())
}

/// VIPs, with their ports, that lead somewhere or are refused.
fn answered(tables: &Tables) -> BTreeSet<String> {
    let chains = [Dispatch::Services, Dispatch::UnservedServices, Dispatch::UnservedExternal];
    let lines = chains.into_iter().flat_map(|dispatch| tables.rules(dispatch.table(), dispatch.chain()));
    let vip = |line: &String| {
        let (vip, rest) = line.split_once(" -m comment ")?;
        let (_, port) = rest.split_once("--dport ")?;
        Some(format!("{vip} {}", port.split(' ').next()?))
    };
    lines.filter_map(vip).collect()
}

/// Whether what the driver remembers is what the kernel holds.
async fn is_as_remembered(driver: &mut FakeDriver, kernel: &Fake) -> bool {
    IpFamily::ALL.into_iter().for_each(|family| kernel.suspect(Suspicion::Compare(family)));
    // It looks at once; when all is well it waits for the next time.
    tokio::time::timeout(Duration::ZERO, driver.drifted()).await.is_err()
}

async fn follow(seed: u64, steps: usize, at_once: usize) {
    let (kernel, mut history) = (node(), History::new(seed));
    kernel.takes(at_once);
    history.jump();
    let mut driver = driver_for(&kernel, seed);
    driver.reconcile(history.state()).await.unwrap();
    kernel.asked();
    for step in 0..steps {
        let at = format!("seed {seed}, step {step}");
        let changes = if step % 20 == 19 { history.jump() } else { history.step() };
        let before = IpFamily::ALL.map(|family| answered(&kernel.tables(family)));
        let applied = driver.apply(history.state(), &changes).await.unwrap();
        assert_eq!(applied.failures, [], "{at}");
        let asked = kernel.asked();
        assert!(asked.len() <= 2 && asked.iter().all(|asked| asked.accepted), "{at}: {asked:?}");
        for Asked { family, steps, script, .. } in &asked {
            let always = &before[*family as usize] & &answered(&kernel.tables(*family));
            for tables in steps {
                let lost: Vec<_> = always.difference(&answered(tables)).cloned().collect();
                assert!(lost.is_empty(), "{at}: {lost:?} led nowhere within\n{script}");
            }
        }

        let fresh = node();
        driver_for(&fresh, seed).reconcile(history.state()).await.unwrap();
        assert_eq!(shapes(&kernel), shapes(&fresh), "{at}");
        // The order of lines is free, but not what comes first and last.
        assert_eq!(driver_for(&kernel, seed).reconcile(history.state()).await.unwrap().writes, 0, "{at}");
        assert!(is_as_remembered(&mut driver, &kernel).await, "{at}");
        kernel.asked();
    }
    driver.cleanup().await.unwrap();
    assert_eq!(shapes(&kernel), shapes(&node()), "seed {seed}: rules of others have changed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn changes_lead_to_what_is_built_from_nothing(
        seed in any::<u64>(),
        steps in 1..30_usize,
        at_once in prop_oneof![1..30_usize, Just(usize::MAX)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(follow(seed, steps, at_once));
    }
}

/// Of what is ours; what others have is theirs.
#[tokio::test]
async fn what_others_change_is_noticed() {
    let state = state(|web| web.endpoints(TWO));
    for family in IpFamily::ALL {
        for (change, noticed) in [
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
            driver.reconcile(&state).await.unwrap();
            kernel.stranger(family, change);
            assert_eq!(is_as_remembered(&mut driver, &kernel).await, !noticed, "{family}: {change}");
            let (what, by) = ("rule".to_owned(), "unknown".to_owned());
            kernel.suspect(Suspicion::Compare(family));
            if noticed {
                assert_eq!(driver.drifted().await, Drift::Changed { object: what, process: by, pid: 0 });
            }
        }
    }
}

#[tokio::test]
async fn conforms() {
    for seed in 0..10 {
        let kernel = node();
        contract::check_all(|| driver_for(&kernel, seed), seed).await;
    }
}

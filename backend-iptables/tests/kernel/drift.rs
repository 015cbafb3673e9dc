//! Somebody else changes our chains: it is noticed, and as little as possible is written to put it right. What we write ourselves, and
//! what others do to theirs, is not.

use std::time::Duration;

use backend::{
    Backend, Drift, NodeState,
    testing::{History, mk_state},
};
use backend_iptables::Iptables;
use iptables::Variant;
use tokio::time::timeout;

use super::support::{backend, reconcile, run, saved, tool};

/// A look at each family, and more.
const LOOKS: Duration = Duration::from_millis(1500);

/// What must be noticed may take as long as a busy machine needs to run `iptables-save` a few times.
const PATIENCE: Duration = Duration::from_secs(60);

fn state() -> NodeState {
    mk_state()
        .service("default/web", |web| {
            web.cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").node_port(30080).endpoints([
                "10.244.1.1:8080",
                "10.244.2.1:8080",
                "[fd00:244:1::1]:8080",
            ])
        })
        .service("default/idle", |idle| idle.cluster_ip("10.96.0.2"))
        .build()
}

/// What can be done to us, in the words of `iptables-restore --noflush`, and how many lines put it right.
const CHANGES: [(&str, usize); 9] = [
    ("*nat\n-F KUBE-SERVICES\nCOMMIT\n", 3),
    ("*nat\n-D KUBE-SERVICES 1\nCOMMIT\n", 1),
    ("*nat\n-A KUBE-SERVICES -d 192.0.2.1/32 -j ACCEPT\nCOMMIT\n", 3),
    ("*nat\n-I KUBE-SERVICES -d 192.0.2.1/32 -j ACCEPT\nCOMMIT\n", 1),
    ("*nat\n-I KUBE-MARK-MASQ -j RETURN\nCOMMIT\n", 2),
    ("*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n", 2),
    ("*nat\n-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n", 1),
    ("*filter\n-F KUBE-FORWARD\nCOMMIT\n", 3),
    ("*filter\n-D KUBE-SERVICES 1\nCOMMIT\n", 1),
];

fn change(variant: Variant, script: &str) {
    tool(&format!("iptables-{variant}-restore --noflush"), script);
}

async fn noticed(backend: &mut Iptables, within: Duration) -> Option<Drift> {
    timeout(within, backend.drifted()).await.ok()
}

/// Lines that service ports add to a chain are there in any order.
fn sorted(mut rules: Vec<String>) -> Vec<String> {
    rules.sort();
    rules
}

#[test]
fn what_others_change_is_noticed_and_put_right() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut backend = backend(variant);
            backend.reconcile(&state()).await.unwrap();
            let before = saved(variant);
            for (script, writes) in CHANGES {
                change(variant, script);
                assert_ne!(saved(variant), before, "{script}");
                let drift = noticed(&mut backend, PATIENCE).await;
                let by = match variant {
                    // As much of its name as the kernel keeps.
                    Variant::Nft => "iptables-nft-re",
                    Variant::Legacy => "unknown",
                };
                match drift {
                    Some(Drift::Changed { process: told, .. }) if told == by => {}
                    // Whose the rule was in a built-in chain is not announced.
                    Some(Drift::Possible) if script.contains("-D PREROUTING") => {}
                    other => panic!("{variant}: {script}: {other:?}"),
                }
                let applied = backend.reconcile(&state()).await.unwrap();
                assert_eq!(applied.writes, writes, "{variant}: {script}");
                assert_eq!(sorted(saved(variant)), sorted(before.clone()), "{variant}: {script}");
            }
        });
    }
}

#[test]
fn each_table_may_be_flushed() {
    for variant in Variant::ALL {
        for table in ["nat", "filter"] {
            for name in ["iptables", "ip6tables"] {
                run(move || async move {
                    let mut backend = backend(variant);
                    backend.reconcile(&state()).await.unwrap();
                    let before = saved(variant);
                    tool(&format!("{name}-{variant} -t {table} -F"), "");
                    tool(&format!("{name}-{variant} -t {table} -X"), "");
                    assert!(noticed(&mut backend, PATIENCE).await.is_some(), "{variant} {name} {table}");
                    reconcile(variant, &state()).await;
                    assert_eq!(sorted(saved(variant)), sorted(before), "{variant} {name} {table}");
                });
            }
        }
    }
}

#[test]
fn what_others_do_to_theirs_is_not_noticed() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut backend = backend(variant);
            backend.reconcile(&state()).await.unwrap();
            change(variant, "*nat\n:MINE - [0:0]\n-A MINE -j RETURN\n-A PREROUTING -j MINE\n-F MINE\nCOMMIT\n");
            change(variant, "*mangle\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n");
            assert_eq!(noticed(&mut backend, LOOKS).await, None, "{variant}");
            assert_eq!(backend.reconcile(&state()).await.unwrap().writes, 0);
        });
    }
}

/// The running sum of what was written is the sum of what is there, after whatever history.
#[test]
fn what_we_write_is_not_noticed() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut history = History::new(11);
            history.jump();
            let mut backend = backend(variant);
            backend.reconcile(history.state()).await.unwrap();
            for step in 0..12 {
                let changes = history.step();
                backend.apply(history.state(), &changes).await.unwrap();
                if step % 4 == 3 {
                    assert_eq!(noticed(&mut backend, LOOKS).await, None, "{variant}, step {step}");
                }
            }
            // It would have been.
            change(variant, "*nat\n-I KUBE-MARK-MASQ -j RETURN\nCOMMIT\n");
            assert!(noticed(&mut backend, PATIENCE).await.is_some(), "{variant}");
        });
    }
}

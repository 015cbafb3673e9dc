//! Drift: changes of our chains by other processes are detected and reverted with few writes. Our own writes, and
//! changes of other chains, are not drift.

use backend::testing::ProgramAll as _;
use std::time::Duration;

use backend::{
    Backend, Drift, NodeState,
    testing::{History, mk_state},
};
use backend_iptables::Iptables;
use iptables::Variant;
use tokio::time::timeout;

use super::support::{backend, reconcile, run, saved, tool};

/// Long enough to read both families.
const POLL_TIME: Duration = Duration::from_millis(1500);

/// Long enough for a busy machine to run `iptables-save` a few times.
const TIMEOUT: Duration = Duration::from_secs(60);

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

/// Scripts of another process, and the number of lines that revert each.
const CHANGES: [(&str, usize); 9] = [
    ("*nat\n-F KUBE-SERVICES\nCOMMIT\n", 2),
    ("*nat\n-D KUBE-SERVICES 1\nCOMMIT\n", 1),
    ("*nat\n-A KUBE-SERVICES -d 192.0.2.1/32 -j ACCEPT\nCOMMIT\n", 3),
    ("*nat\n-I KUBE-SERVICES -d 192.0.2.1/32 -j ACCEPT\nCOMMIT\n", 1),
    ("*nat\n-I KUBE-MARK-MASQ -j RETURN\nCOMMIT\n", 2),
    ("*nat\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\nCOMMIT\n", 2),
    ("*nat\n-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n", 1),
    ("*filter\n-F KUBE-FORWARD\nCOMMIT\n", 4),
    ("*filter\n-D KUBE-SERVICES 1\nCOMMIT\n", 1),
];

fn change(variant: Variant, script: &str) {
    tool(&format!("iptables-{variant}-restore --noflush"), script);
}

async fn drift(backend: &mut Iptables, within: Duration) -> Option<Drift> {
    timeout(within, backend.drifted()).await.ok()
}

/// The rules of service ports in shared chains have no order.
fn sorted(mut rules: Vec<String>) -> Vec<String> {
    rules.sort();
    rules
}

#[test]
fn changes_of_our_chains_are_detected_and_reverted() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut backend = backend(variant);
            backend.reconcile_all(&state()).await.unwrap();
            let before = saved(variant);
            for (script, writes) in CHANGES {
                change(variant, script);
                assert_ne!(saved(variant), before, "{script}");
                let drift = drift(&mut backend, TIMEOUT).await;
                let by = match variant {
                    // The kernel truncates the name of the process.
                    Variant::Nft => "iptables-nft-re",
                    Variant::Legacy => "unknown",
                };
                match drift {
                    Some(Drift::Changed { process, .. }) if process == by => {}
                    other => panic!("{variant}: {script}: {other:?}"),
                }
                let applied = backend.reconcile_all(&state()).await.unwrap();
                assert_eq!(applied.writes, writes, "{variant}: {script}");
                assert_eq!(sorted(saved(variant)), sorted(before.clone()), "{variant}: {script}");
            }
        });
    }
}

#[test]
fn a_flushed_table_is_detected_and_restored() {
    for variant in Variant::ALL {
        for table in ["nat", "filter"] {
            for name in ["iptables", "ip6tables"] {
                run(move || async move {
                    let mut backend = backend(variant);
                    backend.reconcile_all(&state()).await.unwrap();
                    let before = saved(variant);
                    tool(&format!("{name}-{variant} -t {table} -F"), "");
                    tool(&format!("{name}-{variant} -t {table} -X"), "");
                    assert!(drift(&mut backend, TIMEOUT).await.is_some(), "{variant} {name} {table}");
                    reconcile(variant, &state()).await;
                    assert_eq!(sorted(saved(variant)), sorted(before), "{variant} {name} {table}");
                });
            }
        }
    }
}

#[test]
fn changes_of_other_chains_are_not_drift() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut backend = backend(variant);
            backend.reconcile_all(&state()).await.unwrap();
            let unused = ":UNUSED - [0:0]\n-A UNUSED -j RETURN";
            change(
                variant,
                &format!("*nat\n:MINE - [0:0]\n{unused}\n-A MINE -j RETURN\n-A PREROUTING -j MINE\nCOMMIT\n"),
            );
            change(variant, "*nat\n-F MINE\n-F UNUSED\n-X UNUSED\nCOMMIT\n");
            change(variant, "*nat\n-D PREROUTING -j MINE\nCOMMIT\n");
            change(variant, "*mangle\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n");
            assert_eq!(drift(&mut backend, POLL_TIME).await, None, "{variant}");
            assert_eq!(backend.reconcile_all(&state()).await.unwrap().writes, 0);
        });
    }
}

/// A comment that is not UTF-8, and one with a line break, of another program.
#[test]
fn rules_with_unusual_comments_are_left() {
    for variant in Variant::ALL {
        run(move || async move {
            let unusual = b"*nat\n-A PREROUTING -m comment --comment \"caf\xe9\" -j RETURN\nCOMMIT\n";
            tool(&format!("iptables-{variant}-restore --noflush"), unusual);
            let comment = "-m comment --comment two\nCOMMIT";
            tool(&format!("iptables-{variant} -t nat -A PREROUTING {comment} -j RETURN"), "");
            let rules = || saved(variant).into_iter().filter(|line| line.starts_with("-A")).collect::<Vec<_>>();
            let before = rules();
            let mut backend = backend(variant);
            assert!(backend.reconcile_all(&state()).await.unwrap().writes > 0);
            let mut target = state();
            let operations = backend::testing::operations_between(&target, &mk_state().build());
            let changes = backend::testing::apply(&mut target, operations);
            assert!(backend.apply_all(&target, &changes).await.unwrap().writes > 0);
            assert_eq!(drift(&mut backend, POLL_TIME).await, None, "{variant}");
            backend.cleanup().await.unwrap();
            assert_eq!(rules(), before, "{variant}");
        });
    }
}

/// iptables-nft refuses a table whose chains another program has created in another way.
#[test]
fn a_family_that_cannot_be_programmed_is_not_drift() {
    for (table, tool_name) in [("ip", "ip6tables-nft-save"), ("ip6", "iptables-nft-save")] {
        run(move || async move {
            let other = "{ type filter hook prerouting priority 0; }";
            tool("nft -f -", format!("add table {table} nat\nadd chain {table} nat PREROUTING {other}\n"));
            let mut backend = backend(Variant::Nft);
            backend.reconcile_all(&state()).await.unwrap_err();
            backend.reconcile_all(&state()).await.unwrap();
            assert!(tool(tool_name, "").contains("KUBE-SERVICES"), "{table}");
            // What the failed attempts have written is compared at most once.
            if drift(&mut backend, POLL_TIME).await.is_some() {
                backend.reconcile_all(&state()).await.unwrap();
            }
            assert_eq!(drift(&mut backend, POLL_TIME).await, None, "{table}");
        });
    }
}

/// What was applied equals the observed rules, after any history.
#[test]
fn our_own_writes_are_not_drift() {
    for variant in Variant::ALL {
        run(move || async move {
            let mut history = History::new(11);
            history.jump();
            let mut backend = backend(variant);
            backend.reconcile_all(history.state()).await.unwrap();
            for step in 0..12 {
                let changes = history.step();
                backend.apply_all(history.state(), &changes).await.unwrap();
                if step % 4 == 3 {
                    assert_eq!(drift(&mut backend, POLL_TIME).await, None, "{variant}, step {step}");
                }
            }
            // Drift is still detected.
            change(variant, "*nat\n-I KUBE-MARK-MASQ -j RETURN\nCOMMIT\n");
            assert!(drift(&mut backend, TIMEOUT).await.is_some(), "{variant}");
        });
    }
}

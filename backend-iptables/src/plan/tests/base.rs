//! Reconciling from any observed rules.

use super::*;
use std::collections::BTreeSet;

use crate::{IptablesDataPlane, OwnChains, kernel::Kernel as _, names, observed::Observed, own_chains};
use backend::testing::ProgramAll as _;
use iptables::{Program, SavedRules, Variant};

/// This many service ports, with one rule each in the chain of cluster IPs.
fn many(count: u8) -> NodeState {
    let services = (1..=count).fold(mk_state(), |state, n| {
        let ip = format!("10.96.0.{n}");
        state.service(&format!("default/svc-{n:03}"), |svc| svc.cluster_ip(&ip).endpoints(ONE))
    });
    services.build()
}

/// Reconciles, and returns the scripts for IPv4.
async fn reconciled(kernel: &FakeKernel, state: &NodeState) -> String {
    kernel.take_restores();
    driver(kernel).reconcile_all(state).await.unwrap();
    let restores = kernel.take_restores();
    assert!(restores.iter().all(|restore| restore.accepted), "{restores:?}");
    let fresh = FakeKernel::default();
    driver(&fresh).reconcile_all(state).await.unwrap();
    assert_eq!(kernel.shape(IpFamily::V4), fresh.shape(IpFamily::V4));
    assert_eq!(driver(kernel).reconcile_all(state).await.unwrap().writes, 0);
    kernel.take_restores();
    restores.into_iter().filter(|restore| restore.family == IpFamily::V4).map(|restore| restore.script).collect()
}

async fn with(state: &NodeState) -> FakeKernel {
    let kernel = FakeKernel::default();
    driver(&kernel).reconcile_all(state).await.unwrap();
    kernel
}

/// Only what differs is written.
#[tokio::test]
async fn changes_of_other_processes_are_reverted() {
    let state = many(40);
    let line = |n: u8| {
        let names = names::ChainNames::new(&mk_key(&format!("default/svc-{n:03}")));
        let svc = names.chain(names::ChainKind::Svc);
        format!(
            r#"KUBE-SERVICES -d 10.96.0.{n}/32 -p tcp -m comment --comment "default/svc-{n:03} cluster IP" -m tcp --dport 80 -j {svc}"#
        )
    };
    let jump = r#"-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING"#;
    let last = r#"KUBE-SERVICES -d 192.168.1.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#;
    for (change, table, expected) in [
        // A rule is missing, duplicated, or foreign.
        (format!("-D {}", line(7)), "nat", format!("-I {}", line(7))),
        (format!("-I {}", line(7)), "nat", format!("-D {}", line(7))),
        ("-I KUBE-SERVICES -j ACCEPT".to_owned(), "nat", "-D KUBE-SERVICES -j ACCEPT".to_owned()),
        // A chain has other rules, or is not needed.
        (
            "-A KUBE-MARK-MASQ -j ACCEPT".to_owned(),
            "nat",
            ":KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000".to_owned(),
        ),
        (
            ":KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]\n-A KUBE-SEP-SXIVWICOYRO3J4NJ -j DROP".to_owned(),
            "nat",
            ":KUBE-SEP-SXIVWICOYRO3J4NJ - [0:0]\n-X KUBE-SEP-SXIVWICOYRO3J4NJ".to_owned(),
        ),
        // A hook is missing or duplicated.
        (format!("-D POSTROUTING {jump}"), "nat", format!("-I POSTROUTING {jump}")),
        (format!("-A POSTROUTING {jump}"), "nat", format!("-D POSTROUTING {jump}")),
    ] {
        let kernel = with(&state).await;
        kernel.change_by_other(IpFamily::V4, &format!("*{table}\n{change}\nCOMMIT\n"));
        assert_eq!(reconciled(&kernel, &state).await, format!("*{table}\n{expected}\nCOMMIT\n"), "{change}");
    }
    // The last rule is not the last: it is moved.
    for (change, moved) in [
        (format!("-A {}", line(7)), format!("-D {last}\n-A {last}\nCOMMIT\n*nat\n-D {}", line(7))),
        (format!("-D {last}"), format!("-A {last}")),
        (format!("-I {last}"), format!("-D {last}\n-D {last}\n-A {last}")),
    ] {
        let kernel = with(&state).await;
        kernel.change_by_other(IpFamily::V4, &format!("*nat\n{change}\nCOMMIT\n"));
        assert_eq!(reconciled(&kernel, &state).await, format!("*nat\n{moved}\nCOMMIT\n"), "{change}");
    }
}

/// A restart after many services have changed: the kernel would compare each deleted rule with all rules.
#[tokio::test]
async fn many_changes_write_a_shared_chain_anew() {
    let kernel = with(&many(200)).await;
    let script = reconciled(&kernel, &many(190)).await;
    assert_eq!(script.matches("-D KUBE-SERVICES ").count(), 10);
    assert_eq!(script.matches("-A KUBE-SERVICES ").count(), 0);
    let script = reconciled(&kernel, &many(100)).await;
    assert_eq!(script.matches("-D KUBE-SERVICES ").count(), 0);
    assert_eq!(script.matches("-A KUBE-SERVICES ").count(), 100 + 1);
}

/// A chain that other programs jump to is emptied and kept.
#[tokio::test]
async fn cleanup_removes_only_our_chains() {
    let foreign = "*filter
:CNI-FORWARD - [0:0]
:KUBE-FIREWALL - [0:0]
-A FORWARD -m comment --comment \"by -j KUBE-SERVICES\" -j CNI-FORWARD
-A INPUT -j KUBE-FIREWALL
-A CNI-FORWARD -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
-A PREROUTING -j CNI-HOSTPORT
COMMIT
";
    let kernel = FakeKernel::default();
    kernel.change_by_other(IpFamily::V4, foreign);
    let before = kernel.ruleset(IpFamily::V4);
    let mut driver = driver(&kernel);
    driver.reconcile_all(&many(3)).await.unwrap();
    assert_eq!(kernel.ruleset(IpFamily::V4).rules(Table::Filter, "CNI-FORWARD"), ["-j ACCEPT"]);
    driver.cleanup().await.unwrap();
    assert_eq!(
        (kernel.ruleset(IpFamily::V4), kernel.ruleset(IpFamily::V6)),
        (before, FakeKernel::default().ruleset(IpFamily::V6))
    );
    kernel.take_restores();
    driver.cleanup().await.unwrap();
    assert_eq!(kernel.take_restores(), []);

    driver.reconcile_all(&many(3)).await.unwrap();
    kernel.change_by_other(IpFamily::V4, "*nat\n-A CNI-HOSTPORT -j KUBE-MARK-MASQ\nCOMMIT\n");
    let text = kernel.clone().save(IpFamily::V4).await.unwrap().unwrap();
    let count = Observed::parse(&text).unwrap().ours().count();
    let chains = own_chains(&SavedRules { program: Program::new(IpFamily::V4, Variant::Nft), text }).unwrap();
    let kept = vec!["nat KUBE-MARK-MASQ, used by CNI-HOSTPORT".to_owned()];
    assert_eq!(chains, OwnChains { count: count - 1, kept });
    driver.cleanup().await.unwrap();
    let observed = Observed::parse(&kernel.clone().save(IpFamily::V4).await.unwrap().unwrap()).unwrap();
    let kept: Vec<_> = observed.ours().collect();
    assert_eq!(kept, [(Table::Nat, names::MARK_MASQ, &[][..])]);
}

/// kube-proxy has written its chains again: only those that it does not use are deleted.
#[tokio::test]
async fn chains_that_kube_proxy_uses_are_kept() {
    let kernel = with(&many(3)).await;
    let observed = Observed::parse(&kernel.clone().save(IpFamily::V4).await.unwrap().unwrap()).unwrap();
    let before: Vec<_> = observed.ours().map(|(_, name, _)| name.to_owned()).collect();
    let used = ["FAIRLEAD-CLUSTER-IPS", "FAIRLEAD-NODEPORTS"];
    assert!(used.iter().all(|chain| before.iter().any(|name| name == chain)), "{before:?}");
    // KUBE-SERVICES still leads to the other one.
    kernel.change_by_other(IpFamily::V4, "*filter\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n");
    let mut plane = IptablesDataPlane::new(kernel.clone(), DataplaneOptions::default());
    let before_removal = Observed::parse(&kernel.clone().save(IpFamily::V4).await.unwrap().unwrap()).unwrap();
    let count = plane.remove_unshared(IpFamily::V4).await.unwrap();
    let observed = Observed::parse(&kernel.clone().save(IpFamily::V4).await.unwrap().unwrap()).unwrap();
    let kept: BTreeSet<_> = observed.ours().map(|(_, name, _)| name.to_owned()).collect();
    let removed: BTreeSet<_> = before.iter().filter(|name| !kept.contains(*name)).collect();
    assert!(removed.iter().all(|name| name.starts_with("FAIRLEAD-")), "{removed:?}");
    assert_eq!(count, before_removal.ours().count() - observed.ours().count());
    assert!(removed.contains(&"FAIRLEAD-NODEPORTS".to_owned()) && kept.contains("KUBE-SERVICES"), "{removed:?}");
}

/// A roll back to kube-proxy: of the hooks, only those that it does not have are deleted, also a copy of one.
#[tokio::test]
async fn hooks_that_kube_proxy_does_not_have_are_deleted() {
    let kernel = with(&many(3)).await;
    let hooks = || -> Vec<String> {
        let ruleset = kernel.ruleset(IpFamily::V4);
        let built_in = ruleset.chains().filter(|(_, _, chain)| chain.policy.is_some());
        let lines = |(table, name, chain): (Table, &str, &iptables::Chain)| -> Vec<String> {
            chain.rules.iter().map(|rule| format!("{table} -A {name} {rule}")).collect()
        };
        built_in.flat_map(lines).collect()
    };
    let mut before = hooks();
    let hook = "OUTPUT -m conntrack --ctstate NEW \
                -m comment --comment \"kubernetes externally-visible service portals\" -j KUBE-EXTERNAL-SERVICES";
    kernel.change_by_other(IpFamily::V4, &format!("*filter\n-A {hook}\nCOMMIT\n"));
    let mut plane = IptablesDataPlane::new(kernel.clone(), DataplaneOptions::default());
    plane.remove_unshared(IpFamily::V4).await.unwrap();
    before.retain(|line| *line != format!("filter -A {hook}") && !line.ends_with("-j FAIRLEAD-SILENT"));
    assert_eq!(before.len(), 12);
    assert_eq!(hooks(), before);
}

/// iptables-restore is killed after any transaction: the next reconcile completes the change.
#[tokio::test]
async fn reconciling_after_an_incomplete_script() {
    let states = [many(3), state(|web| web.endpoints(TWO).node_port(30080)), state(|web| web), beside(mk_state())];
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        for parts in 0..3 {
            let kernel = with(&states[from]).await;
            let mut driver = driver(&kernel);
            driver.reconcile_all(&states[from]).await.unwrap();
            let mut current = states[from].clone();
            let changes = backend::testing::transition(&mut current, &states[to]);
            kernel.fail_after(parts);
            if driver.apply_all(&current, &changes).await.is_ok() {
                // The script had fewer transactions.
                kernel.take_restores();
                assert!(from == to || parts > 0);
                continue;
            }
            reconciled(&kernel, &states[to]).await;
        }
    }
}

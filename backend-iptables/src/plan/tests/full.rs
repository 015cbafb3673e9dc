//! From whatever a kernel holds to what it should hold.

use super::*;
use crate::{kernel::Kernel as _, names, observed::Observed};

/// So many service ports, one line each in the chain of cluster IPs.
fn many(count: u8) -> NodeState {
    let services = (1..=count).fold(mk_state(), |state, n| {
        let ip = format!("10.96.0.{n}");
        state.service(&format!("default/svc-{n:03}"), |svc| svc.cluster_ip(&ip).endpoints(ONE))
    });
    services.build()
}

/// Repairs; says what was written for IPv4.
async fn repaired(kernel: &Fake, state: &NodeState) -> String {
    kernel.asked();
    driver(kernel).reconcile(state).await.unwrap();
    let asked = kernel.asked();
    assert!(asked.iter().all(|asked| asked.accepted), "{asked:?}");
    let fresh = Fake::default();
    driver(&fresh).reconcile(state).await.unwrap();
    assert_eq!(kernel.tables(IpFamily::V4).shape(), fresh.tables(IpFamily::V4).shape());
    assert_eq!(driver(kernel).reconcile(state).await.unwrap().writes, 0);
    kernel.asked();
    asked.into_iter().filter(|asked| asked.family == IpFamily::V4).map(|asked| asked.script).collect()
}

async fn with(state: &NodeState) -> Fake {
    let kernel = Fake::default();
    driver(&kernel).reconcile(state).await.unwrap();
    kernel
}

/// Each is mended alone: what is right is not written again.
#[tokio::test]
async fn what_others_have_changed_is_mended() {
    let state = many(40);
    let line = |n: u8| {
        let names = names::Names::new(&mk_key(&format!("default/svc-{n:03}")));
        let svc = names.chain(names::Kind::Svc);
        format!(
            r#"KUBE-SERVICES -d 10.96.0.{n}/32 -p tcp -m comment --comment "default/svc-{n:03} cluster IP" -m tcp --dport 80 -j {svc}"#
        )
    };
    let jump = r#"-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING"#;
    let last = r#"KUBE-SERVICES -d 192.168.1.1/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#;
    for (done, table, mended) in [
        // A line is missing, twice there, or nobody's.
        (format!("-D {}", line(7)), "nat", format!("-I {}", line(7))),
        (format!("-I {}", line(7)), "nat", format!("-D {}", line(7))),
        ("-I KUBE-SERVICES -j ACCEPT".to_owned(), "nat", "-D KUBE-SERVICES -j ACCEPT".to_owned()),
        // A chain with another content; one that nobody needs.
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
        // A jump that is missing or twice there.
        (format!("-D POSTROUTING {jump}"), "nat", format!("-I POSTROUTING {jump}")),
        (format!("-A POSTROUTING {jump}"), "nat", format!("-D POSTROUTING {jump}")),
    ] {
        let kernel = with(&state).await;
        kernel.stranger(IpFamily::V4, &format!("*{table}\n{done}\nCOMMIT\n"));
        assert_eq!(repaired(&kernel, &state).await, format!("*{table}\n{mended}\nCOMMIT\n"), "{done}");
    }
    // What must be last is not: the first such line would be deleted, so all are written again, in one go.
    for done in [format!("-A {}", line(7)), format!("-D {last}"), format!("-I {last}")] {
        let kernel = with(&state).await;
        kernel.stranger(IpFamily::V4, &format!("*nat\n{done}\nCOMMIT\n"));
        let script = repaired(&kernel, &state).await;
        assert!(script.starts_with("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "), "{script}");
        assert_eq!(script.lines().count(), 2 + 1 + 40 + 1);
    }
}

/// A restart after many services have changed: taking lines out one by one would look at all of them each time.
#[tokio::test]
async fn many_changes_of_a_chain_fill_it_anew() {
    let kernel = with(&many(200)).await;
    let script = repaired(&kernel, &many(190)).await;
    assert_eq!(script.matches("-D KUBE-SERVICES ").count(), 10);
    assert_eq!(script.matches("-A KUBE-SERVICES ").count(), 0);
    let script = repaired(&kernel, &many(100)).await;
    assert_eq!(script.matches("-D KUBE-SERVICES ").count(), 0);
    assert_eq!(script.matches("-A KUBE-SERVICES ").count(), 100 + 1);
}

/// All that is left of them when services go is what others lead to, empty: kubelet may use the mark, a plugin a chain.
#[tokio::test]
async fn only_ours_is_removed() {
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
    let kernel = Fake::default();
    kernel.stranger(IpFamily::V4, foreign);
    let before = kernel.tables(IpFamily::V4);
    let mut driver = driver(&kernel);
    driver.reconcile(&many(3)).await.unwrap();
    assert_eq!(kernel.tables(IpFamily::V4).rules(Table::Filter, "CNI-FORWARD"), ["-j ACCEPT"]);
    driver.cleanup().await.unwrap();
    assert_eq!(
        (kernel.tables(IpFamily::V4), kernel.tables(IpFamily::V6)),
        (before, Fake::default().tables(IpFamily::V6))
    );
    kernel.asked();
    driver.cleanup().await.unwrap();
    assert_eq!(kernel.asked(), []);

    driver.reconcile(&many(3)).await.unwrap();
    kernel.stranger(IpFamily::V4, "*nat\n-A CNI-HOSTPORT -j KUBE-MARK-MASQ\nCOMMIT\n");
    driver.cleanup().await.unwrap();
    let present = Observed::parse(&kernel.clone().save(IpFamily::V4).await.unwrap().unwrap()).unwrap();
    let left: Vec<_> = present.ours().collect();
    assert_eq!(left, [(Table::Nat, names::MARK_MASQ, &[][..])]);
}

/// The tool is killed between any two parts: who comes next makes it right, whatever was to be done.
#[tokio::test]
async fn from_wherever_it_was_killed() {
    let states = [many(3), state(|web| web.endpoints(TWO).node_port(30080)), state(|web| web), beside(mk_state())];
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        for parts in 0..3 {
            let kernel = with(&states[from]).await;
            let mut driver = driver(&kernel);
            driver.reconcile(&states[from]).await.unwrap();
            let mut current = states[from].clone();
            let changes = backend::testing::transition(&mut current, &states[to]);
            kernel.die_after(parts);
            if driver.apply(&current, &changes).await.is_ok() {
                // There were not so many parts.
                kernel.asked();
                assert!(from == to || parts > 0);
                continue;
            }
            repaired(&kernel, &states[to]).await;
        }
    }
}

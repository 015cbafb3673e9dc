//! Other processes change our tables, or have tables of their own.

use std::net::Ipv6Addr;

use backend::testing::ProgramAll as _;
use backend::{Backend, NodeState, testing::mk_state};
use netlink::nft::NftHandle;

use super::support::{assert_readable, backend, nft, reconcile, rename_tables, run};

fn state() -> NodeState {
    mk_state()
        .service("default/web", |web| {
            web.cluster_ip("10.96.0.1")
                .cluster_ip("fd00:96::1")
                .endpoints(["10.244.1.1:8080", "10.244.2.1:8080", "[fd00:244:1::1]:8080"])
                .local_endpoints(["10.244.1.1:8080"])
        })
        .service("default/lb", |lb| {
            lb.cluster_ip("10.96.0.2")
                .load_balancer_ip("203.0.113.1")
                .node_port(30080)
                .external_local()
                .source_range("192.0.2.0/24")
                .source_range("192.0.4.0/23")
                .endpoints(["10.244.1.2:8080", "10.244.2.2:8080"])
                .local_endpoints(["10.244.1.2:8080"])
        })
        .build()
}

fn listing() -> String {
    nft("list table ip fairlead1") + &nft("list table ip6 fairlead1")
}

/// After `change`, a reconcile restores the tables with this number of writes.
async fn repaired_after(change: &str, writes: usize) {
    reconcile(&state()).await;
    let before = listing();
    nft(change);
    assert_ne!(listing(), before, "{change}");
    assert_eq!(reconcile(&state()).await.writes, writes, "{change}");
    assert_eq!(sorted(&listing()), sorted(&before), "{change}");
    assert_readable();
}

/// The words of a listing: nft lists chains by age and elements by hash.
fn sorted(listing: &str) -> Vec<&str> {
    let mut words: Vec<&str> = listing.split([' ', '\n', '\t', ',']).collect();
    words.sort_unstable();
    words
}

#[test]
fn deleted_added_and_changed_elements_are_repaired() {
    run(|| async {
        repaired_after("delete element ip fairlead1 endpoints { 10.96.0.1 . tcp . 80 . 1 }", 1).await;
        repaired_after("delete element ip fairlead1 hairpin { 10.244.1.1 . 10.244.1.1 . tcp . 8080 }", 1).await;
        repaired_after("delete element ip fairlead1 cluster-ips { 10.96.0.1 }", 1).await;
        repaired_after("add element ip fairlead1 cluster-ips { 10.96.0.3 }", 1).await;
        repaired_after("add element ip fairlead1 vips { 1.2.3.4 . udp . 53 : drop }", 1).await;
        repaired_after("add element ip fairlead1 vips { 1.2.3.4 . udp . 53 : accept }", 1).await;
        repaired_after("add element ip fairlead1 endpoints { 10.96.0.1 . tcp . 80 . 7 : 10.0.0.1 . 1 }", 1).await;
        repaired_after(
            "delete element ip fairlead1 vips { 10.96.0.1 . tcp . 80 } ; \
             add element ip fairlead1 vips { 10.96.0.1 . tcp . 80 : jump pool-2 }",
            2,
        )
        .await;
    });
}

#[test]
fn changed_source_ranges_are_repaired() {
    run(|| async {
        reconcile(&state()).await;
        let listing = listing();
        let (_, id) = listing.split_once("goto sources-").unwrap();
        let id = &id[..32];
        let group = Ipv6Addr::from(u128::from_str_radix(id, 16).unwrap());
        for (change, writes) in [
            ("delete element ip fairlead1 allowed-sources { GROUP . 24 . 192.0.2.0 }", 1),
            ("delete element ip fairlead1 restricted-vips { 203.0.113.1 . tcp . 80 }", 1),
            ("add element ip fairlead1 allowed-sources { GROUP . 8 . 10.0.0.0 }", 1),
            ("add element ip fairlead1 allowed-sources { GROUP . 24 . 192.0.3.7 }", 1),
            ("add element ip fairlead1 allowed-sources { GROUP . 33 . 192.0.2.0 }", 1),
            ("add element ip fairlead1 allowed-sources { ::1 . 24 . 192.0.2.0 }", 1),
            ("flush set ip fairlead1 allowed-sources", 2),
            // A rule for each of two prefix lengths, and the last one.
            ("flush chain ip fairlead1 sources-ID", 1 + 3),
            ("insert rule ip fairlead1 sources-ID return", 1 + 3),
            ("add chain ip fairlead1 sources-00000000000000000000000000000001", 1),
        ] {
            repaired_after(&change.replace("GROUP", &group.to_string()).replace("ID", id), writes).await;
        }
    });
}

#[test]
fn added_and_deleted_rules_are_repaired() {
    run(|| async {
        // A chain is flushed (unless it is empty and of the base ruleset), and its rules are added.
        repaired_after("add rule ip fairlead1 services counter", 5).await;
        repaired_after("insert rule ip fairlead1 pool-2 tcp dport { 1, 2 } accept", 4).await;
        repaired_after("flush chain ip fairlead1 postrouting", 3).await;
        repaired_after("flush chain ip fairlead1 cluster-ips-check", 2).await;
        repaired_after("flush table ip6 fairlead1", 35).await;
    });
}

#[test]
fn added_and_deleted_chains_and_sets_are_repaired() {
    run(|| async {
        repaired_after("delete chain ip fairlead1 postrouting", 4).await;
        repaired_after("add chain ip fairlead1 foreign ; add rule ip fairlead1 foreign drop", 2).await;
        repaired_after(
            "add chain ip fairlead1 other ; add chain ip fairlead1 foreign ; \
             add rule ip fairlead1 foreign jump other ; add rule ip fairlead1 services jump foreign ; \
             add element ip fairlead1 vips { 1.2.3.4 . udp . 53 : goto other }",
            9,
        )
        .await;
        repaired_after("add chain ip fairlead1 pool-77", 1).await;
        repaired_after(
            "add set ip fairlead1 foreign { type ipv4_addr ; } ; add chain ip fairlead1 pool-77 ; \
             add rule ip fairlead1 pool-77 ip saddr @foreign drop",
            2,
        )
        .await;
        repaired_after("add set ip fairlead1 foreign { type ipv4_addr ; }", 1).await;
    });
}

#[test]
fn a_deleted_or_dormant_table_is_repaired() {
    run(|| async {
        reconcile(&state()).await;
        let (before, generation) = (listing(), NftHandle::open().unwrap().generation().unwrap());
        nft("delete table ip fairlead1");
        let repaired = reconcile(&state()).await;
        assert!(repaired.writes > 0);
        assert_eq!(sorted(&listing()), sorted(&before));
        assert_eq!(NftHandle::open().unwrap().generation().unwrap(), generation + 2, "one transaction");

        repaired_after("add table ip fairlead1 { flags dormant ; }", 1).await;
        nft("flush ruleset");
        reconcile(&state()).await;
        assert_eq!(sorted(&listing()), sorted(&before));
    });
}

/// The update fails, and the driver reconciles.
#[test]
fn a_change_after_another_process_deleted_the_table_is_programmed() {
    run(|| async {
        let mut backend = backend();
        backend.reconcile_all(&state()).await.unwrap();
        nft("flush ruleset");
        let mut target = state();
        let operations = backend::testing::operations_between(&target, &mk_state().build());
        let changes = backend::testing::apply(&mut target, operations);
        let applied = backend.apply_all(&target, &changes).await.unwrap();
        assert_eq!(applied.failures, []);
        assert_eq!(reconcile(&target).await.writes, 0);
    });
}

/// A table of another layout is replaced, in one transaction; one of the user is not.
#[test]
fn tables_of_other_layouts_are_replaced() {
    run(|| async {
        reconcile(&state()).await;
        let before = listing();
        nft("add table ip fairlead-foo");
        for name in ["fairlead", "fairlead-standby", "fairlead2"] {
            rename_tables(name);
            let generation = NftHandle::open().unwrap().generation().unwrap();
            assert!(reconcile(&state()).await.writes > 0);
            assert_eq!(NftHandle::open().unwrap().generation().unwrap(), generation + 1, "one transaction");
            assert_eq!(sorted(&listing()), sorted(&before), "{name}");
            assert_eq!(nft("list tables"), "table ip fairlead-foo\ntable ip fairlead1\ntable ip6 fairlead1\n");
        }
        rename_tables("fairlead");
        backend().cleanup().await.unwrap();
        assert_eq!(nft("list tables"), "table ip fairlead-foo\n");
    });
}

/// A table that another process has altered is replaced in one transaction.
#[test]
fn another_definition_is_replaced() {
    run(|| async {
        reconcile(&state()).await;
        let before = listing();
        for change in [
            "delete table ip fairlead1 ; add table ip fairlead1",
            "delete table ip fairlead1 ; add table ip fairlead1 ; \
             add map ip fairlead1 vips { type ipv4_addr : verdict ; }",
            "delete chain ip fairlead1 postrouting ; \
             add chain ip fairlead1 postrouting { type nat hook postrouting priority 50 ; }",
            "add table ip fairlead1 { flags dormant ; } ; delete chain ip fairlead1 output-check",
        ] {
            nft(change);
            let generation = NftHandle::open().unwrap().generation().unwrap();
            assert!(reconcile(&state()).await.writes > 0);
            assert_eq!(NftHandle::open().unwrap().generation().unwrap(), generation + 1, "one transaction");
            assert_eq!(sorted(&listing()), sorted(&before), "{change}");
        }
    });
}

#[test]
fn tables_of_others_do_not_change() {
    run(|| async {
        nft("add table ip other");
        nft("add chain ip other fairlead { type filter hook input priority 0 ; }");
        nft("add table inet fairlead");
        nft("add set inet fairlead vips { type ipv4_addr ; }");
        let before = nft("list ruleset");
        reconcile(&state()).await;
        assert_eq!(
            nft("list table ip other") + "\n" + &nft("list table inet fairlead"),
            before.replace("}\ntable", "}\n\ntable")
        );
        backend().cleanup().await.unwrap();
        assert_eq!(nft("list ruleset"), before);
    });
}

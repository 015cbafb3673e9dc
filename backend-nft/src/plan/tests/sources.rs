//! Groups of source ranges are shared, replaced as a whole, and repaired.

use super::*;
use crate::{element::ElementData, kernel::fake::Fake};

/// Each in one transaction. A new list is a new group: the verdict of the VIP, a chain with a rule for each prefix
/// length and the last one, and an element for each range.
#[tokio::test]
async fn source_ranges_change() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let with = |ranges: &[&str]| {
        mk_state()
            .service("default/lb", |lb| {
                let lb = lb.load_balancer_ip("203.0.113.1").endpoints(["10.244.1.1:80"]);
                ranges.iter().fold(lb, |lb, range| lb.source_range(range))
            })
            .build()
    };
    let mut state = with(&[]);
    driver.reconcile_all(&state).await.unwrap();
    // A group: chain, rules, elements; and its deletion: chain, elements.
    let (added, deleted) = (|lengths: usize, ranges: usize| 1 + lengths + 1 + ranges, |ranges: usize| 1 + ranges);
    for (ranges, writes) in [
        (&["192.0.2.0/24", "10.0.0.0/24"][..], 1 + added(1, 2)),
        (&["192.0.2.0/24", "10.0.0.0/24", "10.0.0.0/25"], 0),
        (&["192.0.2.0/24", "10.0.0.0/24", "10.0.1.0/24"], 2 + added(2, 2) + deleted(2)),
        (&["192.0.2.0/24"], 2 + added(1, 1) + deleted(2)),
        // A range contains the node, so the VIP is allowed as source too.
        (&["192.0.2.0/24", "192.168.1.0/24"], 2 + added(2, 3) + deleted(1)),
        (&["0.0.0.0/0", "192.168.1.0/24"], 1 + deleted(3)),
        (&["192.168.1.0/24"], 1 + added(2, 2)),
        (&["fd00::/8"], 1 + deleted(2)),
    ] {
        let changes = backend::testing::transition(&mut state, &with(ranges));
        kernel.transactions();
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, writes, "{ranges:?}");
        assert!(kernel.transactions() <= 1, "{ranges:?}: the fake rejected a transaction");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables(), "{ranges:?}");
    }
}

/// Twenty ports with the same ranges, on two VIPs each, share them, until the last one is removed.
#[tokio::test]
async fn ports_with_equal_source_ranges_share_their_elements() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let ranges: Vec<String> = (0..2_000u16).map(|n| format!("10.{}.{}.0/25", n / 250, n % 250)).collect();
    let with = |ports: u16| {
        let services = (1..=ports).fold(mk_state(), |state, port| {
            state.service(&format!("default/lb:{port}"), |lb| {
                let lb = lb.port(port).load_balancer_ip("203.0.113.1").load_balancer_ip("203.0.113.2");
                ranges.iter().fold(lb, |lb, range| lb.source_range(range))
            })
        });
        services.build()
    };
    let mut state = with(20);
    driver.reconcile_all(&state).await.unwrap();
    let counts = kernel.element_counts();
    assert_eq!((counts[&Map::AllowedSources], counts[&Map::RestrictedVips]), (2_000, 40));
    for (ports, sources) in [(1, 2_000), (0, 0), (3, 2_000)] {
        let changes = backend::testing::transition(&mut state, &with(ports));
        driver.apply_all(&state, &changes).await.unwrap();
        assert_eq!(kernel.element_counts().get(&Map::AllowedSources).copied().unwrap_or(0), sources, "{ports} ports");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables());
    }
}

/// After a restart, a group of which another process has deleted or added elements is repaired.
#[tokio::test]
async fn a_changed_group_of_source_ranges_is_repaired() {
    let kernel = Fake::default();
    let lb =
        |lb: ServiceBuilder| lb.load_balancer_ip("203.0.113.1").source_range("10.0.0.0/8").source_range("192.0.2.0/24");
    let state = mk_state().service("default/lb", lb).build();
    driver(&kernel).reconcile_all(&state).await.unwrap();
    let intact = kernel.tables();
    kernel.tamper(|elements| {
        let index = |(_, _, index, _): &(Map, Vip, u32, Option<ElementData>)| *index;
        elements.retain(|key, data| !matches!(data, ElementData::Source(_)) || index(key) != 8);
    });
    assert_eq!(driver(&kernel).reconcile_all(&state).await.unwrap().writes, 1);
    assert_eq!(kernel.tables(), intact);
    assert_eq!(driver(&kernel).reconcile_all(&state).await.unwrap().writes, 0);
}

#[tokio::test]
async fn a_changed_node_address_changes_the_allowed_sources() {
    let kernel = Fake::default();
    let mut driver = driver(&kernel);
    let on = |address: &str| {
        let state = mk_state().node_addresses([address]).service("default/lb", |lb| {
            lb.load_balancer_ip("203.0.113.1").source_range("192.168.1.0/24").endpoints(["10.244.1.1:80"])
        });
        state.build()
    };
    let mut state = on("192.168.1.1");
    driver.reconcile_all(&state).await.unwrap();
    // The verdict, and the groups with and without the VIP: a chain, two rules and an element; with the VIP a rule and
    // an element more, of which the chain and the elements are deleted with the group.
    let (added, removed) = (2 + (1 + 3 + 2) + (1 + 1), 2 + (1 + 2 + 1) + (1 + 2));
    // And the rules for node ports: a flush, and the rules of the chain in each family that has the address.
    for (address, writes) in [("192.168.1.2", 0), ("192.168.2.1", removed), ("192.168.2.2", 0), ("192.168.1.1", added)]
    {
        let changes = backend::testing::transition(&mut state, &on(address));
        assert_eq!(driver.apply_all(&state, &changes).await.unwrap().writes, 5 + writes, "{address}");
        assert_eq!(kernel.tables(), from_scratch(&state).await.tables());
    }
}

//! Events for changes by us and by other processes.

use super::*;
use crate::{
    nft::{Chain, Element, NftBatch, NftHandle, Table, Verdict, tests::fixtures::*},
    testing::in_netns,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// All events until the next generation.
fn transaction(monitor: &mut NftMonitor) -> Vec<NftEvent> {
    let mut events = Vec::new();
    while !matches!(events.last(), Some(NftEvent::Generation { .. })) {
        let more = monitor.wait(PATIENCE).unwrap();
        assert!(!more.is_empty(), "nothing within {PATIENCE:?} after {events:?}");
        events.extend(more);
    }
    events
}

#[test]
fn the_port_identifies_our_own_changes() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut monitor = NftMonitor::open().unwrap();
        assert_eq!(monitor.wait(Duration::ZERO).unwrap(), []);
        let table = Table::new(TableFamily::Ip, "fairlead");
        let mut batch = NftBatch::new();
        batch.add_table(&table);
        batch.add_chain(&table, &Chain::regular("pool-1"));
        batch.add_chain(&table, &Chain::regular("pool-2"));
        handle.commit(&batch).unwrap();
        let ours = handle.port();
        let changed = |object, chain: Option<&str>| NftEvent::Changed {
            family: Some(TableFamily::Ip),
            table: "fairlead".into(),
            object,
            chain: chain.map(Into::into),
            is_deletion: false,
            port: ours,
        };
        let id = handle.generation().unwrap();
        let events = transaction(&mut monitor);
        let [changes @ .., NftEvent::Generation { id: event_id, pid, process, port }] = &events[..] else {
            panic!("{events:?}")
        };
        let chains = ["pool-1", "pool-2"].map(|name| changed("chain", Some(name)));
        assert_eq!(changes, [&[changed("table", None)], &chains[..]].concat());
        assert_eq!((*event_id, *port), (id, handle.port()));
        assert!(*pid > 0 && !process.is_empty());

        nft(&["flush", "ruleset"]);
        let events = transaction(&mut monitor);
        let Some(NftEvent::Generation { process, id: event_id, port, .. }) = events.last() else {
            panic!("{events:?}")
        };
        assert_ne!(*port, handle.port());
        assert_eq!((&**process, *event_id), ("nft", id + 1));
        let is_deletion_by_nft = |event: &NftEvent| {
            matches!(event, NftEvent::Changed { table, port, is_deletion: true, .. }
                if table == "fairlead" && *port != handle.port())
        };
        assert!(events.iter().any(is_deletion_by_nft), "{events:?}");
    });
}

#[test]
fn leaving_the_group_stops_events() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut monitor = NftMonitor::open().unwrap();
        let mut add = |name| {
            let mut batch = NftBatch::new();
            batch.add_table(&Table::new(TableFamily::Ip, name));
            handle.commit(&batch).unwrap();
        };
        add("before");
        monitor.leave().unwrap();
        add("meanwhile");
        monitor.join().unwrap();
        add("after");
        let mut tables = Vec::new();
        for event in [transaction(&mut monitor), monitor.wait(Duration::ZERO).unwrap()].concat() {
            if let NftEvent::Changed { table, .. } = event {
                tables.push(table);
            }
        }
        assert_eq!(tables, ["before", "after"]);
    });
}

#[test]
fn wait_returns_after_the_timeout() {
    in_netns(|| {
        let mut monitor = NftMonitor::open().unwrap();
        assert_eq!(monitor.wait(Duration::from_millis(20)).unwrap(), []);
    });
}

#[test]
fn lost_notifications_are_reported() {
    in_netns(|| {
        let mut handle = NftHandle::open().unwrap();
        let mut monitor = NftMonitor::open().unwrap();
        let table = Table::new(TableFamily::Ip, "fairlead");
        let keys: Vec<_> =
            (0..200_000u32).map(|n| crate::nft::Fields::new().addr(n.to_be_bytes()).proto(6).port(80)).collect();
        let mut batch = NftBatch::new();
        batch.add_table(&table);
        batch.add_set(&table, &vips());
        batch.add_elements(&table, &vips(), keys.iter().map(|key| Element::verdict(key, Verdict::Drop)));
        handle.commit(&batch).unwrap();
        let mut events = Vec::new();
        while !events.contains(&NftEvent::Lost) {
            let more = monitor.wait(PATIENCE).unwrap();
            assert!(!more.is_empty(), "no Lost event in {events:?}");
            events.extend(more);
        }
    });
}

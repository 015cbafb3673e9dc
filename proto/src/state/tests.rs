//! Service ports beside an ordinary map, and what clones share.

use std::{collections::BTreeMap, num::NonZeroU16};

use proptest::{collection::vec, prelude::*};

use super::{NodeState, ServicePortState, ServicePorts};
use crate::{
    digest::{BUCKETS, KeyHash},
    model::{NodeInfo, Protocol, ServicePort, ServicePortKey},
};

/// More than two chunks, in histories of this length.
const KEYS: u16 = 700;

type Map = BTreeMap<ServicePortKey, ServicePortState>;

#[derive(Clone, Debug)]
enum Edit {
    Put(u16, u16),
    Change(u16, u16),
    Remove(u16),
    Fill(u16, u16),
    Clear(u16, u16),
    Reset(u8),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let (key, value) = (0..KEYS, 1..4_u16);
    let edit = prop_oneof![
        8 => (key.clone(), value.clone()).prop_map(|(key, value)| Edit::Put(key, value)),
        4 => (key.clone(), value).prop_map(|(key, value)| Edit::Change(key, value)),
        8 => key.clone().prop_map(Edit::Remove),
        2 => (key.clone(), key.clone()).prop_map(|(first, last)| Edit::Fill(first, last)),
        1 => (key.clone(), key).prop_map(|(first, last)| Edit::Clear(first, last)),
        1 => (0..BUCKETS as u8).prop_map(Edit::Reset),
    ];
    vec(edit, 0..40)
}

fn service_port(number: u16, value: u16) -> ServicePortState {
    let key = ServicePortKey::new("shop", format!("web-{number:03}"), "", Protocol::Tcp);
    ServicePortState::new(ServicePort::new(key, NonZeroU16::new(value).unwrap()))
}

fn key(number: u16) -> ServicePortKey {
    service_port(number, 1).port.key
}

fn apply(edit: &Edit, ports: &mut ServicePorts, map: &mut Map) {
    match *edit {
        Edit::Put(number, value) => {
            let before = map.insert(key(number), service_port(number, value));
            assert_eq!(ports.insert(service_port(number, value)).as_deref(), before.as_ref());
        }
        Edit::Change(number, value) => {
            let changed = ports.get_mut(&key(number)).map(|(_, port)| *port = service_port(number, value));
            let expected = map.get_mut(&key(number)).map(|port| *port = service_port(number, value));
            assert_eq!(changed, expected);
        }
        Edit::Remove(number) => {
            let before = map.remove(&key(number));
            assert_eq!(ports.remove(&key(number)).as_deref(), before.as_ref());
        }
        Edit::Fill(first, last) => (first..last).for_each(|number| apply(&Edit::Put(number, 1), ports, map)),
        Edit::Clear(first, last) => (first..last).for_each(|number| apply(&Edit::Remove(number), ports, map)),
        Edit::Reset(bucket) => {
            let mut buckets = [false; BUCKETS];
            buckets[usize::from(bucket)] = true;
            ports.remove_buckets(&buckets);
            map.retain(|key, _| KeyHash::of(key).bucket() != bucket);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn service_ports_are_as_in_a_map(edits in edits(), first in 0..KEYS) {
        let (mut ports, mut map) = (ServicePorts::default(), Map::new());
        let (mut earlier, mut earlier_map) = (ports.clone(), map.clone());
        for (step, edit) in edits.iter().enumerate() {
            apply(edit, &mut ports, &mut map);
            prop_assert_eq!(ports.iter().collect::<Vec<_>>(), map.iter().collect::<Vec<_>>());
            prop_assert_eq!(ports.len(), map.len());
            let from: Vec<_> = map.range(key(first)..).collect();
            prop_assert_eq!(ports.iter_from(&key(first)).collect::<Vec<_>>(), from);
            let keys = map.keys().chain(earlier_map.keys()).collect::<std::collections::BTreeSet<_>>();
            let differing: Vec<_> = keys.into_iter().filter(|key| map.get(key) != earlier_map.get(key)).collect();
            let changes: Vec<_> = earlier.diff(&ports).collect();
            prop_assert_eq!(changes.iter().map(|change| change.key).collect::<Vec<_>>(), differing);
            for change in changes {
                prop_assert_eq!(change.before, earlier_map.get(change.key));
                prop_assert_eq!(change.after, map.get(change.key));
            }
            prop_assert_eq!(earlier == ports, earlier_map == map);
            // The earlier collection does not change with its clone.
            prop_assert_eq!(earlier.iter().collect::<Vec<_>>(), earlier_map.iter().collect::<Vec<_>>());
            if step % 7 == 0 {
                (earlier, earlier_map) = (ports.clone(), map.clone());
            }
        }
    }
}

#[test]
fn one_change_of_many_copies_one_service_port() {
    let mut ports = ServicePorts::default();
    for number in 0..10_000 {
        ports.insert(service_port(number, 1));
    }
    let before = ports.clone();
    ports.insert(service_port(5_000, 2));
    let copied = before.values().zip(ports.values()).filter(|(one, other)| !std::ptr::eq(*one, *other));
    assert_eq!(copied.count(), 1);
    assert_eq!(before.diff(&ports).map(|change| change.key.clone()).collect::<Vec<_>>(), [key(5_000)]);
}

#[test]
fn addresses_are_retained_while_the_node_object_has_none() {
    let unknown = NodeInfo::unknown("node-a");
    let without = NodeInfo { zone: "zone-a".into(), eligible: true, ..unknown.clone() };
    let with = |address: &str| NodeInfo { addresses: vec![address.parse().unwrap()], ..without.clone() };
    let mut state = NodeState::new(unknown.clone());
    state.put_node(without.clone());
    assert_eq!((state.node(), state.retains_addresses()), (&without, false), "it never had any");
    state.put_node(with("192.0.2.1"));
    let elsewhere = NodeInfo { zone: "zone-b".into(), ..without.clone() };
    for node in [&without, &unknown, &without, &elsewhere] {
        state.put_node(node.clone());
        assert_eq!(state.node().addresses, with("192.0.2.1").addresses);
        assert_eq!((state.retains_node(), state.retains_addresses()), (node == &unknown, node != &unknown));
        let mut read = NodeState::new(unknown.clone());
        assert_eq!(read.apply(state.snapshot()), []);
        assert_eq!(read, state, "also after a restart");
    }
    assert_eq!(&*state.node().zone, "zone-b", "the other facts are the current ones");
    state.put_node(with("192.0.2.2"));
    assert_eq!((state.node(), state.retains_addresses()), (&with("192.0.2.2"), false));
}

//! Slots are kept.

use std::net::IpAddr;

use proto::model::{ClusterInfo, Protocol};

use super::*;

fn vip(n: u8) -> Vip {
    Vip::AddressPort { address: [10, 96, 0, n].into(), port: 80, protocol: Protocol::Tcp }
}

fn endpoint(n: u8) -> IpAddr {
    [10, 244, 0, n].into()
}

fn element(n: u8, map: Map, index: u32, to: u8) -> Element {
    Element { vip: vip(n), map, index, data: ElementData::Endpoint(endpoint(to), 80) }
}

fn observed(elements: Vec<Element>) -> Observed {
    observed_table(|base| Listing { table: Some(base.table.clone()), elements, ..Listing::default() })
}

fn observed_table(list: impl FnOnce(&Base) -> Listing) -> Observed {
    let options = backend::dataplane::DataplaneOptions::default();
    let node = proto::model::NodeInfo::unknown("node");
    let base = PerFamily::from_fn(|family| crate::desired::base(family, &options, &node, &ClusterInfo::default()));
    let v4 = list(&base.v4);
    Observed::of(PerFamily { v4, v6: Listing::default() }, &base, &options.effective(&node))
}

fn last_octets(list: &[Option<Endpoint>]) -> Vec<u8> {
    let number = |endpoint: &Option<Endpoint>| match endpoint.map(|endpoint| endpoint.address) {
        Some(IpAddr::V4(address)) => address.octets()[3],
        _ => 0,
    };
    list.iter().map(number).collect()
}

#[test]
fn slots_are_kept_from_the_first_key_that_has_any() {
    let tables = observed(vec![
        element(2, Map::Endpoints, 1, 6),
        element(2, Map::Endpoints, 0, 5),
        element(3, Map::Endpoints, 0, 7),
        element(3, Map::LocalEndpoints, 2, 8),
    ])
    .tables;
    let slots = slots([vip(1), vip(2), vip(3)].into_iter(), |key| tables.v4.of_key(&key).1);
    assert_eq!(last_octets(&slots.cluster), [5, 6]);
    assert_eq!(last_octets(&slots.local), [0, 0, 8]);
}

#[test]
fn a_slot_after_a_large_gap_is_ignored() {
    let tables = observed(vec![element(2, Map::Endpoints, 0, 5), element(2, Map::Endpoints, u32::MAX, 6)]).tables;
    let slots = slots([vip(2)].into_iter(), |key| tables.v4.of_key(&key).1);
    assert_eq!(last_octets(&slots.cluster), [5]);
}

#[test]
fn a_table_that_exists_is_not_added() {
    let repairs = observed(vec![element(2, Map::Endpoints, 0, 5)]).repairs;
    assert_eq!(repairs.v6.first[0], Operation::AddTable);
    assert!(!repairs.v4.first.contains(&Operation::AddTable));
}

/// What it lacks could not be added.
#[test]
fn a_dormant_table_without_a_base_chain_is_replaced() {
    for is_complete in [false, true] {
        let observed = observed_table(|base| {
            let chains = base.chains.iter().map(|fixed| fixed.chain.clone());
            Listing {
                table: Some(netlink::nft::Table { flags: 1, ..base.table.clone() }),
                chains: chains.filter(|chain| is_complete || chain.base.is_none()).collect(),
                ..Listing::default()
            }
        });
        assert_eq!(observed.is_replaced(), !is_complete);
    }
}

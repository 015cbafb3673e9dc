//! The endpoints that packets may reach in the tables of the fake.

use std::net::IpAddr;

use backend::dataplane::Vip;

use super::{FakeTable, FakeTables, Reachable};
use crate::element::{ElementData, PoolChain, Verdict};

/// Panics if a verdict leads to a slot without an endpoint, or to a group without all of its source ranges.
pub(super) fn reachable(tables: &FakeTables) -> Reachable {
    let mut reachable = Reachable::new();
    for table in tables.iter().flat_map(|(_, tables)| tables.values()).filter(|table| table.serves()) {
        let groups = table.source_groups();
        for ((_, vip, ..), data) in &table.elements {
            let ElementData::Verdict(verdict) = data else { continue };
            if let Verdict::Sources(id) = verdict {
                assert!(groups.contains(id), "{vip} leads to {id}, which is not complete");
                continue;
            }
            let endpoints = reachable.entry(*vip).or_default();
            if let Verdict::Pool(chain) = verdict {
                endpoints.extend(table.pool(*vip, *chain));
            }
        }
    }
    reachable
}

impl FakeTable {
    /// The endpoints to which a chain sends packets to a VIP.
    fn pool(&self, vip: Vip, chain: PoolChain) -> Vec<(IpAddr, u16)> {
        let key = match chain.kind.aliases().map(|aliases| self.elements.get(&(aliases, vip, 0, None))) {
            None => vip,
            Some(Some(ElementData::PoolKey(key))) => *key,
            Some(alias) => panic!("{vip} leads to {chain}: alias {alias:?}"),
        };
        let mut maps = vec![chain.endpoints()];
        if chain.affinity.is_some() {
            maps.push(chain.affine_endpoints());
        }

        let mut endpoints = Vec::new();
        for map in maps {
            for slot in 0..chain.count {
                match self.elements.get(&(map, key, slot, None)) {
                    Some(ElementData::Endpoint(address, port)) => endpoints.push((*address, *port)),
                    other => panic!("{vip} leads to {chain}, slot {slot} of {key} in {}: {other:?}", map.name()),
                }
            }
        }
        endpoints
    }
}

//! What the kernel was found to hold, and what of the fixed part is wrong with it.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use backend::dataplane::{EffectiveOptions, Vip};
use netlink::nft::{Chain, ListedRule, Rule, Set, SetFlags, Table};
use proto::model::{Endpoint, IpFamily, PerFamily};

use crate::{
    desired::{Base, FixedChain, Orders, PoolChain},
    element::{Data, Element, Map},
    plan::{Before, Delta, Edit, Operation, Refs, Repairs},
};

/// One table as the kernel lists it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// `None`: there is no such table, and all else is empty.
    pub(crate) table: Option<Table>,
    pub(crate) chains: Vec<Chain>,
    pub(crate) sets: Vec<Set>,
    pub(crate) rules: Vec<ListedRule>,
    /// The elements of the maps whose definition is ours, in any order.
    pub(crate) elements: Vec<Element>,
    /// The keys of those that we would not have written.
    pub(crate) foreign: Vec<(Map, Box<[u8]>)>,
}

/// What was found of both families.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present(PerFamily<PresentTable>);

#[derive(Clone, Debug, Default)]
struct PresentTable {
    /// Sorted; without those that are shared.
    elements: Vec<Element>,
    refs: Refs,
}

// === impl Present ===

impl Present {
    /// Takes in what was listed. Gives what has to be repaired besides the elements of service ports; `is_owned` tells which
    /// fronts belong to one.
    pub(crate) fn new(
        listings: PerFamily<Listing>,
        base: &PerFamily<Base>,
        effective: &EffectiveOptions,
        is_owned: impl Fn(IpFamily, &Vip) -> bool,
    ) -> (Self, PerFamily<Repairs>) {
        let mut present = Self::default();
        let mut repairs = PerFamily::<Repairs>::default();
        let PerFamily { v4, v6 } = listings;
        for (family, mut listing) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            listing.elements.sort_unstable();
            let base = &base[family];
            if listing.table.is_none() || !fits(&listing, base) {
                let first = &mut repairs[family].first;
                first.extend(listing.table.is_some().then_some(Operation::DeleteTable));
                create(base, &mut repairs[family]);
                continue;
            }
            repairs[family] = repair(&listing, base, family, effective);
            let mut table = PresentTable::default();
            for chain in listing.chains.iter().filter_map(|chain| PoolChain::parse(&chain.name)) {
                table.refs.found_chain(chain);
            }
            listing.elements.retain(|element| {
                table.refs.found_element(element);
                if element.map.is_shared() {
                    table.refs.found_shared(*element);
                }
                !element.map.is_shared()
            });
            table.elements = listing.elements;
            let leftovers = table.elements.iter().filter(|element| !is_owned(family, &element.front));
            repairs[family].leftovers = leftovers.copied().collect();
            repairs[family].foreign = listing.foreign;
            present.0[family] = table;
        }
        (present, repairs)
    }

    /// Whether nothing was found that belongs to a service port.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, table)| table.elements.is_empty())
    }

    /// The places that endpoints were found at, under the first of these fronts that has any.
    pub(crate) fn orders<'a>(&self, family: IpFamily, fronts: impl Iterator<Item = &'a Vip>) -> Orders {
        let mut orders = Orders::default();
        for front in fronts {
            let mut found = Orders::default();
            for element in self.0[family].of(front) {
                match element.map {
                    Map::Endpoints
                    | Map::Endpoints64
                    | Map::Endpoints256
                    | Map::EndpointsMany
                    | Map::NodePortEndpoints => place(&mut found.cluster, element),
                    Map::LocalEndpoints | Map::NodePortLocalEndpoints => place(&mut found.local, element),
                    _ => {}
                }
            }
            for (known, found) in [(&mut orders.cluster, found.cluster), (&mut orders.local, found.local)] {
                if known.is_empty() {
                    *known = found;
                }
            }
        }
        orders
    }

    /// A transaction with these counts is in force.
    pub(crate) fn settle(&mut self, deltas: PerFamily<Delta>) {
        let PerFamily { v4, v6 } = deltas;
        self.0.v4.refs.settle(v4);
        self.0.v6.refs.settle(v6);
    }

    /// What is shared by service ports, without the rest.
    pub(crate) fn into_refs(self) -> PerFamily<Refs> {
        let PerFamily { v4, v6 } = self.0;
        PerFamily { v4: v4.refs, v6: v6.refs }
    }
}

/// Elements come sorted by their index. One that leaves a hole of more than a few was not written by us.
fn place(places: &mut Vec<Option<Endpoint>>, element: &Element) {
    const HOLE: usize = 1024;
    let Data::Endpoint(address, port) = element.data else { return };
    let (Some(port), index) = (port.try_into().ok(), element.index as usize) else { return };
    if index >= places.len() && index < places.len() + HOLE {
        places.resize(index, None);
        places.push(Some(Endpoint::new(address, port)));
    }
}

impl PresentTable {
    fn of(&self, front: &Vip) -> &[Element] {
        let start = self.elements.partition_point(|element| element.front < *front);
        let rest = &self.elements[start..];
        &rest[..rest.partition_point(|element| element.front == *front)]
    }
}

impl Before for Present {
    fn elements(&self, family: IpFamily, edit: &Edit, to: &mut Vec<Element>) {
        let fronts = edit.desired[family].iter().flat_map(|desired| desired.fronts());
        fronts.for_each(|front| to.extend_from_slice(self.0[family].of(front)));
    }

    /// Nobody knows who needed what was found: it is counted anew.
    fn shared(&self, _: IpFamily, _: &Edit, _: &mut Vec<Element>) {}

    fn refs(&self, family: IpFamily) -> &Refs {
        &self.0[family].refs
    }
}

// === the fixed part ===

/// Whether all that has our names is what we mean by them. If not, somebody (perhaps an older version) built another table.
fn fits(listing: &Listing, base: &Base) -> bool {
    let same_table = listing.table.as_ref().is_some_and(|table| table.comment == base.table.comment);
    let same_sets = listing.sets.iter().all(|set| {
        let ours = base.sets.iter().find(|ours| ours.name == set.name);
        ours.is_none_or(|ours| ours == set)
    });
    let same_chains = listing.chains.iter().all(|chain| match base.chain(&chain.name) {
        Some(ours) => ours.chain == *chain,
        None if PoolChain::parse(&chain.name).is_some() => *chain == Chain::regular(&*chain.name),
        None => true,
    });
    same_table && same_sets && same_chains && ranges_are_distinct(listing)
}

/// Whether ranges can be deleted. The kernel deletes the range that *starts* with the key, or holds it; where others have put in some
/// that overlap, nobody can tell which one that is.
fn ranges_are_distinct(listing: &Listing) -> bool {
    let ours = listing.elements.windows(2).all(|pair| match [pair[0].data, pair[1].data] {
        [Data::Range(one), Data::Range(next)] => pair[0].front != pair[1].front || one.last < next.first,
        _ => true,
    });
    ours && listing.foreign.iter().all(|(map, _)| *map != Map::SourceRanges)
}

fn create(base: &Base, repairs: &mut Repairs) {
    repairs.first.push(Operation::AddTable);
    for fixed in &base.chains {
        add_chain(fixed, repairs);
    }
    repairs.first.extend(base.sets.iter().cloned().map(Operation::AddSet));
}

/// Base chains are added with their rules, last: the kernel calls them as soon as they are there.
fn add_chain(fixed: &FixedChain, repairs: &mut Repairs) {
    let added = Operation::AddChain(fixed.chain.clone());
    if fixed.chain.base.is_some() {
        repairs.rules.push(added)
    } else {
        repairs.first.push(added)
    }
    add_rules(&fixed.chain.name, &fixed.rules, repairs);
}

fn add_rules(chain: &str, rules: &[Rule], repairs: &mut Repairs) {
    repairs.rules.extend(rules.iter().map(|rule| Operation::AddRule(chain.into(), rule.clone())));
}

fn repair(listing: &Listing, base: &Base, family: IpFamily, effective: &EffectiveOptions) -> Repairs {
    let mut repairs = Repairs::default();
    if listing.table.as_ref().is_some_and(|table| table.flags != base.table.flags) {
        repairs.first.push(Operation::AddTable);
    }
    let mut rules: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for listed in &listing.rules {
        rules.entry(&listed.chain).or_default().push(&listed.rule);
    }
    let mut take = |name: &str| rules.remove(name).unwrap_or_default();
    for fixed in &base.chains {
        let name = &fixed.chain.name;
        if !listing.chains.contains(&fixed.chain) {
            add_chain(fixed, &mut repairs);
            continue;
        }
        let found = take(name);
        if !found.iter().copied().eq(&fixed.rules) {
            repairs.first.extend((!found.is_empty()).then(|| Operation::FlushChain(name.clone())));
            add_rules(name, &fixed.rules, &mut repairs);
        }
    }
    let mut foreign_chains = Vec::new();
    for chain in listing.chains.iter().filter(|chain| base.chain(&chain.name).is_none()) {
        let found = take(&chain.name);
        match PoolChain::parse(&chain.name) {
            Some(pool) if found.iter().copied().eq(&pool.rules(family, effective)) => {}
            Some(pool) => repairs.pools.push(pool),
            None => {
                // It may lead to the next one.
                repairs.first.extend((!found.is_empty()).then(|| Operation::FlushChain(chain.name.clone())));
                foreign_chains.push(Operation::DeleteChain(chain.name.clone()));
            }
        }
    }
    for set in &base.sets {
        let missing = listing.sets.iter().all(|found| found.name != set.name);
        repairs.first.extend(missing.then(|| Operation::AddSet(set.clone())));
    }
    for set in &listing.sets {
        // Those without a name of their own go with their rules.
        if base.sets.iter().all(|ours| ours.name != set.name) && !set.flags.contains(SetFlags::ANONYMOUS) {
            repairs.last.push(Operation::DeleteSet(set.name.clone()));
        }
    }
    repairs.last.extend(foreign_chains);
    repairs
}

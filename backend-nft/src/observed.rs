//! The observed state: the content of our tables in the kernel, and the repairs of the base ruleset that they need.

mod elements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use backend::{
    NFT_TABLE,
    dataplane::{EffectiveOptions, Vip},
};
use ipnet::IpNet;
use netlink::nft::{Chain, ListedRule, Rule, Set, SetFlags};
use proto::model::{Endpoint, IpFamily, PerFamily};

use crate::{
    desired::{Base, FixedChain, Slots},
    element::{Element, ElementData, Map, PoolChain, SourceGroupId},
    kernel::{Listing, serves},
    operation::{Elements, Operation, Repairs},
    refs::RefCounts,
};
pub(crate) use elements::ObservedElements;

/// The tables that were read from the kernel, and the repairs of the base ruleset that they need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) tables: PerFamily<ObservedTable>,
    pub(crate) repairs: PerFamily<Repairs>,
}

/// The content of a table that belongs to service ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedTable {
    /// The elements, sorted; without shared elements.
    pub(crate) elements: Vec<Element>,
    pub(crate) refs: RefCounts,
}

/// A group of source ranges.
#[derive(Debug, Default)]
struct ObservedGroup {
    prefixes: Vec<IpNet>,
    /// The rules of its chain; `None`: there is no chain.
    rules: Option<Vec<Rule>>,
}

/// The most unused slots between two endpoints of a pool. After a larger gap, another process has written the element:
/// a slot of four billion must take no memory.
const MAX_SLOT_GAP: usize = 1024;

// === impl Observed ===

impl Observed {
    /// Evaluates listings.
    ///
    /// While packets traverse a table of another layout, ours is built without hooks. The last transaction adds them,
    /// and deletes the other table:
    ///
    /// ```text
    ///   fairlead: serves           fairlead: serves      ──┐
    ///   fairlead1: none            fairlead1: is built     ├ deleted   fairlead1: serves
    ///                              └─ complete: serves ────┘
    /// ```
    pub(crate) fn of(listings: PerFamily<Listing>, base: &PerFamily<Base>, effective: &EffectiveOptions) -> Self {
        let mut observed = Self::default();
        for (family, mut listing) in listings {
            let base = &base[family];
            let others = std::mem::take(&mut listing.others);
            let mut deleted = Vec::new();
            if !is_compatible(&listing, base) {
                listing = Listing::default();
                deleted.push(Operation::DeleteTable(NFT_TABLE.to_owned()));
            }
            listing.elements.sort_unstable();

            let is_deferred = !serves(&listing.chains) && others.values().any(|is_serving| *is_serving);
            let mut repairs = repair(&listing, base, is_deferred, family, effective);
            let others = others.into_keys().map(Operation::DeleteTable);
            if is_deferred {
                repairs.last.extend(others);
            } else {
                deleted.extend(others);
            }
            repairs.first.splice(0..0, deleted);
            repairs.foreign = std::mem::take(&mut listing.foreign);

            observed.repairs[family] = repairs;
            observed.tables[family] = ObservedTable::of(family, listing);
        }
        observed
    }

    /// Whether a table of this layout is deleted, because another process has altered it beyond repair.
    pub(crate) fn is_replaced(&self) -> bool {
        let deletion = Operation::DeleteTable(NFT_TABLE.to_owned());
        self.repairs.iter().any(|(_, repairs)| repairs.first.contains(&deletion))
    }
}

// === impl ObservedTable ===

impl ObservedTable {
    /// `listing`: its elements are sorted.
    fn of(family: IpFamily, mut listing: Listing) -> Self {
        let mut table = Self::default();
        for chain in listing.chains.iter().filter_map(|chain| PoolChain::parse(&chain.name)) {
            table.refs.chains.observe(chain);
        }
        table.observe_groups(family, &listing);

        for element in &listing.elements {
            table.refs.observe_element(element);
            // The elements of groups of source ranges are counted with their groups.
            if element.map.is_shared() && element.map != Map::AllowedSources {
                table.refs.elements.observe(*element);
            }
        }
        listing.elements.retain(|element| !element.map.is_shared() && !element.map.is_fixed());
        table.elements = listing.elements;
        table
    }

    /// Collects the chains and elements of groups of source ranges.
    fn observe_groups(&mut self, family: IpFamily, listing: &Listing) {
        let mut groups: BTreeMap<SourceGroupId, ObservedGroup> = BTreeMap::new();
        for id in listing.chains.iter().filter_map(|chain| SourceGroupId::parse(&chain.name)) {
            groups.entry(id).or_default().rules = Some(Vec::new());
        }
        for listed in &listing.rules {
            if let Some(id) = SourceGroupId::parse(&listed.chain) {
                groups.entry(id).or_default().rules.get_or_insert_default().push(listed.rule.clone());
            }
        }
        for element in &listing.elements {
            if let (ElementData::Source(id), Some(prefix)) = (element.data, element.prefix()) {
                groups.entry(id).or_default().prefixes.push(prefix);
            }
        }

        for (id, ObservedGroup { mut prefixes, rules }) in groups {
            prefixes.sort_unstable();
            self.refs.observe_group(family, id, prefixes, rules);
        }
    }

    /// The elements of a VIP or a pool key, sorted, and where they are.
    pub(crate) fn of_key(&self, key: &Vip) -> (std::ops::Range<usize>, &[Element]) {
        let start = self.elements.partition_point(|element| element.vip < *key);
        let len = self.elements[start..].iter().take_while(|element| element.vip == *key).count();
        (start..start + len, &self.elements[start..start + len])
    }
}

/// The slots of endpoints, under the first of these keys that has endpoints. `of_key`: the elements of a key, sorted.
pub(crate) fn slots<'a, I: IntoIterator<Item = &'a Element>>(
    keys: impl Iterator<Item = Vip>,
    of_key: impl Fn(Vip) -> I,
) -> Slots {
    let mut slots = Slots::default();
    for key in keys {
        let mut found = Slots::default();
        for element in of_key(key) {
            match element.map {
                Map::Endpoints | Map::Endpoints64 | Map::Endpoints256 | Map::EndpointsMany => {
                    fill_slot(&mut found.cluster, element);
                }
                Map::LocalEndpoints => fill_slot(&mut found.local, element),
                _ => {}
            }
        }
        if slots.cluster.is_empty() {
            slots.cluster = found.cluster;
        }
        if slots.local.is_empty() {
            slots.local = found.local;
        }
    }
    slots
}

/// Records the slot of an endpoint. The elements before it have lower slots.
fn fill_slot(slots: &mut Vec<Option<Endpoint>>, element: &Element) {
    let ElementData::Endpoint(address, port) = element.data else { return };
    let Ok(port) = port.try_into() else { return };
    let index = element.index as usize;
    if index >= slots.len() && index < slots.len() + MAX_SLOT_GAP {
        slots.resize(index, None);
        slots.push(Some(Endpoint::new(address, port)));
    }
}

// === The base ruleset ===

/// Whether the objects with our names have our definitions, and missing objects can be added. If not, another program
/// has changed the table.
fn is_compatible(listing: &Listing, base: &Base) -> bool {
    let is_same_table = listing.table.as_ref().is_none_or(|table| table.comment == base.table.comment);
    let is_same_set = |set: &Set| base.sets.iter().all(|ours| ours.name != set.name || ours == set);
    let is_same_chain = |chain: &Chain| match base.chain(&chain.name) {
        Some(ours) => ours.chain == *chain,
        None => !is_chain_of_services(&chain.name) || *chain == Chain::regular(&*chain.name),
    };
    if !is_same_table || !listing.sets.iter().all(is_same_set) || !listing.chains.iter().all(is_same_chain) {
        return false;
    }

    // The kernel rejects a new base chain after a change of the flags of its table in the same transaction.
    let are_same_flags = listing.table.as_ref().is_none_or(|table| table.flags == base.table.flags);
    let mut base_chains = base.chains.iter().filter(|fixed| fixed.chain.base.is_some());
    are_same_flags || base_chains.all(|fixed| listing.chains.contains(&fixed.chain))
}

/// Whether the chain is created on demand by service ports.
fn is_chain_of_services(name: &str) -> bool {
    PoolChain::parse(name).is_some() || SourceGroupId::parse(name).is_some()
}

/// The repairs of the base ruleset and of pool chains. Without a table in the listing, they create all objects.
/// `is_deferred`: the last transaction adds base chains.
fn repair(
    listing: &Listing,
    base: &Base,
    is_deferred: bool,
    family: IpFamily,
    effective: &EffectiveOptions,
) -> Repairs {
    let mut repairs = Repairs::default();
    if listing.table.as_ref().is_none_or(|table| table.flags != base.table.flags) {
        repairs.first.push(Operation::AddTable);
    }

    let rules = RulesByChain::new(&listing.rules);
    for fixed in &base.chains {
        if listing.chains.contains(&fixed.chain) {
            repair_rules(fixed, &rules, &mut repairs);
        } else {
            add_chain(fixed, is_deferred, &mut repairs);
        }
    }
    repair_pool_chains(listing, &rules, family, effective, &mut repairs);

    let foreign = listing.chains.iter().map(|chain| &*chain.name).filter(|name| is_foreign_chain(base, name));
    // Rules of a foreign chain may jump to the next foreign chain, and use a foreign set.
    let flushed = foreign.clone().filter(|name| !rules.of(name).is_empty());
    repairs.last.extend(flushed.map(|name| Operation::FlushChain(name.to_owned())));
    repair_sets(listing, base, family, &mut repairs);
    repairs.last.extend(foreign.map(|name| Operation::DeleteChain(name.to_owned())));
    repairs
}

/// Adds a chain of the base ruleset with its rules.
fn add_chain(fixed: &FixedChain, is_deferred: bool, repairs: &mut Repairs) {
    let chain = Operation::AddChain(fixed.chain.clone());
    if fixed.chain.base.is_none() {
        repairs.first.push(chain);
        repairs.rules.extend(fixed.add_rules());
        return;
    }

    // Base chains are added last, because packets traverse them at once.
    let operations = if is_deferred { &mut repairs.last } else { &mut repairs.rules };
    operations.push(chain);
    operations.extend(fixed.add_rules());
}

/// Replaces the rules of a chain of the base ruleset if they differ.
fn repair_rules(fixed: &FixedChain, rules: &RulesByChain<'_>, repairs: &mut Repairs) {
    let name = &fixed.chain.name;
    let found = rules.of(name);
    if found.iter().copied().eq(&fixed.rules) {
        return;
    }
    if !found.is_empty() {
        repairs.first.push(Operation::FlushChain(name.clone()));
    }
    repairs.rules.extend(fixed.add_rules());
}

/// Collects the pool chains with wrong rules.
fn repair_pool_chains(
    listing: &Listing,
    rules: &RulesByChain<'_>,
    family: IpFamily,
    effective: &EffectiveOptions,
    repairs: &mut Repairs,
) {
    for chain in &listing.chains {
        let Some(pool) = PoolChain::parse(&chain.name) else { continue };
        if !rules.of(&chain.name).iter().copied().eq(&pool.rules(family, effective)) {
            repairs.pools.push(pool);
        }
    }
}

/// Adds missing sets and the fixed elements that they should have, and deletes foreign sets.
fn repair_sets(listing: &Listing, base: &Base, family: IpFamily, repairs: &mut Repairs) {
    let missing = base.sets.iter().filter(|set| listing.sets.iter().all(|found| found.name != set.name));
    repairs.first.extend(missing.cloned().map(Operation::AddSet));

    let mut fixed = Elements::default();
    for element in Element::equal_bytes(family) {
        if listing.elements.binary_search(&element).is_err() {
            fixed.push(element, None);
        }
    }
    if !fixed.list.is_empty() {
        repairs.first.push(Operation::AddElements(Map::EqualBytes, fixed));
    }

    for set in &listing.sets {
        // Anonymous sets are deleted with their rules.
        if base.sets.iter().all(|ours| ours.name != set.name) && !set.flags.contains(SetFlags::ANONYMOUS) {
            repairs.last.push(Operation::DeleteSet(set.name.clone()));
        }
    }
}

/// Whether Fairlead never writes a chain of this name.
fn is_foreign_chain(base: &Base, name: &str) -> bool {
    base.chain(name).is_none() && !is_chain_of_services(name)
}

/// The rules of each chain of a table, in their order.
#[derive(Debug, Default)]
struct RulesByChain<'a>(HashMap<&'a str, Vec<&'a Rule>>);

// === impl RulesByChain ===

impl<'a> RulesByChain<'a> {
    fn new(listed: &'a [ListedRule]) -> Self {
        let mut by_chain = Self::default();
        for listed in listed {
            by_chain.0.entry(&listed.chain).or_default().push(&listed.rule);
        }
        by_chain
    }

    /// The rules of the chain of this name.
    fn of(&self, chain: &str) -> &[&'a Rule] {
        self.0.get(chain).map_or(&[], Vec::as_slice)
    }
}

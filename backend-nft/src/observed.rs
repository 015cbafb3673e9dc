//! The observed state: what the kernel contains, and which repairs of the base ruleset it needs.

mod elements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use backend::{
    NFT_TABLE,
    dataplane::{EffectiveOptions, Vip},
};
use ipnet::IpNet;
use netlink::nft::{Chain, Rule, SetFlags};
use proto::model::{Endpoint, IpFamily, PerFamily};

use crate::{
    desired::{Base, Slots},
    element::{Element, ElementData, Map, PoolChain, SourceGroupId},
    kernel::{Listing, serves},
    operation::{Elements, Operation, Repairs},
    refs::RefCounts,
};
pub(crate) use elements::ObservedElements;

/// What was read from the kernel, and the repairs of the base ruleset that it needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) tables: PerFamily<ObservedTable>,
    pub(crate) repairs: PerFamily<Repairs>,
}

/// What a table contains because of service ports.
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

/// Elements are sorted by their slot.
fn fill_slot(slots: &mut Vec<Option<Endpoint>>, element: &Element) {
    /// After a larger gap another process has written the element: a slot of four billion takes no memory.
    const MAX_GAP: usize = 1024;
    let ElementData::Endpoint(address, port) = element.data else { return };
    let (Some(port), index) = (port.try_into().ok(), element.index as usize) else { return };
    if index >= slots.len() && index < slots.len() + MAX_GAP {
        slots.resize(index, None);
        slots.push(Some(Endpoint::new(address, port)));
    }
}

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
        let mut tables = PerFamily::<ObservedTable>::default();
        let mut repairs = PerFamily::<Repairs>::default();
        for (family, mut listing) in listings {
            let base = &base[family];
            let others = std::mem::take(&mut listing.others);
            let mut deleted = Vec::new();
            if !is_compatible(&listing, base) {
                listing = Listing::default();
                deleted.push(Operation::DeleteTable(NFT_TABLE.to_owned()));
            }
            let is_deferred = !serves(&listing.chains) && others.values().any(|is_serving| *is_serving);
            let others = others.into_keys().map(Operation::DeleteTable);
            listing.elements.sort_unstable();
            repairs[family] = repair(&listing, base, is_deferred, family, effective);
            if is_deferred { &mut repairs[family].last } else { &mut deleted }.extend(others);
            repairs[family].first.splice(0..0, deleted);
            let mut table = ObservedTable::default();
            for chain in listing.chains.iter().filter_map(|chain| PoolChain::parse(&chain.name)) {
                table.refs.chains.observe(chain);
            }
            table.observe_groups(family, &listing);
            listing.elements.retain(|element| {
                table.refs.observe_element(element);
                if element.map.is_shared() && element.map != Map::AllowedSources {
                    table.refs.elements.observe(*element);
                }
                !element.map.is_shared() && !element.map.is_fixed()
            });
            table.elements = listing.elements;
            repairs[family].foreign = listing.foreign;
            tables[family] = table;
        }
        Self { tables, repairs }
    }

    /// Whether a table of this layout is deleted, because another process has altered it beyond repair.
    pub(crate) fn is_replaced(&self) -> bool {
        let deletion = Operation::DeleteTable(NFT_TABLE.to_owned());
        self.repairs.iter().any(|(_, repairs)| repairs.first.contains(&deletion))
    }
}

// === impl ObservedTable ===

impl ObservedTable {
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

/// The slots of endpoints, under the first of these keys that has any. `of_key`: the elements of a key, sorted.
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
        for (kept, found) in [(&mut slots.cluster, found.cluster), (&mut slots.local, found.local)] {
            if kept.is_empty() {
                *kept = found;
            }
        }
    }
    slots
}

// === the base ruleset ===

/// Whether the objects with our names have our definitions, and what is missing can be added. If not, another program
/// has changed the table.
fn is_compatible(listing: &Listing, base: &Base) -> bool {
    let is_same_table = listing.table.as_ref().is_none_or(|table| table.comment == base.table.comment);
    let are_same_sets =
        listing.sets.iter().all(|set| base.sets.iter().all(|ours| ours.name != set.name || ours == set));
    let are_same_chains = listing.chains.iter().all(|chain| match base.chain(&chain.name) {
        Some(ours) => ours.chain == *chain,
        None => !is_chain_of_services(&chain.name) || *chain == Chain::regular(&*chain.name),
    });
    // The kernel rejects a new base chain after a change of the flags of its table in the same transaction.
    let are_base_chains_complete = || {
        let mut base_chains = base.chains.iter().filter(|fixed| fixed.chain.base.is_some());
        base_chains.all(|fixed| listing.chains.contains(&fixed.chain))
    };
    let are_same_flags = listing.table.as_ref().is_none_or(|table| table.flags == base.table.flags);
    is_same_table && are_same_sets && are_same_chains && (are_same_flags || are_base_chains_complete())
}

/// Whether the chain is created on demand by service ports.
fn is_chain_of_services(name: &str) -> bool {
    PoolChain::parse(name).is_some() || SourceGroupId::parse(name).is_some()
}

/// Without a table in the listing, this creates everything. `is_deferred`: the last transaction adds base chains.
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
    let mut rules: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for listed in &listing.rules {
        rules.entry(&listed.chain).or_default().push(&listed.rule);
    }
    let mut take = |name: &str| rules.remove(name).unwrap_or_default();
    for fixed in &base.chains {
        let name = &fixed.chain.name;
        if !listing.chains.contains(&fixed.chain) {
            // Base chains are added last, with their rules: packets traverse them at once.
            let is_hook = fixed.chain.base.is_some();
            let rules = if is_hook && is_deferred { &mut repairs.last } else { &mut repairs.rules };
            let chains = if is_hook { &mut *rules } else { &mut repairs.first };
            chains.push(Operation::AddChain(fixed.chain.clone()));
            rules.extend(fixed.add_rules());
            continue;
        }
        let found = take(name);
        if !found.iter().copied().eq(&fixed.rules) {
            repairs.first.extend((!found.is_empty()).then(|| Operation::FlushChain(name.clone())));
            repairs.rules.extend(fixed.add_rules());
        }
    }
    let is_foreign = |chain: &&Chain| base.chain(&chain.name).is_none() && SourceGroupId::parse(&chain.name).is_none();
    let mut foreign_chains = Vec::new();
    for chain in listing.chains.iter().filter(is_foreign) {
        let found = take(&chain.name);
        match PoolChain::parse(&chain.name) {
            Some(pool) if found.iter().copied().eq(&pool.rules(family, effective)) => {}
            Some(pool) => repairs.pools.push(pool),
            None => {
                // Until the last transaction, elements of an earlier version may refer to it. Its rules may jump to the
                // next chain that is deleted, and use a set that is.
                repairs.last.extend((!found.is_empty()).then(|| Operation::FlushChain(chain.name.clone())));
                foreign_chains.push(Operation::DeleteChain(chain.name.clone()));
            }
        }
    }
    let missing_sets = base.sets.iter().filter(|set| listing.sets.iter().all(|found| found.name != set.name));
    repairs.first.extend(missing_sets.cloned().map(Operation::AddSet));
    let mut fixed = Elements::default();
    for element in Element::equal_bytes(family).filter(|element| listing.elements.binary_search(element).is_err()) {
        fixed.push(element, None);
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
    repairs.last.extend(foreign_chains);
    repairs
}

//! An in-memory kernel that makes the checks of the real one: names exist, keys are unused, referenced objects are not
//! deleted. It also rejects the VIPs that a test selects.

mod reachable;
mod references;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use backend::{Drift, NFT_TABLE, dataplane::Vip, driver::Rejection, testing::ErrorDetail};
use ipnet::IpNet;
use netlink::nft::{Chain, ListedRule, Rule, Set, SetFlags};
use proto::model::{IpFamily, PerFamily};

use self::{
    reachable::reachable,
    references::{RuleReference, references},
};
use super::{Kernel, Listing, TransactionOutcome};
use crate::{
    desired::EndpointKeys,
    element::{Element, ElementData, Map, MapContent, PoolChain, SourceGroupId, Verdict, VipShape},
    operation::{Elements, Operation},
};

/// Clones share one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<FakeState>>, Generation);

/// The number of changes of the tables when this clone listed them last, and its own changes since then; 0: this clone
/// has not listed them.
type Generation = u64;

#[derive(Debug, Default)]
struct FakeState {
    tables: FakeTables,
    /// The number of changes.
    generation: Generation,
    /// The number of times that the tables were listed.
    lists: usize,
    rejected_vips: BTreeSet<Vip>,
    /// A family that the kernel does not support.
    unsupported: Option<IpFamily>,
    detail: ErrorDetail,
    /// The number of transactions, including rejected ones.
    transactions: usize,
    /// The VIPs with a verdict after each transaction.
    vips: Vec<BTreeSet<Vip>>,
    /// The number of chains that each transaction added.
    added_chains: Vec<usize>,
    /// The number of elements that each transaction wrote.
    written_elements: Vec<usize>,
    /// The endpoints that packets may reach after each transaction; `None`: they are not recorded.
    reachable: Option<Vec<Reachable>>,
}

/// The tables by their names.
type FakeTables = PerFamily<BTreeMap<String, FakeTable>>;

/// The endpoints to which packets to each VIP may be sent; none: they are dropped or rejected.
pub(crate) type Reachable = BTreeMap<Vip, BTreeSet<(IpAddr, u16)>>;

/// The content of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FakeTable {
    chains: BTreeMap<String, (Chain, Vec<Rule>)>,
    sets: BTreeMap<String, Set>,
    elements: BTreeMap<ElementKey, ElementData>,
    /// The elements before the current transaction, if that has changed them, the last change last.
    journal: Vec<(ElementKey, Option<ElementData>)>,
}

/// Map, VIP, slot, and data that are part of the key.
type ElementKey = (Map, Vip, u32, Option<ElementData>);

/// The update that an operation belongs to, and why it is rejected.
type OperationError = (Option<u32>, String);

// === impl Fake ===

impl Fake {
    /// The tables of this layout for comparison: without unused pool chains, which depend on the history.
    pub(crate) fn tables(&self) -> PerFamily<Option<FakeTable>> {
        let mut tables = PerFamily::from_fn(|family| self.0.lock().unwrap().tables[family].get(NFT_TABLE).cloned());
        for table in [&mut tables.v4, &mut tables.v6].into_iter().flatten() {
            let used = table.used_chains();
            table.chains.retain(|name, _| PoolChain::parse(name).is_none_or(|chain| used.contains(&chain)));
        }
        tables
    }

    /// Whether there is a table of another layout.
    pub(crate) fn has_others(&self) -> bool {
        self.0.lock().unwrap().tables.iter().any(|(_, tables)| tables.keys().any(|name| name != NFT_TABLE))
    }

    /// Gives the tables another layout and this name, as another version of Fairlead would have written them. With the
    /// name of this layout: as another process would alter them.
    pub(crate) fn change_layout(&self, name: &str) {
        let mut state = self.0.lock().unwrap();
        state.generation += 1;
        let PerFamily { v4, v6 } = &mut state.tables;
        for tables in [v4, v6] {
            let Some(mut table) = tables.remove(NFT_TABLE) else { continue };
            let mut vips = table.sets[Map::Vips.name()].clone();
            vips.flags = SetFlags::EVAL;
            table.sets.insert(vips.name.clone(), vips);
            tables.insert(name.to_owned(), table);
        }
    }

    /// The number of unused pool chains.
    pub(crate) fn unused_chains(&self) -> usize {
        let state = self.0.lock().unwrap();
        let tables = state.tables.iter().flat_map(|(_, tables)| tables.values());
        tables.map(FakeTable::unused_chains).sum()
    }

    /// Rejects elements of these VIPs from now on.
    pub(crate) fn reject(&self, vips: impl IntoIterator<Item = Vip>, detail: ErrorDetail) {
        let mut state = self.0.lock().unwrap();
        state.rejected_vips = vips.into_iter().collect();
        state.detail = detail;
    }

    /// Supports all families but this one from now on.
    pub(crate) fn set_unsupported(&self, family: Option<IpFamily>) {
        self.0.lock().unwrap().unsupported = family;
    }

    /// The number of transactions since the last call, including rejected ones.
    pub(crate) fn transactions(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().transactions)
    }

    /// How often the tables were listed.
    pub(crate) fn lists(&self) -> usize {
        self.0.lock().unwrap().lists
    }

    /// The number of elements, by map.
    pub(crate) fn element_counts(&self) -> BTreeMap<Map, usize> {
        let state = self.0.lock().unwrap();
        let mut counts = BTreeMap::new();
        for table in state.tables.iter().flat_map(|(_, tables)| tables.values()) {
            let of_services = table.elements.keys().filter(|(map, ..)| !map.is_fixed());
            of_services.for_each(|(map, ..)| *counts.entry(*map).or_default() += 1);
        }
        counts
    }

    /// The VIPs with a verdict after each transaction since the last call.
    pub(crate) fn vips_by_transaction(&self) -> Vec<BTreeSet<Vip>> {
        std::mem::take(&mut self.0.lock().unwrap().vips)
    }

    /// The number of chains that each transaction since the last call added.
    pub(crate) fn added_chains(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().unwrap().added_chains)
    }

    /// The number of elements that each accepted transaction since the last call wrote.
    pub(crate) fn written_elements(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().unwrap().written_elements)
    }

    /// Checks and records from now on the endpoints that packets may reach after each transaction.
    pub(crate) fn record_reachable(&self) {
        self.0.lock().unwrap().reachable = Some(Vec::new());
    }

    /// The endpoints that packets may reach after each transaction since the last call.
    pub(crate) fn reachable(&self) -> Vec<Reachable> {
        self.0.lock().unwrap().reachable.replace(Vec::new()).unwrap_or_default()
    }

    /// Deletes everything.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock().unwrap();
        *state = FakeState { generation: state.generation + 1, ..FakeState::default() };
    }

    /// Removes an element that no rule has written, as another process would. Whether there is one.
    pub(crate) fn remove_any(&self, number: usize) -> bool {
        let mut state = self.0.lock().unwrap();
        state.generation += 1;
        let Some(table) = state.tables.v4.get_mut(NFT_TABLE) else { return false };
        let keys: Vec<_> = table.elements.keys().cloned().collect();
        let key = number.checked_rem(keys.len()).map(|index| &keys[index]);
        key.is_some_and(|key| table.elements.remove(key).is_some())
    }

    /// Changes the elements of the IPv4 table, as another process would.
    pub(crate) fn tamper(&self, change: impl FnOnce(&mut BTreeMap<ElementKey, ElementData>)) {
        let mut state = self.0.lock().unwrap();
        state.generation += 1;
        change(&mut state.tables.v4.get_mut(NFT_TABLE).unwrap().elements);
    }
}

impl Kernel for Fake {
    async fn list(&mut self, _: EndpointKeys) -> Result<PerFamily<Listing>> {
        let mut state = self.0.lock().unwrap();
        state.lists += 1;
        self.1 = state.generation;
        Ok(PerFamily::from_fn(|family| {
            let tables = &state.tables[family];
            let others = tables.iter().filter(|(name, _)| *name != NFT_TABLE);
            let mut listing = tables.get(NFT_TABLE).map(|table| table.list(family)).unwrap_or_default();
            listing.others = others.map(|(name, table)| (name.clone(), table.serves())).collect();
            listing
        }))
    }

    fn is_untouched(&mut self) -> bool {
        self.1 == self.0.lock().unwrap().generation
    }

    async fn tables(&mut self) -> Result<Vec<(IpFamily, String)>> {
        let state = self.0.lock().unwrap();
        let mut names = Vec::new();
        for (family, tables) in state.tables.iter() {
            names.extend(tables.keys().map(|name| (family, name.clone())));
        }
        Ok(names)
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<TransactionOutcome> {
        let mut state = self.0.lock().unwrap();
        state.transactions += 1;
        let mut tables = std::mem::take(&mut state.tables);
        let before = PerFamily::from_fn(|family| {
            let tables = tables[family].iter();
            tables.map(|(name, table)| (name.clone(), table.rules_and_sets())).collect::<BTreeMap<_, _>>()
        });

        let mut deleted = FakeTables::default();
        let mut rejection = Rejection::default();
        for (family, operation) in &operations {
            if let Operation::DeleteTable(name) = operation
                && let Some(table) = tables[*family].get(name)
            {
                deleted[*family].entry(name.clone()).or_insert_with(|| table.clone());
            }
            if let Err((owner, reason)) = state.execute(&mut tables[*family], *family, operation) {
                match owner.filter(|_| state.detail == ErrorDetail::Named) {
                    Some(owner) => rejection.named.push((owner, reason)),
                    None => drop(rejection.unnamed.get_or_insert(reason)),
                }
            }
        }
        rejection.named.sort_unstable();
        rejection.named.dedup_by_key(|(owner, _)| *owner);

        if rejection != Rejection::default() {
            for (family, before) in before {
                for (name, before) in before {
                    if let Some(table) = deleted[family].remove(&name).or_else(|| tables[family].remove(&name)) {
                        state.tables[family].insert(name, table.undo(before));
                    }
                }
            }
            return Ok(TransactionOutcome::Rejected(rejection));
        }

        for table in tables.v4.values_mut().chain(tables.v6.values_mut()) {
            table.journal.clear();
        }
        self.1 += u64::from(self.1 == state.generation);
        state.generation += 1;
        state.tables = tables;
        state.record(&operations);
        Ok(TransactionOutcome::Committed { took: Duration::ZERO })
    }

    async fn drifted(&mut self) -> Drift {
        std::future::pending().await
    }
}

impl FakeTable {
    /// The pool chains that elements lead to.
    fn used_chains(&self) -> BTreeSet<PoolChain> {
        let pools = self.elements.values().filter_map(|data| match data {
            ElementData::Verdict(Verdict::Pool(chain)) => Some(*chain),
            _ => None,
        });
        pools.flat_map(PoolChain::path).collect()
    }

    /// The number of pool chains that no element leads to.
    fn unused_chains(&self) -> usize {
        let used = self.used_chains();
        let pools = self.chains.keys().filter_map(|name| PoolChain::parse(name));
        pools.filter(|chain| !used.contains(chain)).count()
    }
}

impl FakeState {
    /// Records a transaction that was committed.
    fn record(&mut self, operations: &[(IpFamily, Operation)]) {
        let serving = self.tables.iter().flat_map(|(_, tables)| tables.values()).filter(|table| table.serves());
        self.vips.push(serving.flat_map(FakeTable::vips).collect());
        let added = operations.iter().filter(|(_, operation)| matches!(operation, Operation::AddChain(_)));
        self.added_chains.push(added.count());
        self.written_elements.push(operations.iter().map(|(_, operation)| operation.elements()).sum());
        if let Some(recorded) = &mut self.reachable {
            recorded.push(reachable(&self.tables));
        }
    }

    fn execute(
        &self,
        tables: &mut BTreeMap<String, FakeTable>,
        family: IpFamily,
        operation: &Operation,
    ) -> Result<(), OperationError> {
        match operation {
            Operation::AddTable if self.unsupported == Some(family) => {
                return Err((None, "operation not supported".to_owned()));
            }
            Operation::AddTable => drop(tables.entry(NFT_TABLE.to_owned()).or_default()),
            Operation::DeleteTable(name) => ensure(tables.remove(name).is_some(), "no such table")?,
            operation => {
                let table = tables.get_mut(NFT_TABLE).ok_or_else(|| (None, format!("no {family} table")))?;
                let is_rejected = |element: &Element| self.rejected_vips.contains(&element.vip);
                table.execute(operation, is_rejected)?;
            }
        }
        Ok(())
    }
}

impl FakeTable {
    /// The groups of source ranges that are complete.
    fn source_groups(&self) -> BTreeSet<SourceGroupId> {
        let mut groups: BTreeMap<SourceGroupId, Vec<IpNet>> = BTreeMap::new();
        for ((map, vip, index, _), data) in &self.elements {
            let prefix = element(*map, *vip, *index, *data).prefix();
            if let (ElementData::Source(id), Some(prefix)) = (data, prefix) {
                groups.entry(*id).or_default().push(prefix);
            }
        }
        for prefixes in groups.values_mut() {
            prefixes.sort_unstable();
        }
        groups.retain(|id, prefixes| SourceGroupId::of(prefixes) == *id && self.chains.contains_key(&id.to_string()));
        groups.into_keys().collect()
    }

    /// The content without the slots of endpoints.
    pub(crate) fn shape(&self) -> String {
        let elements = self.elements.iter().map(|((map, vip, ..), data)| (map, vip, data));
        format!("{:?} {:?} {:?}", self.chains, self.sets, elements.collect::<BTreeSet<_>>())
    }

    /// Whether packets traverse it.
    fn serves(&self) -> bool {
        self.chains.values().any(|(chain, _)| chain.base.is_some())
    }

    /// The table without elements, which are many.
    fn rules_and_sets(&self) -> Self {
        Self { chains: self.chains.clone(), sets: self.sets.clone(), ..Self::default() }
    }

    /// The table before the current transaction. `before`: the result of [`Self::rules_and_sets`] then.
    fn undo(mut self, before: Self) -> Self {
        for (key, data) in std::mem::take(&mut self.journal).into_iter().rev() {
            match data {
                Some(data) => self.elements.insert(key, data),
                None => self.elements.remove(&key),
            };
        }
        Self { elements: self.elements, ..before }
    }

    fn vips(&self) -> impl Iterator<Item = Vip> {
        let verdicts = self.elements.iter().filter(|(_, data)| matches!(data, ElementData::Verdict(_)));
        verdicts.map(|((_, vip, ..), _)| *vip)
    }

    fn list(&self, family: IpFamily) -> Listing {
        let rules = self.chains.iter().flat_map(|(chain, (_, rules))| {
            let listed = (1..).zip(rules);
            listed.map(|(handle, rule)| ListedRule { chain: chain.clone(), handle, rule: rule.clone() })
        });
        let elements = self.elements.iter();
        Listing {
            table: Some(crate::desired::table(family)),
            chains: self.chains.values().map(|(chain, _)| chain.clone()).collect(),
            sets: self.sets.values().cloned().collect(),
            rules: rules.collect(),
            elements: elements.map(|((map, vip, index, _), data)| element(*map, *vip, *index, *data)).collect(),
            foreign: Vec::new(),
            others: BTreeMap::new(),
        }
    }

    fn execute(&mut self, operation: &Operation, is_rejected: impl Fn(&Element) -> bool) -> Result<(), OperationError> {
        match operation {
            Operation::AddTable | Operation::DeleteTable(_) => {}
            Operation::AddChain(chain) => {
                ensure(!self.chains.contains_key(&chain.name), &format!("chain {} exists", chain.name))?;
                self.chains.insert(chain.name.clone(), (chain.clone(), Vec::new()));
            }
            Operation::AddSet(set) => drop(self.sets.insert(set.name.clone(), set.clone())),
            Operation::FlushChain(name) => self.chain(name)?.clear(),
            Operation::AddRule(name, rule) => {
                for reference in references(rule) {
                    let known = match reference {
                        RuleReference::Set(set) => self.sets.contains_key(set),
                        RuleReference::WrittenSet(set) => {
                            self.sets.get(set).is_some_and(|set| set.flags.contains(SetFlags::EVAL))
                        }
                        RuleReference::Chain(chain) => self.chains.contains_key(chain),
                    };
                    ensure(known, &format!("rule in {name}: no {reference:?}"))?;
                }
                self.chain(name)?.push(rule.clone());
            }
            Operation::DeleteChain(name) => {
                self.chain(name)?;
                self.chains.remove(name);
                let rules = self.chains.values().flat_map(|(_, rules)| rules);
                let by_rule = rules.flat_map(references).any(|reference| reference == RuleReference::Chain(name));
                ensure(
                    !by_rule && self.elements.values().all(|data| target_chain(data).as_ref() != Some(name)),
                    "the chain is in use",
                )?;
            }
            Operation::DeleteSet(name) => ensure(self.sets.remove(name).is_some(), "no such set")?,
            Operation::DeleteForeign(..) => ensure(false, "the fake lists no foreign elements")?,
            Operation::DeleteElements(_, elements) => each(elements, |element| {
                let found = self.elements.remove(&key(element));
                self.journal.push((key(element), found));
                ensure_that(found == Some(element.data), || format!("{element:?}: found {found:?}"))
            })?,
            Operation::AddElements(map, elements) => each(elements, |element| {
                ensure_that(!is_rejected(element), || format!("{} is rejected by the test", element.vip))?;
                ensure(self.sets.contains_key(map.name()), "no such set")?;
                ensure(accepts(*map, element), "the element does not fit the map")?;
                let target = target_chain(&element.data);
                ensure(target.is_none_or(|chain| self.chains.contains_key(&chain)), "no such chain")?;
                let old = self.elements.insert(key(element), element.data);
                self.journal.push((key(element), old));
                ensure_that(old.is_none(), || format!("{element:?} exists"))
            })?,
        }
        Ok(())
    }

    fn chain(&mut self, name: &str) -> Result<&mut Vec<Rule>, OperationError> {
        self.chains.get_mut(name).map(|(_, rules)| rules).ok_or_else(|| (None, format!("no chain {name}")))
    }
}

/// Stops at the first rejected element, as the kernel does within a message.
fn each(
    elements: &Elements,
    mut execute: impl FnMut(&Element) -> Result<(), OperationError>,
) -> Result<(), OperationError> {
    for (index, element) in elements.list.iter().enumerate() {
        execute(element).map_err(|(_, reason)| (elements.owner(index), reason))?;
    }
    Ok(())
}

fn ensure(condition: bool, reason: &str) -> Result<(), OperationError> {
    ensure_that(condition, || reason.to_owned())
}

fn ensure_that(condition: bool, reason: impl FnOnce() -> String) -> Result<(), OperationError> {
    if condition { Ok(()) } else { Err((None, reason())) }
}

fn element(map: Map, vip: Vip, index: u32, data: ElementData) -> Element {
    Element { vip, map, index, data }
}

/// Whether the map has elements with this type of VIP and data.
fn accepts(map: Map, element: &Element) -> bool {
    let has_shape = matches!(
        (map.vip_shape(), element.vip),
        (VipShape::AddressPort, Vip::AddressPort { .. })
            | (VipShape::NodePort, Vip::NodePort { .. })
            | (VipShape::Address, Vip::Address(_))
    );
    let has_content = matches!(
        (map.content(), element.data),
        (MapContent::Nothing, ElementData::None)
            | (MapContent::Endpoint | MapContent::PaddedEndpoint, ElementData::Endpoint(..))
            | (MapContent::Member, ElementData::Member(..))
            | (MapContent::Verdict, ElementData::Verdict(_))
            | (MapContent::PoolKey, ElementData::PoolKey(_))
            | (MapContent::Source, ElementData::Source(_))
            | (MapContent::Byte, ElementData::None)
    );
    has_shape && has_content
}

fn key(element: &Element) -> ElementKey {
    let is_in_key = matches!(element.data, ElementData::Source(_) | ElementData::Member(..));
    let data = if is_in_key { Some(element.data) } else { None };
    (element.map, element.vip, element.index, data)
}

fn target_chain(data: &ElementData) -> Option<String> {
    match data {
        ElementData::Verdict(verdict) => verdict.chain(),
        _ => None,
    }
}

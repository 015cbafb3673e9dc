//! A kernel of values that checks what the real one checks: names exist, keys are free, nothing that is referred to
//! goes. And one that refuses what a test tells it to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Result;
use backend::{
    Drift,
    dataplane::{DataplaneOptions, Vip},
    driver::{CommitError, Driver, Rejection},
};
use netlink::nft::{Chain, Expr, ListedRule, Rule, Set, SetFlags};
use proto::model::{IpFamily, PerFamily};

use super::Kernel;
use crate::{
    data_plane::NftDataPlane,
    desired::EndpointKeys,
    desired::PoolChain,
    element::{Element, ElementData, Map, REJECT, Verdict, VipShape},
    observed::Listing,
    plan::{Elements, Operation},
};

/// Clones share one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    tables: PerFamily<Option<FakeTable>>,
    poison: BTreeSet<Vip>,
    explains: Explains,
    /// All transactions that were asked for, the refused ones too.
    asked: usize,
    /// What led somewhere after each transaction.
    steps: Vec<BTreeSet<Vip>>,
    /// How many chains each transaction made.
    made: Vec<usize>,
}

/// Whether the fake names the element that it refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Explains {
    #[default]
    Yes,
    No,
}

/// What is in a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FakeTable {
    chains: BTreeMap<String, (Chain, Vec<Rule>)>,
    sets: BTreeMap<String, Set>,
    elements: BTreeMap<Key, ElementData>,
}

/// Map, VIP, slot, and data that are part of the key.
type Key = (Map, Vip, u32, Option<ElementData>);

/// What went wrong, and on whose behalf it was.
type Refusal = (Option<u32>, String);

/// A driver over the fake.
pub(crate) type FakeDriver = Driver<NftDataPlane<Fake>>;

// === impl Fake ===

impl Fake {
    /// A driver that knows nothing of the kernel yet.
    pub(crate) fn driver(&self, options: DataplaneOptions) -> FakeDriver {
        Driver::new(NftDataPlane::new(self.clone(), options))
    }

    /// What is in force, to compare: without pool chains that nobody needs, for it depends on the past which there are.
    pub(crate) fn tables(&self) -> PerFamily<Option<FakeTable>> {
        let mut tables = self.0.lock().unwrap().tables.clone();
        for table in [&mut tables.v4, &mut tables.v6].into_iter().flatten() {
            let needed = table.needed();
            table.chains.retain(|name, _| PoolChain::parse(name).is_none_or(|chain| needed.contains(&chain)));
        }
        tables
    }

    /// How many pool chains there are in both tables that nobody needs.
    pub(crate) fn idle(&self) -> usize {
        let state = self.0.lock().unwrap();
        let tables = state.tables.iter().filter_map(|(_, table)| table.as_ref());
        let idle = tables.map(|table| {
            let needed = table.needed();
            let pools = table.chains.keys().filter_map(|name| PoolChain::parse(name));
            pools.filter(|chain| !needed.contains(chain)).count()
        });
        idle.sum()
    }

    /// From now on elements of these VIPs are refused.
    pub(crate) fn refuse(&self, vips: impl IntoIterator<Item = Vip>, explains: Explains) {
        let mut state = self.0.lock().unwrap();
        state.poison = vips.into_iter().collect();
        state.explains = explains;
    }

    /// How many transactions were asked for since the last time.
    pub(crate) fn asked(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    /// The VIPs that led somewhere after each transaction since the last time.
    pub(crate) fn steps(&self) -> Vec<BTreeSet<Vip>> {
        std::mem::take(&mut self.0.lock().unwrap().steps)
    }

    /// How many chains each transaction made, since the last time.
    pub(crate) fn made(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.lock().unwrap().made)
    }

    /// Somebody else changes the elements of the IPv4 table.
    pub(crate) fn tamper(&self, change: impl FnOnce(&mut BTreeMap<Key, ElementData>)) {
        change(&mut self.0.lock().unwrap().tables.v4.as_mut().unwrap().elements);
    }
}

impl Kernel for Fake {
    async fn list(&mut self, _: EndpointKeys) -> Result<PerFamily<Listing>> {
        let state = self.0.lock().unwrap();
        Ok(PerFamily::from_fn(|family| {
            state.tables[family].as_ref().map(|table| table.list(family)).unwrap_or_default()
        }))
    }

    async fn tables(&mut self) -> Result<Vec<IpFamily>> {
        let state = self.0.lock().unwrap();
        Ok(state.tables.iter().filter(|(_, table)| table.is_some()).map(|(family, _)| family).collect())
    }

    async fn commit(&mut self, operations: Vec<(IpFamily, Operation)>) -> Result<Duration, CommitError> {
        let mut state = self.0.lock().unwrap();
        state.asked += 1;
        let mut tables = state.tables.clone();
        let mut rejection = Rejection::default();
        for (family, operation) in &operations {
            if let Err((owner, reason)) = state.execute(&mut tables[*family], *family, operation) {
                match owner.filter(|_| state.explains == Explains::Yes) {
                    Some(owner) => rejection.named.push((owner, reason)),
                    None => rejection.unnamed = Some(reason),
                }
            }
        }
        rejection.named.sort_unstable();
        rejection.named.dedup_by_key(|(owner, _)| *owner);
        if rejection != Rejection::default() {
            return Err(CommitError::Rejected(rejection));
        }
        let verdicts = tables.iter().filter_map(|(_, table)| table.as_ref()).flat_map(FakeTable::leads);
        state.steps.push(verdicts.collect());
        let made = operations.iter().filter(|(_, operation)| matches!(operation, Operation::AddChain(_)));
        state.made.push(made.count());
        state.tables = tables;
        Ok(Duration::ZERO)
    }

    async fn drifted(&mut self) -> Drift {
        std::future::pending().await
    }
}

impl FakeTable {
    /// The pool chains that elements lead to.
    fn needed(&self) -> BTreeSet<PoolChain> {
        let pools = self.elements.values().filter_map(|data| match data {
            ElementData::Verdict(Verdict::Pool(chain)) => Some(*chain),
            _ => None,
        });
        pools.flat_map(PoolChain::path).collect()
    }
}

impl State {
    fn execute(&self, place: &mut Option<FakeTable>, family: IpFamily, operation: &Operation) -> Result<(), Refusal> {
        match operation {
            Operation::AddTable => drop(place.get_or_insert_default()),
            Operation::DeleteTable => ensure(place.take().is_some(), "no such table")?,
            operation => {
                let table = place.as_mut().ok_or_else(|| (None, format!("no {family} table")))?;
                let poison = |element: &Element| self.poison.contains(&element.vip);
                table.execute(operation, poison)?;
            }
        }
        Ok(())
    }
}

impl FakeTable {
    /// What is in it, whichever place each endpoint has.
    pub(crate) fn shape(&self) -> String {
        let elements = self.elements.iter().map(|((map, vip, ..), data)| (map, vip, data));
        format!("{:?} {:?} {:?}", self.chains, self.sets, elements.collect::<BTreeSet<_>>())
    }

    fn leads(&self) -> impl Iterator<Item = Vip> {
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
        }
    }

    fn execute(&mut self, operation: &Operation, poison: impl Fn(&Element) -> bool) -> Result<(), Refusal> {
        match operation {
            Operation::AddTable | Operation::DeleteTable => {}
            Operation::AddChain(chain) => {
                ensure(!self.chains.contains_key(&chain.name), &format!("chain {} exists", chain.name))?;
                self.chains.insert(chain.name.clone(), (chain.clone(), Vec::new()));
            }
            Operation::AddSet(set) => drop(self.sets.insert(set.name.clone(), set.clone())),
            Operation::FlushChain(name) => self.chain(name)?.clear(),
            Operation::AddRule(name, rule) => {
                for named in names(rule) {
                    let known = match named {
                        Named::Set(set) => self.sets.contains_key(set),
                        Named::Changed(set) => self.sets.get(set).is_some_and(|set| set.flags.contains(SetFlags::EVAL)),
                        Named::Chain(chain) => self.chains.contains_key(chain),
                    };
                    ensure(known, &format!("rule in {name}: no {named:?}"))?;
                }
                self.chain(name)?.push(rule.clone());
            }
            Operation::DeleteChain(name) => {
                self.chain(name)?;
                self.chains.remove(name);
                let rules = self.chains.values().flat_map(|(_, rules)| rules);
                let by_rule = rules.flat_map(names).any(|named| named == Named::Chain(name));
                ensure(
                    !by_rule && self.elements.values().all(|data| leads_to(data).as_ref() != Some(name)),
                    "chain is busy",
                )?;
            }
            Operation::DeleteSet(name) => ensure(self.sets.remove(name).is_some(), "no such set")?,
            Operation::DeleteForeign(..) => ensure(false, "the fake lists nothing foreign")?,
            Operation::DeleteElements(_, elements) => each(elements, |element| {
                let found = self.elements.remove(&key(element));
                ensure(found == Some(element.data), &format!("{element:?}: found {found:?}"))
            })?,
            Operation::AddElements(map, elements) => each(elements, |element| {
                ensure(!poison(element), &format!("{} is poisonous", element.vip))?;
                ensure(self.sets.contains_key(map.name()), "no such set")?;
                ensure(
                    map.accepts(&element.data) && map.vip_shape() == VipShape::of(&element.vip),
                    "of another shape",
                )?;
                let target = leads_to(&element.data);
                ensure(target.is_none_or(|chain| self.chains.contains_key(&chain)), "no such chain")?;
                ensure(!self.overlaps(element), &format!("{element:?} overlaps"))?;
                let old = self.elements.insert(key(element), element.data);
                ensure(old.is_none(), &format!("{element:?} exists"))
            })?,
        }
        Ok(())
    }

    /// The real kernel does not see it when the new one encloses an old one.
    fn overlaps(&self, new: &Element) -> bool {
        let ElementData::Range(range) = new.data else { return false };
        self.elements.iter().any(|((map, vip, ..), old)| {
            (*map, *vip) == (new.map, new.vip)
                && matches!(old, ElementData::Range(old) if old.first <= range.last && range.first <= old.last)
        })
    }

    fn chain(&mut self, name: &str) -> Result<&mut Vec<Rule>, Refusal> {
        self.chains.get_mut(name).map(|(_, rules)| rules).ok_or_else(|| (None, format!("no chain {name}")))
    }
}

/// Stops at the first that is refused, as the kernel does within a message.
fn each(elements: &Elements, mut execute: impl FnMut(&Element) -> Result<(), Refusal>) -> Result<(), Refusal> {
    elements
        .list
        .iter()
        .enumerate()
        .try_for_each(|(index, element)| execute(element).map_err(|(_, reason)| (elements.owner(index), reason)))
}

fn ensure(condition: bool, reason: &str) -> Result<(), Refusal> {
    condition.then_some(()).ok_or_else(|| (None, reason.to_owned()))
}

fn element(map: Map, vip: Vip, index: u32, data: ElementData) -> Element {
    Element { vip, map, index, data }
}

fn key(element: &Element) -> Key {
    let data = Some(element.data).filter(|data| matches!(data, ElementData::Range(_) | ElementData::Member(..)));
    (element.map, element.vip, element.index, data)
}

fn leads_to(data: &ElementData) -> Option<String> {
    match data {
        ElementData::Verdict(Verdict::Reject) => Some(REJECT.into()),
        ElementData::Verdict(Verdict::Pool(chain)) => Some(chain.to_string()),
        _ => None,
    }
}

/// What a rule refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named<'a> {
    Set(&'a str),
    /// A set that the rule writes to.
    Changed(&'a str),
    Chain(&'a str),
}

fn names(rule: &Rule) -> impl Iterator<Item = Named<'_>> {
    rule.exprs.iter().filter_map(|expr| match expr {
        Expr::Lookup { set, .. } => Some(Named::Set(set)),
        Expr::Dynset { set, .. } => Some(Named::Changed(set)),
        Expr::Verdict(verdict) => verdict.chain().map(Named::Chain),
        _ => None,
    })
}

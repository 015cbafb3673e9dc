//! Describes operations as differences for an operator: objects that would be added, changed and removed. Pure.

use std::{collections::BTreeMap, net::SocketAddr};

use backend::{Difference, DifferenceKind, dataplane::Vip};
use proto::model::{IpFamily, ServicePortKey};

use crate::{
    desired::{table, vip_of_key},
    element::{Element, ElementData, Map, Verdict},
    operation::Operation,
};

/// The changes of the tables of a family.
#[derive(Debug, Default)]
struct TableChange {
    is_added: bool,
    is_deleted: bool,
    /// The tables of other layouts that are deleted.
    others: Vec<String>,
    chains: BTreeMap<String, ObjectChange>,
    maps: BTreeMap<String, ObjectChange>,
    /// By map and key.
    elements: BTreeMap<(Map, Box<[u8]>), BeforeAfter>,
    /// The number of deleted elements that Fairlead never writes.
    foreign: BTreeMap<Map, usize>,
}

/// The change of a chain or a map.
#[derive(Debug, Default)]
struct ObjectChange {
    is_added: bool,
    is_flushed: bool,
    is_deleted: bool,
    /// The number of rules that are added.
    rules: usize,
}

/// An element that is deleted, added, or replaced.
#[derive(Clone, Copy, Debug, Default)]
struct BeforeAfter {
    before: Option<Element>,
    after: Option<Element>,
}

/// The effect of the operations. `owner`: the service port that a VIP belongs to.
pub(crate) fn differences<'a>(
    operations: Vec<(IpFamily, Operation)>,
    owner: impl Fn(IpFamily, &Vip) -> Option<&'a ServicePortKey>,
) -> Vec<Difference> {
    let mut changes = BTreeMap::<IpFamily, TableChange>::new();
    for (family, operation) in operations {
        changes.entry(family).or_default().add(operation);
    }
    changes.into_iter().flat_map(|(family, change)| change.differences(family, |vip| owner(family, vip))).collect()
}

impl TableChange {
    fn add(&mut self, operation: Operation) {
        match operation {
            Operation::DeleteTable(name) if name == backend::NFT_TABLE => self.is_deleted = true,
            Operation::DeleteTable(name) => self.others.push(name),
            Operation::AddTable => self.is_added = true,
            Operation::AddChain(chain) => self.chain(chain.name).is_added = true,
            Operation::FlushChain(name) => self.chain(name).is_flushed = true,
            Operation::AddRule(name, _) => self.chain(name).rules += 1,
            Operation::DeleteChain(name) => self.chain(name).is_deleted = true,
            Operation::AddSet(set) => self.maps.entry(set.name).or_default().is_added = true,
            Operation::DeleteSet(name) => self.maps.entry(name).or_default().is_deleted = true,
            Operation::DeleteForeign(map, keys) => *self.foreign.entry(map).or_default() += keys.len(),
            Operation::DeleteElements(_, elements) => {
                for element in elements.list {
                    self.element(element).before = Some(element);
                }
            }
            Operation::AddElements(_, elements) => {
                for element in elements.list {
                    self.element(element).after = Some(element);
                }
            }
        }
    }

    fn chain(&mut self, name: String) -> &mut ObjectChange {
        self.chains.entry(name).or_default()
    }

    fn element(&mut self, element: Element) -> &mut BeforeAfter {
        self.elements.entry((element.map, (*element.key()).into())).or_default()
    }

    fn differences<'a>(self, family: IpFamily, owner: impl Fn(&Vip) -> Option<&'a ServicePortKey>) -> Vec<Difference> {
        let table = table(family);
        let subsystem = format!("table {} {}", table.family, table.name);
        let mut objects = Vec::new();
        for name in &self.others {
            objects.push((DifferenceKind::Remove, format!("the table {name} of another layout")));
        }
        objects.extend(self.table());
        // A table that is added contains all its maps and chains.
        if !self.is_added || self.maps.is_empty() {
            objects.extend(self.maps.iter().map(|(name, change)| map_difference(name, change)));
            objects.extend(self.chains.iter().map(|(name, change)| chain_difference(name, change)));
        }
        for (map, count) in &self.foreign {
            let object = format!("{}: {count} elements that Fairlead never writes", map.name());
            objects.push((DifferenceKind::Remove, object));
        }

        let mut differences = Vec::new();
        for (kind, object) in objects {
            differences.push(Difference::new(kind, subsystem.as_str(), object));
        }
        for change in self.elements.values() {
            if let Some((element, kind, object)) = element_difference(change) {
                let service_port = owner(&vip_of_key(&element.vip));
                differences.push(Difference::new(kind, subsystem.as_str(), object).of(service_port));
            }
        }
        differences
    }

    /// The change of the table itself.
    fn table(&self) -> Option<(DifferenceKind, String)> {
        match (self.is_deleted, self.is_added) {
            (true, true) => Some((DifferenceKind::Change, "the table, deleted and created again".to_owned())),
            (true, false) => Some((DifferenceKind::Remove, "the table".to_owned())),
            (false, true) if self.maps.is_empty() => {
                Some((DifferenceKind::Change, "the table, flag dormant cleared".to_owned()))
            }
            (false, true) => {
                let maps = self.maps.len();
                let chains = self.chains.len();
                Some((DifferenceKind::Add, format!("the table, with {maps} maps and sets and {chains} chains")))
            }
            (false, false) => None,
        }
    }
}

fn map_difference(name: &str, change: &ObjectChange) -> (DifferenceKind, String) {
    let kind = match (change.is_deleted, change.is_added) {
        (true, true) => DifferenceKind::Change,
        (true, false) => DifferenceKind::Remove,
        (false, _) => DifferenceKind::Add,
    };
    (kind, format!("map {name}"))
}

fn chain_difference(name: &str, change: &ObjectChange) -> (DifferenceKind, String) {
    let rules = change.rules;
    if change.is_deleted {
        (DifferenceKind::Remove, format!("chain {name}"))
    } else if change.is_added {
        (DifferenceKind::Add, format!("chain {name}, {rules} rules"))
    } else if change.is_flushed {
        (DifferenceKind::Change, format!("chain {name}, replaced by {rules} rules"))
    } else {
        (DifferenceKind::Add, format!("chain {name}, {rules} more rules"))
    }
}

/// The element that changes, and how; `None`: it is replaced by the same element.
fn element_difference(change: &BeforeAfter) -> Option<(Element, DifferenceKind, String)> {
    match (change.before, change.after) {
        (Some(before), Some(after)) if before == after => None,
        (Some(before), Some(after)) => {
            let object = format!("{}: {} -> {}", key(&after), value(&before), value(&after));
            Some((after, DifferenceKind::Change, object))
        }
        (Some(before), None) => Some((before, DifferenceKind::Remove, describe(&before))),
        (None, Some(after)) => Some((after, DifferenceKind::Add, describe(&after))),
        (None, None) => None,
    }
}

fn describe(element: &Element) -> String {
    match element.data {
        ElementData::None | ElementData::Source(_) => key(element),
        _ => format!("{}: {}", key(element), value(element)),
    }
}

/// The map, VIP and slot: `vips 10.96.0.1:80/tcp`, `endpoints 10.96.0.1:80/tcp[2]`.
fn key(Element { vip, map, index, data }: &Element) -> String {
    match data {
        ElementData::Endpoint(..) => format!("{} {vip}[{index}]", map.name()),
        ElementData::Source(group) => format!("{} {group} {vip}/{index}", map.name()),
        _ => format!("{} {vip}", map.name()),
    }
}

fn value(element: &Element) -> String {
    match element.data {
        ElementData::None | ElementData::Source(_) => String::new(),
        ElementData::Endpoint(address, port) | ElementData::Member(address, port) => {
            SocketAddr::new(address, port).to_string()
        }
        ElementData::Verdict(Verdict::Drop) => "drop".to_owned(),
        ElementData::Verdict(Verdict::Foreign) => "a verdict that Fairlead never writes".to_owned(),
        ElementData::Verdict(verdict) => verdict.chain().unwrap_or_default(),
        ElementData::PoolKey(vip) => vip.to_string(),
    }
}

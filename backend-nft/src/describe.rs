//! Describes operations as differences for an operator: what would be added, changed and removed. Pure.

use std::{collections::BTreeMap, net::SocketAddr};

use backend::{Difference, DifferenceKind, dataplane::Vip};
use proto::model::{IpFamily, ServicePortKey};

use crate::{
    desired::{table, vip_of_key},
    element::{Element, ElementData, Map, Verdict},
    operation::Operation,
};

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
#[derive(Debug, Default)]
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
                elements.list.into_iter().for_each(|element| self.element(element).before = Some(element));
            }
            Operation::AddElements(_, elements) => {
                elements.list.into_iter().for_each(|element| self.element(element).after = Some(element));
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
        let mut list = Vec::new();
        let mut push = |kind, object: String, service_port| {
            list.push(Difference::new(kind, subsystem.as_str(), object).of(service_port));
        };
        for name in self.others {
            push(DifferenceKind::Remove, format!("the table {name} of another layout"), None);
        }
        match (self.is_deleted, self.is_added) {
            (true, true) => push(DifferenceKind::Change, "the table, deleted and created again".to_owned(), None),
            (true, false) => push(DifferenceKind::Remove, "the table".to_owned(), None),
            (false, true) if self.maps.is_empty() => {
                push(DifferenceKind::Change, "the table, flag dormant cleared".to_owned(), None);
            }
            (false, true) => {
                let (maps, chains) = (self.maps.len(), self.chains.len());
                push(DifferenceKind::Add, format!("the table, with {maps} maps and sets and {chains} chains"), None);
            }
            (false, false) => {}
        }
        if !self.is_added || self.maps.is_empty() {
            for (name, ObjectChange { is_deleted, is_added, .. }) in self.maps {
                let kind = match (is_deleted, is_added) {
                    (true, true) => DifferenceKind::Change,
                    (true, false) => DifferenceKind::Remove,
                    (false, _) => DifferenceKind::Add,
                };
                push(kind, format!("map {name}"), None);
            }
            for (name, ObjectChange { is_added, is_flushed, is_deleted, rules }) in self.chains {
                match (is_deleted, is_added) {
                    (true, _) => push(DifferenceKind::Remove, format!("chain {name}"), None),
                    (false, true) => push(DifferenceKind::Add, format!("chain {name}, {rules} rules"), None),
                    (false, false) if is_flushed => {
                        push(DifferenceKind::Change, format!("chain {name}, replaced by {rules} rules"), None);
                    }
                    (false, false) => push(DifferenceKind::Add, format!("chain {name}, {rules} more rules"), None),
                }
            }
        }
        for (map, count) in self.foreign {
            push(DifferenceKind::Remove, format!("{}: {count} elements that Fairlead never writes", map.name()), None);
        }
        for BeforeAfter { before, after } in self.elements.into_values() {
            let Some(Element { vip, .. }) = before.or(after) else { continue };
            let service_port = owner(&vip_of_key(&vip));
            match (before, after) {
                (Some(before), Some(after)) if before == after => {}
                (Some(before), Some(after)) => {
                    let object = format!("{}: {} -> {}", key(&after), value(&before), value(&after));
                    push(DifferenceKind::Change, object, service_port);
                }
                (Some(before), None) => push(DifferenceKind::Remove, describe(&before), service_port),
                (None, Some(after)) => push(DifferenceKind::Add, describe(&after), service_port),
                (None, None) => {}
            }
        }
        list
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

//! Operations in words, for people: what would be added, changed and removed. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use backend::{Difference, DifferenceKind, dataplane::Vip};
use proto::model::{IpFamily, ServicePortKey};

use crate::{
    desired::table,
    element::{Data, Element, Map, REJECT, Verdict},
    plan::Operation,
};

/// What becomes of a chain.
#[derive(Debug, Default)]
struct Chain {
    added: bool,
    flushed: bool,
    deleted: bool,
    rules: usize,
}

/// What goes, what comes.
type Swap = (Option<Element>, Option<Element>);

/// What becomes of one family's table.
#[derive(Debug, Default)]
struct Change {
    added: bool,
    deleted: bool,
    chains: BTreeMap<String, Chain>,
    /// Each: whether it goes, whether it comes.
    maps: BTreeMap<String, (bool, bool)>,
    /// By map and key.
    elements: BTreeMap<(Map, Box<[u8]>), Swap>,
    foreign: BTreeMap<Map, usize>,
}

/// What operations do, all together. `owner` tells whose a VIP is.
pub(crate) fn differences<'a>(
    operations: Vec<(IpFamily, Operation)>,
    owner: impl Fn(IpFamily, &Vip) -> Option<&'a ServicePortKey>,
) -> Vec<Difference> {
    let mut changes = BTreeMap::<IpFamily, Change>::new();
    for (family, operation) in operations {
        changes.entry(family).or_default().take(operation);
    }
    let changes = changes.into_iter().flat_map(|(family, change)| {
        let owner = &owner;
        change.differences(family, |vip| owner(family, vip))
    });
    changes.collect()
}

impl Change {
    fn take(&mut self, operation: Operation) {
        match operation {
            Operation::DeleteTable => self.deleted = true,
            Operation::AddTable => self.added = true,
            Operation::AddChain(chain) => self.chain(chain.name.to_string()).added = true,
            Operation::FlushChain(name) => self.chain(name).flushed = true,
            Operation::AddRule(name, _) => self.chain(name).rules += 1,
            Operation::DeleteChain(name) => self.chain(name).deleted = true,
            Operation::AddSet(set) => self.maps.entry(set.name.to_string()).or_default().1 = true,
            Operation::DeleteSet(name) => self.maps.entry(name).or_default().0 = true,
            Operation::DeleteForeign(map, keys) => *self.foreign.entry(map).or_default() += keys.len(),
            Operation::DeleteElements(_, elements) => {
                elements.list.into_iter().for_each(|element| self.element(element).0 = Some(element));
            }
            Operation::AddElements(_, elements) => {
                elements.list.into_iter().for_each(|element| self.element(element).1 = Some(element));
            }
        }
    }

    fn chain(&mut self, name: String) -> &mut Chain {
        self.chains.entry(name).or_default()
    }

    fn element(&mut self, element: Element) -> &mut Swap {
        let end = element.key_end().unwrap_or_default();
        let key = [&element.key()[..], &end[..]].concat();
        self.elements.entry((element.map, key.into())).or_default()
    }

    fn differences<'a>(self, family: IpFamily, owner: impl Fn(&Vip) -> Option<&'a ServicePortKey>) -> Vec<Difference> {
        let table = table(family);
        let place = format!("table {} {}", table.family, table.name);
        let mut list = Vec::new();
        let mut say = |verb, what: String, service| {
            list.push(Difference::new(verb, place.as_str(), what).of(service));
        };
        match (self.deleted, self.added) {
            (true, true) => say(DifferenceKind::Change, "the table, built anew".to_owned(), None),
            (true, false) => say(DifferenceKind::Remove, "the table".to_owned(), None),
            (false, true) if self.maps.is_empty() => {
                say(DifferenceKind::Change, "the table, which sleeps".to_owned(), None)
            }
            (false, true) => {
                let (maps, chains) = (self.maps.len(), self.chains.len());
                say(DifferenceKind::Add, format!("the table, with {maps} maps and sets and {chains} chains"), None);
            }
            (false, false) => {}
        }
        if !self.added || self.maps.is_empty() {
            for (name, (gone, new)) in self.maps {
                say(verb(gone, new), format!("map {name}"), None);
            }
            for (name, Chain { added, flushed, deleted, rules }) in self.chains {
                match (deleted, added) {
                    (true, _) => say(DifferenceKind::Remove, format!("chain {name}"), None),
                    (false, true) => say(DifferenceKind::Add, format!("chain {name}, {rules} rules"), None),
                    (false, false) if flushed => {
                        say(DifferenceKind::Change, format!("chain {name}, its {rules} rules written anew"), None);
                    }
                    (false, false) => say(DifferenceKind::Add, format!("chain {name}, {rules} rules more"), None),
                }
            }
        }
        for (map, count) in self.foreign {
            say(DifferenceKind::Remove, format!("{}: {count} elements that Fairlead never writes", map.name()), None);
        }
        for (gone, new) in self.elements.into_values() {
            let Some(Element { vip, .. }) = gone.or(new) else { continue };
            let service = owner(&vip);
            match (gone, new) {
                (Some(gone), Some(new)) if gone == new => {}
                (Some(gone), Some(new)) => {
                    let what = format!("{}: {} -> {}", Key(&new), Value(&gone), Value(&new));
                    say(DifferenceKind::Change, what, service);
                }
                (Some(gone), None) => say(DifferenceKind::Remove, whole(&gone), service),
                (None, Some(new)) => say(DifferenceKind::Add, whole(&new), service),
                (None, None) => {}
            }
        }
        list
    }
}

fn verb(gone: bool, new: bool) -> DifferenceKind {
    match (gone, new) {
        (true, true) => DifferenceKind::Change,
        (true, false) => DifferenceKind::Remove,
        (false, _) => DifferenceKind::Add,
    }
}

fn whole(element: &Element) -> String {
    match element.data {
        Data::None => Key(element).to_string(),
        _ => format!("{}: {}", Key(element), Value(element)),
    }
}

/// Where an element is: `vips 10.96.0.1:80/tcp`, `endpoints 10.96.0.1:80/tcp[2]`.
struct Key<'a>(&'a Element);

/// What it holds.
struct Value<'a>(&'a Element);

impl Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Element { vip, map, index, data } = self.0;
        write!(f, "{} {vip}", map.name())?;
        match data {
            Data::Endpoint(..) => write!(f, "[{index}]"),
            _ => Ok(()),
        }
    }
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.data {
            Data::None => Ok(()),
            Data::Endpoint(address, port) | Data::Member(address, port) => {
                write!(f, "{}", std::net::SocketAddr::new(address, port))
            }
            Data::Verdict(Verdict::Drop) => f.write_str("drop"),
            Data::Verdict(Verdict::Reject) => f.write_str(REJECT),
            Data::Verdict(Verdict::Pool(chain)) => write!(f, "{chain}"),
            Data::Range(range) => write!(f, "{} to {}", range.first, range.last),
        }
    }
}

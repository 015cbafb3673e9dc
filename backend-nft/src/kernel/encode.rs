//! Encodes operations as messages, a few hundred elements in each, and traces rejected messages back to service ports.

use std::collections::BTreeMap;

use backend::driver::Rejection;
use netlink::{
    RejectedOperation,
    nft::{self, Fields, NftBatch, Set, Table},
};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::{PoolChain, table},
    element::{Element, ElementData, Map, REJECT, Verdict},
    plan::{Elements, Operation},
};

/// The most elements in a message. An IPv6 element with a verdict takes less than 110 bytes, and a message holds
/// 65,000.
const CHUNK: usize = 512;

/// A transaction in the kernel's form.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    pub(super) batch: NftBatch,
    /// Messages with elements, sorted: the index of the message, the elements that it is from, and where in them it
    /// starts.
    origins: Vec<(usize, &'a Elements, usize)>,
}

/// Tables and sets by which operations are addressed.
#[derive(Debug)]
pub(super) struct Names {
    tables: PerFamily<Table>,
    sets: PerFamily<Vec<Set>>,
}

impl Names {
    pub(super) fn new() -> Self {
        Self {
            tables: PerFamily::from_fn(table),
            sets: PerFamily::from_fn(|family| Map::ALL.map(|map| map.set(family)).into()),
        }
    }

    pub(super) fn table(&self, family: IpFamily) -> &Table {
        &self.tables[family]
    }

    pub(super) fn set(&self, family: IpFamily, map: Map) -> &Set {
        &self.sets[family][map as usize]
    }
}

// === impl Encoded ===

impl<'a> Encoded<'a> {
    pub(super) fn new(names: &Names, operations: &'a [(IpFamily, Operation)]) -> Self {
        let mut encoded = Self { batch: NftBatch::new(), origins: Vec::new() };
        let mut writer = Writer::default();
        for (family, operation) in operations {
            let table = names.table(*family);
            let batch = &mut encoded.batch;
            match operation {
                Operation::DeleteTable => batch.delete_table(table),
                Operation::AddTable => batch.add_table(table),
                Operation::AddChain(chain) => batch.add_chain(table, chain),
                Operation::AddSet(set) => batch.add_set(table, set),
                Operation::FlushChain(chain) => batch.flush_chain(table, chain),
                Operation::AddRule(chain, rule) => batch.add_rule(table, chain, rule),
                Operation::DeleteChain(chain) => batch.delete_chain(table, chain),
                Operation::DeleteSet(set) => batch.delete_set(table, set),
                Operation::DeleteForeign(map, keys) => {
                    let keys = keys.iter().map(|key| nft::Element::key(key));
                    batch.delete_elements(table, names.set(*family, *map), keys);
                }
                Operation::DeleteElements(map, elements) => {
                    encoded.chunks(elements, |batch, chunk| {
                        writer.fill(chunk);
                        batch.delete_elements(table, names.set(*family, *map), writer.keys());
                    });
                }
                Operation::AddElements(map, elements) => {
                    encoded.chunks(elements, |batch, chunk| {
                        writer.fill(chunk);
                        batch.add_elements(table, names.set(*family, *map), writer.elements());
                    });
                }
            }
        }
        encoded
    }

    fn chunks(&mut self, elements: &'a Elements, mut write: impl FnMut(&mut NftBatch, &[Element])) {
        for (number, chunk) in elements.list.chunks(CHUNK).enumerate() {
            self.origins.push((self.batch.len(), elements, number * CHUNK));
            write(&mut self.batch, chunk);
        }
    }

    /// Traces rejected operations to the service ports that they are for.
    pub(super) fn rejection(&self, rejected: &[RejectedOperation]) -> Rejection {
        let mut rejection = Rejection::default();
        for operation in rejected {
            match self.owner(operation) {
                Some(owner) => {
                    if rejection.named.iter().all(|(named, _)| *named != owner) {
                        rejection.named.push((owner, operation.to_string()));
                    }
                }
                None => rejection.unnamed = rejection.unnamed.or_else(|| Some(operation.to_string())),
            }
        }
        if rejection.named.is_empty() && rejection.unnamed.is_none() {
            rejection.unnamed = Some("the kernel rejected the transaction without a reason".into());
        }
        rejection
    }

    fn owner(&self, rejected: &RejectedOperation) -> Option<u32> {
        let (operation, element) = (rejected.operation?, rejected.element?);
        let at = self.origins.binary_search_by_key(&operation, |(message, ..)| *message).ok()?;
        let (_, elements, start) = self.origins[at];
        elements.owner(start + element)
    }
}

/// Holds the bytes of one message's elements while they are copied into it.
#[derive(Debug, Default)]
struct Writer {
    lines: Vec<Line>,
    /// Each name is made once.
    chains: BTreeMap<PoolChain, String>,
}

#[derive(Debug)]
struct Line {
    key: Fields,
    value: Value,
}

#[derive(Debug)]
enum Value {
    None,
    Endpoint(Fields),
    Verdict(Verdict),
    /// The last key.
    Range(Fields),
}

impl Writer {
    fn fill(&mut self, elements: &[Element]) {
        self.lines.clear();
        for element in elements {
            if let Some(chain) = element.pool() {
                self.chains.entry(chain).or_insert_with(|| chain.to_string());
            }
            let value = match element.data {
                ElementData::None | ElementData::Member(..) => Value::None,
                ElementData::Endpoint(..) => element.endpoint().map_or(Value::None, Value::Endpoint),
                ElementData::Verdict(verdict) => Value::Verdict(verdict),
                ElementData::Range(_) => element.key_end().map_or(Value::None, Value::Range),
            };
            self.lines.push(Line { key: element.key(), value });
        }
    }

    /// What is enough to delete them.
    fn keys(&self) -> impl Iterator<Item = nft::Element<'_>> {
        self.lines.iter().map(|Line { key, value }| match value {
            Value::Range(end) => nft::Element::range(key, end),
            _ => nft::Element::key(key),
        })
    }

    fn elements(&self) -> impl Iterator<Item = nft::Element<'_>> {
        self.lines.iter().map(|Line { key, value }| match value {
            Value::None => nft::Element::key(key),
            Value::Endpoint(value) => nft::Element::value(key, value),
            Value::Range(end) => nft::Element::range(key, end),
            Value::Verdict(verdict) => nft::Element::verdict(
                key,
                match verdict {
                    Verdict::Drop => nft::Verdict::Drop,
                    Verdict::Reject => nft::Verdict::goto(REJECT),
                    Verdict::Pool(chain) => nft::Verdict::goto(self.chains.get(chain).map_or("", |name| name)),
                },
            ),
        })
    }
}

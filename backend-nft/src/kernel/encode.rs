//! Encodes operations as messages, a few hundred elements in each, and traces rejected messages back to service ports.

use backend::driver::Rejection;
use netlink::{
    RejectedOperation,
    nft::{self, NftBatch, Set, Table},
};
use proto::model::{IpFamily, PerFamily};

use crate::{
    desired::table,
    element::{Element, ElementData},
    operation::{Elements, Operation, Owner},
};

/// The most elements in a message. An IPv6 element with a verdict takes less than 110 bytes, and a message holds
/// 65,000.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// A transaction in the kernel's form.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    pub(super) batch: NftBatch,
    /// The messages with elements, sorted.
    element_messages: Vec<ElementMessage<'a>>,
}

/// A message with a part of the elements of an operation.
#[derive(Clone, Copy, Debug)]
struct ElementMessage<'a> {
    /// The index of the message in the batch.
    index: usize,
    /// The elements of the operation.
    elements: &'a Elements,
    /// The index of the message's first element among them.
    start: usize,
}

// === impl Encoded ===

impl<'a> Encoded<'a> {
    pub(super) fn new(operations: &'a [(IpFamily, Operation)]) -> Self {
        let tables = PerFamily::from_fn(table);
        let mut encoded = Self { batch: NftBatch::new(), element_messages: Vec::new() };
        for (family, operation) in operations {
            let table = &tables[*family];
            let batch = &mut encoded.batch;
            match operation {
                Operation::DeleteTable(name) => batch.delete_table(&Table::new(*family, name)),
                Operation::AddTable => batch.add_table(table),
                Operation::AddChain(chain) => batch.add_chain(table, chain),
                Operation::AddSet(set) => batch.add_set(table, set),
                Operation::FlushChain(chain) => batch.flush_chain(table, chain),
                Operation::AddRule(chain, rule) => batch.add_rule(table, chain, rule),
                Operation::DeleteChain(chain) => batch.delete_chain(table, chain),
                Operation::DeleteSet(set) => batch.delete_set(table, set),
                Operation::DeleteForeign(map, keys) => {
                    let keys = keys.iter().map(|key| nft::Element::key(key));
                    batch.delete_elements(table, &map.set(*family), keys);
                }
                Operation::DeleteElements(map, elements) | Operation::AddElements(map, elements) => {
                    encoded.push_elements(operation, elements, table, &map.set(*family));
                }
            }
        }
        encoded
    }

    /// Adds or deletes elements, as the operation says, in messages of a limited size.
    fn push_elements(&mut self, operation: &Operation, elements: &'a Elements, table: &Table, set: &Set) {
        for (number, chunk) in elements.list.chunks(ELEMENTS_PER_MESSAGE).enumerate() {
            let start = number * ELEMENTS_PER_MESSAGE;
            self.element_messages.push(ElementMessage { index: self.batch.len(), elements, start });

            let fields: Vec<_> = chunk.iter().map(|element| (element.key(), element.value())).collect();
            let encoded = chunk.iter().zip(&fields).map(|(element, (key, value))| nft::Element {
                data: data(element, value.as_deref()),
                ..nft::Element::key(key)
            });
            match operation {
                Operation::AddElements(..) => self.batch.add_elements(table, set, encoded),
                _ => self.batch.delete_elements(table, set, encoded),
            }
        }
    }

    /// Traces rejected operations to the service ports that they are for.
    pub(super) fn rejection(&self, rejected: &[RejectedOperation]) -> Rejection {
        let mut rejection = Rejection::default();
        for operation in rejected {
            match self.owner(operation) {
                Some(owner) if rejection.named.iter().any(|(named, _)| *named == owner) => {}
                Some(owner) => rejection.named.push((owner, operation.to_string())),
                None => rejection.unnamed = rejection.unnamed.or_else(|| Some(operation.to_string())),
            }
        }
        if rejection.named.is_empty() && rejection.unnamed.is_none() {
            rejection.unnamed = Some("the kernel rejected the transaction without a reason".into());
        }
        rejection
    }

    /// The service port that a rejected element is for; `None`: several service ports, none, or no element was named.
    fn owner(&self, rejected: &RejectedOperation) -> Owner {
        let element = rejected.element?;
        let at = self.element_messages.binary_search_by_key(&rejected.operation?, |message| message.index).ok()?;
        let message = self.element_messages[at];
        message.elements.owner(message.start + element)
    }
}

/// The data of an element. `value`: its bytes, unless that is a verdict.
fn data<'a>(element: &Element, value: Option<&'a [u8]>) -> nft::ElementData<'a> {
    match element.data {
        ElementData::Verdict(verdict) => {
            nft::ElementData::Verdict(verdict.chain().map_or(nft::Verdict::Drop, nft::Verdict::goto))
        }
        _ => value.map_or(nft::ElementData::None, nft::ElementData::Value),
    }
}

//! A transaction: operations are encoded into one buffer, which is sent unchanged and decoded for printing.

mod operation;
#[cfg(test)]
mod tests;

use std::fmt;

use super::{
    abi::{self, chain, elements, msg, rule, set, table},
    chain::Chain,
    element::Element,
    expr::{Rule, put_exprs},
    set::Set,
    table::Table,
    userdata,
};
use crate::{
    attr::Put,
    message::{self, flags},
};

pub(crate) use operation::Operation;

/// Elements are appended to a list until it has this size. Its length field has 16 bits, and an element takes less than
/// 1 KiB.
const MAX_LIST_BYTES: usize = 64_000;

/// A transaction, which the kernel applies atomically.
///
/// The kernel executes the operations in order. Adding an object that exists is not an error, except for an element
/// with other data (`EEXIST`), which must be deleted first, in the same batch. Deleting a missing object is an error
/// (`ENOENT`).
///
/// `Display` gives one line of nft-like text per operation, and one per element.
#[derive(Clone)]
pub struct NftBatch {
    /// `BATCH_BEGIN` and the operations. The first and the last operation request an acknowledgement.
    buf: Vec<u8>,
    /// The offset of each operation.
    starts: Vec<usize>,
    /// The sets in the batch, with which their elements and the rules that use them are printed.
    sets: Vec<DescribedSet>,
}

/// The definition of a set, and the table of the set.
#[derive(Clone)]
struct DescribedSet {
    family: u8,
    table: String,
    set: Set,
}

impl NftBatch {
    /// An empty transaction.
    pub fn new() -> Self {
        let buf = frame_message(abi::BATCH_BEGIN);
        NftBatch { buf, starts: Vec::new(), sets: Vec::new() }
    }

    /// The number of operations. Elements that were added together share an operation, or need several.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    // === tables ===

    /// `add table`: creates the table, or clears its flag `dormant`.
    pub fn add_table(&mut self, table: &Table) {
        self.operation(msg::NEWTABLE, flags::CREATE, table, |buf| {
            buf.put_u32(table::FLAGS, table.flags);
            userdata::put_comment(buf, table::USERDATA, table.comment.as_deref());
        });
    }

    /// `delete table`, with its content.
    pub fn delete_table(&mut self, table: &Table) {
        self.operation(msg::DELTABLE, 0, table, |_| {});
    }

    // === chains ===

    /// `add chain`.
    pub fn add_chain(&mut self, table: &Table, added: &Chain) {
        self.operation(msg::NEWCHAIN, flags::CREATE, table, |buf| {
            buf.put_str(chain::NAME, &added.name);
            if let Some(base) = &added.base {
                buf.put_str(chain::TYPE, base.kind.name());
                buf.put_u32(chain::POLICY, base.policy.number());
                buf.nest(chain::HOOK, |buf| {
                    buf.put_u32(chain::HOOK_NUM, base.hook.number());
                    buf.put_u32(chain::HOOK_PRIORITY, base.priority as u32);
                });
            }
            userdata::put_comment(buf, chain::USERDATA, added.comment.as_deref());
        });
    }

    /// `delete chain`, with its rules; rejected (`EBUSY`) while a rule or an element refers to it.
    pub fn delete_chain(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELCHAIN, 0, table, |buf| buf.put_str(chain::NAME, name));
    }

    /// `flush chain`: deletes the rules of the chain.
    pub fn flush_chain(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELRULE, 0, table, |buf| buf.put_str(rule::CHAIN, name));
    }

    // === rules ===

    /// `add rule`: appends the rule to the chain. Its sets must exist, or be added earlier in the batch.
    pub fn add_rule(&mut self, table: &Table, chain: &str, added: &Rule) {
        self.operation(msg::NEWRULE, flags::CREATE | flags::APPEND, table, |buf| {
            buf.put_str(rule::CHAIN, chain);
            buf.nest(rule::EXPRESSIONS, |buf| put_exprs(buf, &added.exprs));
            userdata::put_comment(buf, rule::USERDATA, added.comment.as_deref());
        });
    }

    // === sets and maps ===

    /// `add set` or `add map`.
    pub fn add_set(&mut self, table: &Table, added: &Set) {
        self.describe_set(table, added);
        let id = self.starts.len() as u32 + 1;
        self.operation(msg::NEWSET, flags::CREATE, table, |buf| added.put(buf, id));
    }

    /// `delete set` or `delete map`, with its elements; rejected (`EBUSY`) while a rule uses it.
    pub fn delete_set(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELSET, 0, table, |buf| buf.put_str(set::NAME, name));
    }

    /// `add element` for all elements, in as few messages as possible.
    pub fn add_elements<'e>(&mut self, table: &Table, to: &Set, added: impl IntoIterator<Item = Element<'e>>) {
        self.elements(msg::NEWSETELEM, flags::CREATE, table, to, added);
    }

    /// `delete element` for all elements, in as few messages as possible, by their keys and ends of ranges. An interval
    /// set deletes **by the start of the range**: pass exactly the ranges that were added.
    pub fn delete_elements<'e>(&mut self, table: &Table, from: &Set, deleted: impl IntoIterator<Item = Element<'e>>) {
        self.elements(msg::DELSETELEM, 0, table, from, deleted.into_iter().map(Element::without_data));
    }

    /// `destroy element` for all elements, by their keys: deletes the elements that exist. Linux 6.3 and later.
    pub fn destroy_elements<'e>(
        &mut self,
        table: &Table,
        from: &Set,
        destroyed: impl IntoIterator<Item = Element<'e>>,
    ) {
        self.elements(msg::DESTROYSETELEM, 0, table, from, destroyed.into_iter().map(Element::without_data));
    }

    /// Remembers the definition of a set, with which its elements are printed, and the rules that use the set.
    fn describe_set(&mut self, table: &Table, set: &Set) {
        let family = table.family.number() as u8;
        if self.set(family, &table.name, &set.name).is_none() {
            self.sets.push(DescribedSet { family, table: table.name.clone(), set: set.clone() });
        }
    }

    fn elements<'e>(
        &mut self,
        kind: u16,
        flags: u16,
        table: &Table,
        set: &Set,
        list: impl IntoIterator<Item = Element<'e>>,
    ) {
        let mut list = list.into_iter().peekable();
        if list.peek().is_some() {
            self.describe_set(table, set);
        }
        while list.peek().is_some() {
            self.operation(kind, flags, table, |buf| {
                buf.put_str(elements::SET, &set.name);
                buf.nest(elements::LIST, |buf| {
                    let end = buf.len() + MAX_LIST_BYTES;
                    while let Some(element) = list.next_if(|_| buf.len() < end) {
                        element.put(buf);
                    }
                });
            });
        }
    }

    // === the buffer ===

    /// Appends an operation, whose sequence number is its index plus 1; `body` appends its attributes.
    fn operation(&mut self, kind: u16, more_flags: u16, table: &Table, body: impl FnOnce(&mut Vec<u8>)) {
        // Acknowledgements of all operations would overrun the receive buffer.
        if let [_, .., last] = self.starts[..] {
            message::clear_ack(&mut self.buf, last);
        }

        self.starts.push(self.buf.len());
        let kind = abi::SUBSYSTEM | kind;
        let flags = flags::REQUEST | flags::ACK | more_flags;
        let seq = self.starts.len() as u32;
        let subheader = [table.family.number() as u8, 0, 0, 0];
        message::put(&mut self.buf, kind, flags, seq, subheader, |buf| {
            buf.put_str(abi::TABLE, &table.name);
            body(buf);
        });
    }

    /// The definition of a set, if the batch has it.
    pub(crate) fn set(&self, family: u8, table: &str, name: &str) -> Option<&Set> {
        let is_wanted = |of: &&DescribedSet| of.family == family && of.table == table && of.set.name == name;
        self.sets.iter().find(is_wanted).map(|described| &described.set)
    }

    /// The two parts to send: the operations and the end.
    pub(crate) fn parts(&self) -> (&[u8], Vec<u8>) {
        (&self.buf, frame_message(abi::BATCH_END))
    }

    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The decoded operation at this index.
    pub(crate) fn get(&self, index: usize) -> Option<Operation<'_>> {
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).copied().unwrap_or(self.buf.len());
        Operation::new(self, &self.buf[start..end])
    }
}

impl Default for NftBatch {
    fn default() -> Self {
        NftBatch::new()
    }
}

impl fmt::Debug for NftBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NftBatch({} operations, {} bytes)", self.len(), self.bytes())
    }
}

impl fmt::Display for NftBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations().try_for_each(|operation| operation.fmt(f))
    }
}

/// `BATCH_BEGIN` or `BATCH_END`, with the subsystem in the field `res_id`.
fn frame_message(kind: u16) -> Vec<u8> {
    let mut buf = Vec::new();
    message::put(&mut buf, kind, flags::REQUEST, 0, [0, 0, 0, (abi::SUBSYSTEM >> 8) as u8], |_| {});
    buf
}

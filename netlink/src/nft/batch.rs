//! A transaction: operations appended to one buffer in the kernel's form, sent as they are, printed by reading them.

mod operation;
mod set_attrs;
#[cfg(test)]
mod tests;

use std::fmt;

use super::{
    abi::{self, chain, elements, msg, rule, set, table},
    chain::{Chain, Policy},
    element::{Element, Part},
    expr::{Rule, put_exprs},
    set::{DataType, Set, value_len},
    table::Table,
    userdata,
};
use crate::{
    attr::{Open, Put},
    message::{self, flags},
};

pub(crate) use operation::Operation;

/// The longest list of elements in one message, in bytes: its length field ends at 65,535.
const MAX_LIST: usize = 65_000;

/// A transaction: all of its operations come into force at once, or none.
///
/// Operations are executed in their order. Adding an object that exists is no error if it is equal; an element
/// with other data is (`EEXIST`): delete it first, in the same batch. Deleting what is not there is an error
/// (`ENOENT`).
///
/// `Display` gives one line of nft-like text per operation, and one per element.
#[derive(Clone)]
pub struct NftBatch {
    /// `BATCH_BEGIN` and the operations. The first and the last operation ask for an acknowledgement.
    buf: Vec<u8>,
    /// Where each operation starts.
    starts: Vec<usize>,
    /// What the elements of the sets that appear consist of, to print them.
    layouts: Vec<Layout>,
}

/// What the elements of a set consist of.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) family: u8,
    pub(crate) table: String,
    pub(crate) set: String,
    pub(crate) key: Vec<DataType>,
    pub(crate) data: Vec<DataType>,
}

impl Layout {
    /// How many registers a key and the data fill.
    pub(crate) fn words(&self) -> (u8, u8) {
        let words = |fields: &[DataType]| value_len(fields).div_ceil(4) as u8;
        (words(&self.key), words(&self.data))
    }
}

impl NftBatch {
    /// An empty transaction.
    pub fn new() -> Self {
        let buf = frame_message(abi::BATCH_BEGIN);
        NftBatch { buf, starts: Vec::new(), layouts: Vec::new() }
    }

    /// The number of operations: elements that were added together may take several, or share one.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.buf.len()
    }

    // === tables ===

    /// `add table`: creates it, or wakes it up when it is dormant.
    pub fn add_table(&mut self, table: &Table) {
        self.operation(msg::NEWTABLE, flags::CREATE, table, |buf| {
            buf.put_u32(table::FLAGS, table.flags);
            if let Some(comment) = &table.comment {
                userdata::put_comment(buf, table::USERDATA, userdata::COMMENT, comment);
            }
        });
    }

    /// `delete table`, with all that is in it.
    pub fn delete_table(&mut self, table: &Table) {
        self.operation(msg::DELTABLE, 0, table, |_| {});
    }

    /// `add table` and `delete table`: leaves no such table, whether there was one or not, on every kernel.
    pub fn destroy_table(&mut self, table: &Table) {
        self.operation(msg::NEWTABLE, flags::CREATE, table, |_| {});
        self.delete_table(table);
    }

    // === chains ===

    /// `add chain`.
    pub fn add_chain(&mut self, table: &Table, added: &Chain) {
        self.operation(msg::NEWCHAIN, flags::CREATE, table, |buf| {
            buf.put_str(chain::NAME, &added.name);
            if let Some(base) = &added.base {
                buf.put_str(chain::TYPE, base.kind.name());
                // NF_ACCEPT, NF_DROP
                buf.put_u32(chain::POLICY, u32::from(base.policy == Policy::Accept));
                let hook = buf.open(chain::HOOK);
                buf.put_u32(chain::HOOK_NUM, base.hook.number());
                buf.put_u32(chain::HOOK_PRIORITY, base.priority as u32);
                buf.close(hook);
            }
            if let Some(comment) = &added.comment {
                userdata::put_comment(buf, chain::USERDATA, userdata::COMMENT, comment);
            }
        });
    }

    /// `delete chain`, with its rules; refused (`EBUSY`) while a rule or an element leads to it.
    pub fn delete_chain(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELCHAIN, 0, table, |buf| buf.put_str(chain::NAME, name));
    }

    /// `flush chain`: deletes its rules.
    pub fn flush_chain(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELRULE, 0, table, |buf| buf.put_str(rule::CHAIN, name));
    }

    // === rules ===

    /// `add rule`: appends it to the chain. The sets it names exist, or are added earlier in the batch.
    pub fn add_rule(&mut self, table: &Table, chain: &str, added: &Rule) {
        self.operation(msg::NEWRULE, flags::CREATE | flags::APPEND, table, |buf| {
            buf.put_str(rule::CHAIN, chain);
            let exprs = buf.open(rule::EXPRESSIONS);
            put_exprs(buf, &added.exprs);
            buf.close(exprs);
            if let Some(comment) = &added.comment {
                userdata::put_comment(buf, rule::USERDATA, userdata::COMMENT, comment);
            }
        });
    }

    /// `delete rule`. `handle`: of [`super::ListedRule`].
    pub fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) {
        self.operation(msg::DELRULE, 0, table, |buf| {
            buf.put_str(rule::CHAIN, chain);
            buf.put_u64(rule::HANDLE, handle);
        });
    }

    // === sets and maps ===

    /// `add set` or `add map`.
    pub fn add_set(&mut self, table: &Table, added: &Set) {
        self.describe_set(table, added);
        let id = self.starts.len() as u32 + 1;
        self.operation(msg::NEWSET, flags::CREATE, table, |buf| set_attrs::put(buf, added, id));
    }

    /// `delete set` or `delete map`, with its elements; refused (`EBUSY`) while a rule uses it.
    pub fn delete_set(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELSET, 0, table, |buf| buf.put_str(set::NAME, name));
    }

    /// `flush set` or `flush map`: deletes its elements.
    pub fn flush_set(&mut self, table: &Table, name: &str) {
        self.operation(msg::DELSETELEM, 0, table, |buf| buf.put_str(elements::SET, name));
    }

    /// `add element`: as many as there are, in as few messages as possible.
    pub fn add_elements<'e>(&mut self, table: &Table, to: &Set, added: impl IntoIterator<Item = Element<'e>>) {
        self.elements(msg::NEWSETELEM, flags::CREATE, Part::All, table, to, added);
    }

    /// `delete element`: as many as there are, in as few messages as possible. Only keys (and the ends of ranges)
    /// count. An interval set deletes **by the start of the range**: give exactly the ranges that were added.
    pub fn delete_elements<'e>(&mut self, table: &Table, from: &Set, deleted: impl IntoIterator<Item = Element<'e>>) {
        self.elements(msg::DELSETELEM, 0, Part::Key, table, from, deleted);
    }

    /// Says what a set consists of that this batch's rules use, so that they can be printed in full. Sets whose
    /// elements or definition are in the batch are known without.
    pub fn describe_set(&mut self, table: &Table, set: &Set) {
        let family = table.family.number();
        if self.layout(family, &table.name, &set.name).is_none() {
            self.layouts.push(Layout {
                family,
                table: table.name.clone(),
                set: set.name.clone(),
                key: set.key.clone(),
                data: set.data.clone(),
            });
        }
    }

    fn elements<'e>(
        &mut self,
        kind: u16,
        flags: u16,
        part: Part,
        table: &Table,
        set: &Set,
        list: impl IntoIterator<Item = Element<'e>>,
    ) {
        let mut list = list.into_iter().peekable();
        if list.peek().is_none() {
            return;
        }
        self.describe_set(table, set);
        let mut open = self.open_list(kind, flags, table, set);
        for element in list {
            let at = self.buf.len();
            element.put(&mut self.buf, part);
            let first = at == open.first;
            if self.buf.len() - open.list_at > MAX_LIST && !first {
                let moved = self.buf.split_off(at);
                self.close_list(open);
                open = self.open_list(kind, flags, table, set);
                self.buf.extend_from_slice(&moved);
            }
        }
        self.close_list(open);
    }

    fn open_list(&mut self, kind: u16, flags: u16, table: &Table, set: &Set) -> OpenList {
        let message = self.start(kind, flags, table);
        self.buf.put_str(elements::SET, &set.name);
        let list_at = self.buf.len();
        let list = self.buf.open(elements::LIST);
        OpenList { message, list_at, list, first: self.buf.len() }
    }

    fn close_list(&mut self, open: OpenList) {
        self.buf.close(open.list);
        message::finish(&mut self.buf, open.message);
    }

    // === the buffer ===

    fn operation(&mut self, kind: u16, flags: u16, table: &Table, body: impl FnOnce(&mut Vec<u8>)) {
        let at = self.start(kind, flags, table);
        body(&mut self.buf);
        message::finish(&mut self.buf, at);
    }

    /// Starts the next operation; its sequence number is its index and 1.
    fn start(&mut self, kind: u16, flags: u16, table: &Table) -> usize {
        // Acknowledgements of more than the first and the last operation would overrun the receive queue.
        if let [_, .., last] = self.starts[..] {
            message::clear_ack(&mut self.buf, last);
        }
        let seq = self.starts.len() as u32 + 1;
        let all = flags | flags::REQUEST | flags::ACK;
        let at = message::start(&mut self.buf, abi::SUBSYSTEM | kind, all, seq);
        self.starts.push(at);
        self.buf.extend_from_slice(&[table.family.number(), 0, 0, 0]);
        self.buf.put_str(abi::TABLE, &table.name);
        at
    }

    pub(crate) fn layout(&self, family: u8, table: &str, set: &str) -> Option<&Layout> {
        self.layouts.iter().find(|known| known.family == family && known.table == table && known.set == set)
    }

    /// What is sent, in two parts: the operations and the end.
    pub(crate) fn parts(&self) -> (&[u8], Vec<u8>) {
        (&self.buf, frame_message(abi::BATCH_END))
    }

    /// The begin and the end of an empty transaction.
    pub(crate) fn frame() -> (Vec<u8>, Vec<u8>) {
        (frame_message(abi::BATCH_BEGIN), frame_message(abi::BATCH_END))
    }

    /// The operations, readable.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The operation at this index, readable.
    pub(crate) fn get(&self, index: usize) -> Option<Operation<'_>> {
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).copied().unwrap_or(self.buf.len());
        Operation::new(self, &self.buf[start..end])
    }
}

/// A message of elements that is being written.
struct OpenList {
    message: usize,
    list_at: usize,
    list: Open,
    /// Where the first element is.
    first: usize,
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

/// `BATCH_BEGIN` or `BATCH_END`: a message with the subsystem as its resource.
fn frame_message(kind: u16) -> Vec<u8> {
    let mut buf = Vec::new();
    let at = message::start(&mut buf, kind, flags::REQUEST, 0);
    buf.extend_from_slice(&[0, 0]);
    buf.extend_from_slice(&(abi::SUBSYSTEM >> 8).to_be_bytes());
    message::finish(&mut buf, at);
    buf
}

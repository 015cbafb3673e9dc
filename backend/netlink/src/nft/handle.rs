//! Commits transactions to nf_tables and dumps its objects.

mod dump;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    ops::Deref,
};

use super::{
    NftBatch,
    abi::{self, elements, msg},
    chain::Chain,
    commit::commit,
    decode::{self, Body},
    element::Element,
    expr::ListedRule,
    set::Set,
    table::{Table, TableFamily},
};
use crate::{Error, Result, Socket};
use dump::Request;

/// The number of elements requested in one message. Each reply takes about 1 KiB of the receive buffer.
const KEYS_PER_MESSAGE: usize = 1_000;

/// The nf_tables of the network namespace of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct NftHandle {
    socket: Socket,
}

impl NftHandle {
    /// Opens a socket.
    pub fn open() -> Result<Self> {
        Ok(NftHandle { socket: Socket::open()? })
    }

    /// The netlink port in the events of its changes ([`super::NftEvent::Changed`]).
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Executes the transaction atomically, and returns when it is applied.
    ///
    /// # Errors
    /// [`Error::Rejected`] lists the operations and elements that the kernel rejected; it applied nothing.
    /// [`Error::OutcomeUnknown`]: the caller must dump, or reconcile. [`Error::TooLarge`]: the size is limited without
    /// privileges.
    pub fn commit(&mut self, batch: &NftBatch) -> Result<()> {
        commit(&mut self.socket, batch)
    }

    /// The generation of the ruleset, which each transaction in the namespace increments.
    pub fn generation(&mut self) -> Result<u32> {
        dump::generation(&mut self.socket)
    }

    /// `list tables`: all of the family.
    pub fn tables(&mut self, family: impl Into<TableFamily>) -> Result<Vec<Table>> {
        let family = family.into();
        let request = Request::new(msg::GETTABLE, family.number() as u8, format!("list tables {family}"));
        let is_of_family = |body: &Body<'_>| u32::from(body.family) == family.number();
        request.collect(&mut self.socket, "a table", is_of_family, decode::table)
    }

    /// `list chains`, of the table only; empty if the table does not exist.
    pub fn chains(&mut self, table: &Table) -> Result<Vec<Chain>> {
        // The kernel cannot select a table's chains.
        let request = Request::of(table, msg::GETCHAIN, "list chains");
        let is_of_table = |body: &Body<'_>| body.table() == Some(&table.name);
        request.collect(&mut self.socket, "a chain", is_of_table, decode::chain)
    }

    /// `list sets` and `list maps`, of the table only; empty if the table does not exist.
    pub fn sets(&mut self, table: &Table) -> Result<Vec<Set>> {
        self.sets_where(table, |_| true)
    }

    /// The sets and maps of the table on which nft before 1.1.3 crashes, because a later version has declared them with
    /// a type such as `ipv4_addr` and written the type into their userdata; empty if the table does not exist.
    pub fn sets_of_newer_nft(&mut self, table: &Table) -> Result<Vec<Set>> {
        self.sets_where(table, decode::has_plain_type)
    }

    fn sets_where(&mut self, table: &Table, wanted: impl Fn(&Body<'_>) -> bool) -> Result<Vec<Set>> {
        let request = Request::of(table, msg::GETSET, "list sets");
        match request.collect(&mut self.socket, "a set", wanted, decode::set) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            sets => sets,
        }
    }

    /// The rules of all chains of the table, each chain's in order; empty if the table does not exist.
    pub fn rules(&mut self, table: &Table) -> Result<Vec<ListedRule>> {
        let request = Request::of(table, msg::GETRULE, "list rules");
        request.collect(&mut self.socket, "a rule", |_| true, decode::rule)
    }

    /// `list chain`: the rules of the chain, in order; empty if it does not exist.
    pub fn rules_of_chain(&mut self, table: &Table, chain: &str) -> Result<Vec<ListedRule>> {
        let mut request = Request::of(table, msg::GETRULE, "list chain");
        request.name(abi::rule::CHAIN, chain);
        request.collect(&mut self.socket, "a rule", |_| true, decode::rule)
    }

    /// `list set` or `list map`: calls `visit` with each element, borrowed from the receive buffer, and the value from
    /// `start`. Each time another process changes the ruleset during the dump, it calls `start` again and restarts.
    /// Elements that expire during the dump of a set with timeouts can hide others.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the table or set does not exist.
    pub fn elements<A>(
        &mut self,
        table: &Table,
        set: &str,
        mut start: impl FnMut() -> A,
        mut visit: impl FnMut(&mut A, Element<'_>),
    ) -> Result<A> {
        let mut request = Request::of(table, msg::GETSETELEM, "list elements");
        request.name(elements::SET, set);
        let interrupted = request.interrupted();

        // For some milliseconds after a transaction the kernel resizes hash sets. A dump in this time contains some
        // elements twice and lacks as many others, without any other indication.
        let hasher = RandomState::new();
        let start = || (start(), HashSet::<u64>::new());
        let (collected, _) = request.fold(&mut self.socket, start, |(collected, seen), body| {
            for element in body.nested(elements::LIST) {
                if !seen.insert(hasher.hash_one(element.payload)) {
                    return Err(interrupted.clone());
                }
                visit(collected, Element::read(&element).ok_or(Error::Malformed("an element"))?);
            }
            Ok(())
        })?;
        Ok(collected)
    }

    /// The number of elements of a set. `None` before Linux 6.16, which does not report it.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if the table or set does not exist.
    pub fn count(&mut self, table: &Table, set: &str) -> Result<Option<u32>> {
        let mut request = Request::of(table, msg::GETSET, "count elements");
        request.name(abi::set::NAME, set);
        request.query(&mut self.socket, |body| body.u32(abi::set::COUNT))
    }

    /// `get element`: calls `visit` with the element of each key, in order; an empty key finds the element of all other
    /// keys. The kernel looks each up by its key, whereas the time of a dump of a large hash set grows with the
    /// square of its size.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if an element does not exist. [`Error::Interrupted`] if another process changed the
    /// ruleset in between.
    pub fn get_elements<K: Deref<Target = [u8]>>(
        &mut self,
        table: &Table,
        set: &str,
        keys: impl IntoIterator<Item = K>,
        mut visit: impl FnMut(Element<'_>),
    ) -> Result<()> {
        let mut request = Request::of(table, msg::GETSETELEM, "get elements");
        request.name(elements::SET, set);

        let before = self.generation()?;
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            request.get(&mut self.socket, keys.by_ref().take(KEYS_PER_MESSAGE), |body| {
                for element in body.nested(elements::LIST) {
                    visit(Element::read(&element).ok_or(Error::Malformed("an element"))?);
                }
                Ok(())
            })?;
        }

        let has_changed = self.generation()? != before;
        if has_changed { Err(request.interrupted()) } else { Ok(()) }
    }
}

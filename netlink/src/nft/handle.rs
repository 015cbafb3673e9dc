//! Commits transactions to nf_tables and dumps its objects.

mod dump;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Deref};

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
use crate::{Error, Result, Socket, attr::Put};
use dump::{Got, Once, Request};

/// The number of elements requested in one message. Each reply takes about 1 KiB of the receive buffer.
const GET_AT_ONCE: usize = 1_000;

/// The nf_tables of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct NftHandle {
    socket: Socket,
}

impl NftHandle {
    /// Opens a socket of its own.
    pub fn open() -> Result<Self> {
        Ok(NftHandle { socket: Socket::open()? })
    }

    /// The netlink port in the events of its changes ([`super::NftEvent::Changed`]).
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Executes the transaction, as a whole or not at all, and returns when it is applied.
    ///
    /// # Errors
    /// [`Error::Rejected`] names each operation (and element) that the kernel did not take; nothing is changed then.
    /// [`Error::OutcomeUnknown`]: look, or resync. [`Error::TooLarge`]: without privileges there is a limit.
    pub fn commit(&mut self, batch: &NftBatch) -> Result<()> {
        commit(&mut self.socket, batch)
    }

    /// The generation of the ruleset, which each transaction in the namespace increments.
    pub fn generation(&mut self) -> Result<u32> {
        dump::generation(&mut self.socket)
    }

    /// `list tables`: all of the family.
    pub fn tables(&mut self, family: TableFamily) -> Result<Vec<Table>> {
        let request = Request::new(msg::GETTABLE, family.number(), format!("list tables {family}"));
        request.collect(&mut self.socket, |body| match TableFamily::from_number(body.family) {
            Some(found) if found == family => Ok(Some(decode::table(body).ok_or(Error::Malformed("a table"))?)),
            _ => Ok(None),
        })
    }

    /// `list chains`: those of the table; none when there is no such table.
    pub fn chains(&mut self, table: &Table) -> Result<Vec<Chain>> {
        // The kernel cannot select a table's chains.
        let request = Request::of(table, msg::GETCHAIN, "list chains");
        request.collect(&mut self.socket, |body| match body.table() {
            Some(name) if name == table.name => Ok(Some(decode::chain(body).ok_or(Error::Malformed("a chain"))?)),
            _ => Ok(None),
        })
    }

    /// `list sets` and `list maps`: those of the table; none when there is no such table.
    pub fn sets(&mut self, table: &Table) -> Result<Vec<Set>> {
        let request = Request::of(table, msg::GETSET, "list sets");
        let sets =
            request.collect(&mut self.socket, |body| Ok(Some(decode::set(body).ok_or(Error::Malformed("a set"))?)));
        match sets {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            other => other,
        }
    }

    /// The rules of all chains of the table, each chain's in their order; none when there is no such table.
    pub fn rules(&mut self, table: &Table) -> Result<Vec<ListedRule>> {
        let request = Request::of(table, msg::GETRULE, "list rules");
        request.collect(&mut self.socket, |body| Ok(Some(decode::rule(body).ok_or(Error::Malformed("a rule"))?)))
    }

    /// `list set` or `list map`: calls `visit` with each element, borrowed from the receive buffer. What it gathers is
    /// started by `start`, and restarted each time another process changed the ruleset during the dump. Elements that
    /// expire during the dump of a set with timeouts can hide others.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is no such table or set.
    pub fn elements<A>(
        &mut self,
        table: &Table,
        set: &str,
        mut start: impl FnMut() -> A,
        mut visit: impl FnMut(&mut A, Element<'_>),
    ) -> Result<A> {
        let mut request = Request::of(table, msg::GETSETELEM, "list elements");
        request.name(elements::SET, set);
        let start = || (start(), Once::default());
        let (gathered, _) = request.fold(&mut self.socket, start, |(gathered, once), body| {
            for element in body.get(elements::LIST).into_iter().flat_map(|list| list.nested()) {
                if once.visit(element.payload).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                visit(gathered, Element::read(&element).ok_or(Error::Malformed("an element"))?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(gathered)
    }

    /// How many elements a set has. `None` where the kernel does not tell: before Linux 6.16.
    ///
    /// # Errors
    /// [`Error::is_not_found`] when there is no such table or set.
    pub fn count(&mut self, table: &Table, set: &str) -> Result<Option<u32>> {
        let mut request = Request::of(table, msg::GETSET, "count elements");
        request.name(abi::set::NAME, set);
        request.query(&mut self.socket, |body| body.u32(abi::set::COUNT))
    }

    /// `get element`: calls `visit` with the element of each key, in their order. The kernel finds each by its key,
    /// where a dump of a large hash set takes it a time that grows with the square of its size.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if one does not exist. [`Error::Interrupted`] if another process changed the ruleset
    /// meanwhile.
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
        let mut keys = keys.into_iter();
        loop {
            let end = request.get(&mut self.socket, keys.by_ref().take(GET_AT_ONCE), |body| {
                for element in body.get(elements::LIST).into_iter().flat_map(|list| list.nested()) {
                    visit(Element::read(&element).ok_or(Error::Malformed("an element"))?);
                }
                Ok(())
            })?;
            match end {
                Got::Some => {}
                Got::Nothing if self.generation()? == before => return Ok(()),
                Got::Nothing | Got::Disturbed => return Err(request.interrupted()),
            }
        }
    }
}

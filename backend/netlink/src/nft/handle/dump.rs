//! Requests outside of transactions: queries, and dumps, which restart if another process changes the ruleset.

use std::ops::Deref;

use nix::libc;
use tracing::debug;

use crate::{
    Errno, Error, Result, Socket,
    attr::Put,
    exchange::{SEQ, exchange, interrupted},
    message::{self, flags},
    nft::{
        NftBatch, Table,
        abi::{self, msg},
        decode::Body,
        element::Element,
    },
};

/// The number of attempts at a dump before [`Error::Interrupted`]. If the ruleset changes all the time, the caller must
/// back off.
const ATTEMPTS: u32 = 10;

/// A request outside of a transaction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    /// The request as `nft` would write it.
    label: String,
}

impl Request {
    pub(super) fn new(kind: u16, family: u8, label: String) -> Self {
        let mut bytes = Vec::with_capacity(64);
        message::start(&mut bytes, abi::SUBSYSTEM | kind, flags::REQUEST, SEQ);
        bytes.extend_from_slice(&[family, 0, 0, 0]);
        Request { bytes, label }
    }

    /// A request for objects of the table.
    pub(super) fn of(table: &Table, kind: u16, verb: &str) -> Self {
        let label = format!("{verb} {} {}", table.family, table.name);
        let mut request = Request::new(kind, table.family.number() as u8, label);
        request.bytes.put_str(abi::TABLE, &table.name);
        request
    }

    /// Restricts the request to the object of this name.
    pub(super) fn name(&mut self, attribute: u16, name: &str) {
        self.bytes.put_str(attribute, name);
        self.label = format!("{} {name}", self.label);
    }

    /// Requests one object.
    pub(super) fn query<T>(mut self, socket: &mut Socket, read: impl Fn(&Body<'_>) -> T) -> Result<T> {
        let mut found = None;
        self.send(socket, flags::ACK, |body| {
            found = Some(read(body));
            Ok(())
        })?;
        found.ok_or(Error::Malformed("no reply to a query"))
    }

    /// Requests the elements of these keys. The kernel replies to each key.
    pub(super) fn get<K: Deref<Target = [u8]>>(
        &mut self,
        socket: &mut Socket,
        keys: impl Iterator<Item = K>,
        visit: impl FnMut(&Body<'_>) -> Result<()>,
    ) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.nest(abi::elements::LIST, |buf| keys.for_each(|key| Element::key(&key).put(buf)));
        let result = self.send(socket, flags::ACK, visit);
        self.bytes.truncate(start);

        match result {
            Err(error) if is_retryable(&error) => Err(self.interrupted()),
            result => result,
        }
    }

    /// Dumps the `wanted` objects. `object` names them in the error for a malformed reply.
    pub(super) fn collect<T>(
        self,
        socket: &mut Socket,
        object: &'static str,
        wanted: impl Fn(&Body<'_>) -> bool,
        read: fn(&Body<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.fold(socket, Vec::new, |list, body| {
            if wanted(body) {
                list.push(read(body).ok_or(Error::Malformed(object))?);
            }
            Ok(())
        })
    }

    /// Dumps all objects. Calls `start` for each attempt and `visit` for each object; a retryable error of `visit` ends
    /// the attempt.
    pub(super) fn fold<A>(
        mut self,
        socket: &mut Socket,
        mut start: impl FnMut() -> A,
        mut visit: impl FnMut(&mut A, &Body<'_>) -> Result<()>,
    ) -> Result<A> {
        for attempt in 1..=ATTEMPTS {
            let before = generation(socket)?;
            wait_for_transactions(socket)?;
            let mut collected = start();
            let result = self.send(socket, flags::DUMP, |body| visit(&mut collected, body));
            wait_for_transactions(socket)?;

            match result {
                Err(error) if !is_retryable(&error) => return Err(error),
                Ok(()) if generation(socket)? == before => return Ok(collected),
                _ => debug!(request = %self.label, attempt, "the ruleset changed during a dump"),
            }
        }
        Err(Error::Interrupted { request: self.label, attempts: ATTEMPTS })
    }

    fn send(
        &mut self,
        socket: &mut Socket,
        more_flags: u16,
        mut visit: impl FnMut(&Body<'_>) -> Result<()>,
    ) -> Result<()> {
        let flags = flags::REQUEST | more_flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        message::finish(&mut self.bytes, 0);

        exchange(socket, &self.bytes, &self.label, |message| {
            visit(&Body::new(message.payload).ok_or(Error::Malformed("a short message"))?)
        })
    }

    /// The error of a request during which another process changed the ruleset.
    pub(super) fn interrupted(&self) -> Error {
        interrupted(&self.label)
    }
}

/// Whether the ruleset changed, or the kernel dropped replies.
fn is_retryable(error: &Error) -> bool {
    error.is_interrupted() || error.errno() == Some(Errno(libc::ENOBUFS))
}

/// The ruleset's generation.
pub(super) fn generation(socket: &mut Socket) -> Result<u32> {
    let request = Request::new(msg::GETGEN, 0, "get the generation".into());
    request.query(socket, |body| body.u32(abi::generation::ID))?.ok_or(Error::Malformed("no generation"))
}

/// Waits for transactions in progress with an empty transaction, which takes the same lock and changes nothing.
///
/// The kernel resumes a dump at a number of elements. A transaction adds its elements before it increments the
/// generation, and removes elements after that. A dump that overlaps with either misses elements, and the kernel does
/// not set `NLM_F_DUMP_INTR` in dumps of elements. So a dump is consistent if the generation is the same before and
/// after it, both times without a transaction in progress. A transaction of another process on the same set that fails
/// during the dump is not noticed.
fn wait_for_transactions(socket: &mut Socket) -> Result<()> {
    let empty = NftBatch::new();
    let (begin, end) = empty.parts();
    socket.send(&[begin, &end])
}

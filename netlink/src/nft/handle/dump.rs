//! A request and its replies: a query, or a dump, which is restarted if another process changed the ruleset.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    ops::{ControlFlow, Deref},
};

use tracing::debug;

use super::{Body, NftBatch, Put, Table};
use crate::{
    Errno, Error, Result, Socket,
    message::{self, Message, flags, is_retry, messages},
    nft::{
        abi::{self, msg},
        element::{Element, Part},
    },
    socket::{Received, Wait},
};

/// How often a dump is tried before [`Error::Interrupted`]: a namespace that changes all the time needs a backoff.
const ATTEMPTS: u32 = 10;
/// Stale answers are drained before each request, so that one number does for all.
const SEQ: u32 = 1;

/// Waits until no transaction is under way: an empty one needs the same lock, and changes nothing.
///
/// A dump finds its place again by counting elements, and a transaction adds its elements before, and removes them
/// after, it makes its generation. A dump that overlaps with either misses elements, and `NLM_F_DUMP_INTR` is not set
/// in dumps of elements. So a dump is whole when all transactions up to a generation were waited for before it, and
/// after it, when again all were waited for, there is no other. (Not covered: a transaction of another process on the
/// same set that fails meanwhile.)
fn settle(socket: &mut Socket) -> Result<()> {
    let (begin, end) = NftBatch::frame();
    socket.send(&[&begin, &end])
}

/// A request that is not part of a transaction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    /// In nft's words.
    label: String,
}

/// How a dump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Disturbed,
}

/// What has come of asking for elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Some,
    /// None were asked for.
    Nothing,
    /// Somebody's change came between.
    Disturbed,
}

/// Notices when an element is dumped twice.
///
/// For some milliseconds after a transaction the kernel resizes hash sets. A dump that goes on meanwhile sees some
/// elements twice and misses as many; nothing else tells.
#[derive(Debug, Default)]
pub(super) struct Once {
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl Once {
    /// Breaks when these bytes were there before.
    pub(super) fn visit(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if self.seen.insert(self.hasher.hash_one(bytes)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// The ruleset's generation.
pub(super) fn generation(socket: &mut Socket) -> Result<u32> {
    let request = Request::new(msg::GETGEN, 0, "the generation".into());
    request.query(socket, |body| body.u32(abi::generation::ID))?.ok_or(Error::Malformed("no generation"))
}

impl Request {
    pub(super) fn new(kind: u16, family: u8, label: String) -> Self {
        let mut bytes = Vec::with_capacity(64);
        message::start(&mut bytes, abi::SUBSYSTEM | kind, flags::REQUEST, SEQ);
        bytes.extend_from_slice(&[family, 0, 0, 0]);
        Request { bytes, label }
    }

    /// About what is in the table.
    pub(super) fn of(table: &Table, kind: u16, verb: &str) -> Self {
        let label = format!("{verb} {} {}", table.family, table.name);
        let mut request = Request::new(kind, table.family.number(), label);
        request.bytes.put_str(abi::TABLE, &table.name);
        request
    }

    /// About the object of this name.
    pub(super) fn name(&mut self, attribute: u16, name: &str) {
        self.bytes.put_str(attribute, name);
        self.label = format!("{} {name}", self.label);
    }

    /// Asks for one object, with one answer.
    pub(super) fn query<T>(mut self, socket: &mut Socket, read: impl FnOnce(&Body<'_>) -> T) -> Result<T> {
        self.send(socket, 0)?;
        loop {
            match socket.receive(Wait::No)? {
                Received::Overrun => {}
                Received::Nothing => return Err(Error::Malformed("no answer to a query")),
                Received::Datagram(datagram) => {
                    let Some(message) = messages(datagram).find(|message| message.seq == SEQ) else {
                        continue;
                    };
                    if message.kind == message::ERROR {
                        return Err(self.refused(&message));
                    }
                    let body = Body::new(message.payload).ok_or(Error::Malformed("a short message"))?;
                    return Ok(read(&body));
                }
            }
        }
    }

    /// Asks for these elements, each an answer of its own.
    pub(super) fn get<K: Deref<Target = [u8]>>(
        &mut self,
        socket: &mut Socket,
        keys: impl Iterator<Item = K>,
        mut visit: impl FnMut(&Body<'_>) -> Result<()>,
    ) -> Result<Got> {
        let start = self.bytes.len();
        let list = self.bytes.open(abi::elements::LIST);
        let asked = keys.map(|key| Element::key(&key).put(&mut self.bytes, Part::Key)).count();
        self.bytes.close(list);
        if asked > 0 {
            self.send(socket, flags::ACK)?;
        }
        self.bytes.truncate(start);
        if asked == 0 {
            return Ok(Got::Nothing);
        }
        let end = self.read(socket, |body| visit(body).map(ControlFlow::Continue))?;
        Ok(if end == End::Done { Got::Some } else { Got::Disturbed })
    }

    /// Dumps the objects for which `read` gives something.
    pub(super) fn collect<T>(
        self,
        socket: &mut Socket,
        mut read: impl FnMut(&Body<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        self.fold(socket, Vec::new, |list, body| {
            list.extend(read(body)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Dumps; `start` is called for each attempt, `visit` for each object. It breaks off what was disturbed.
    pub(super) fn fold<A>(
        mut self,
        socket: &mut Socket,
        mut start: impl FnMut() -> A,
        mut visit: impl FnMut(&mut A, &Body<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<A> {
        for attempt in 1..=ATTEMPTS {
            let before = generation(socket)?;
            settle(socket)?;
            let mut gathered = start();
            self.send(socket, flags::DUMP)?;
            let end = self.read(socket, |body| visit(&mut gathered, body))?;
            settle(socket)?;
            if end == End::Done && generation(socket)? == before {
                return Ok(gathered);
            }
            debug!(request = %self.label, attempt, "the ruleset changed during a dump");
        }
        Err(Error::Interrupted { request: self.label, attempts: ATTEMPTS })
    }

    fn send(&mut self, socket: &mut Socket, more_flags: u16) -> Result<()> {
        socket.drain()?;
        let all = flags::REQUEST | more_flags;
        self.bytes[6..8].copy_from_slice(&all.to_ne_bytes());
        message::finish(&mut self.bytes, 0);
        socket.send(&[&self.bytes])
    }

    /// The kernel queues the first datagram when it is asked, and the next whenever one is read.
    fn read(&self, socket: &mut Socket, mut visit: impl FnMut(&Body<'_>) -> Result<ControlFlow<()>>) -> Result<End> {
        let mut disturbed = false;
        loop {
            let datagram = match socket.receive(Wait::No)? {
                Received::Datagram(datagram) => datagram,
                Received::Overrun => {
                    disturbed = true;
                    continue;
                }
                Received::Nothing if disturbed => return Ok(End::Disturbed),
                Received::Nothing => return Err(Error::Malformed("a dump without end")),
            };
            for message in messages(datagram).filter(|message| message.seq == SEQ) {
                disturbed |= message.flags & flags::DUMP_INTR != 0;
                match message.kind {
                    message::DONE | message::ERROR => {
                        let errno = message.answer().map_or(0, |answer| answer.errno);
                        return match errno {
                            0 if !disturbed => Ok(End::Done),
                            0 => Ok(End::Disturbed),
                            errno if is_retry(errno) => Ok(End::Disturbed),
                            _ => Err(self.refused(&message)),
                        };
                    }
                    _ if disturbed => {}
                    _ => {
                        let body = Body::new(message.payload).ok_or(Error::Malformed("a short message"))?;
                        disturbed = visit(&body)?.is_break();
                    }
                }
            }
        }
    }

    /// Somebody's change came between.
    pub(super) fn interrupted(self) -> Error {
        Error::Interrupted { request: self.label, attempts: 1 }
    }

    fn refused(&self, message: &Message<'_>) -> Error {
        match message.answer() {
            None => Error::Malformed("an error without errno"),
            Some(answer) => {
                Error::Request { request: self.label.clone(), errno: Errno(answer.errno), message: answer.message }
            }
        }
    }
}

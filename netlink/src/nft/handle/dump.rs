//! One request and its answers: a query, or a dump that is started again when somebody's change disturbed it.

use tracing::debug;

use super::{Batch, Body, Put, Table};
use crate::{
    Errno, Error, Result, Socket,
    message::{self, Message, flags, is_retry, messages},
    nft::abi::{self, msg},
    socket::{Received, Wait},
};

/// How often a dump is tried before [`Error::Interrupted`]: a namespace that changes all the time needs a backoff.
const ATTEMPTS: u32 = 10;
/// Stale answers are drained before each request, so that one number does for all.
const SEQ: u32 = 1;

/// The generation when no transaction is under way.
///
/// A dump finds its place again by counting elements, and a transaction moves them about before it makes a generation. So
/// what one generation covers in all datagrams may still miss elements, until the transaction that was under way is
/// waited for: an empty one takes the same lock, and changes nothing.
fn settled_generation(socket: &mut Socket) -> Result<u32> {
    let (begin, end) = Batch::frame();
    socket.send(&[&begin, &end])?;
    generation(socket)
}

/// A request that is not part of a transaction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    /// In nft's words.
    label: String,
}

/// How a dump ended.
enum End {
    /// With the generation of what was dumped: all of it has the same.
    Done(Option<u16>),
    Disturbed,
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

    /// Dumps the objects for which `read` gives something.
    pub(super) fn collect<T>(
        self,
        socket: &mut Socket,
        mut read: impl FnMut(&Body<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        self.fold(socket, Vec::new, |list, body| {
            list.extend(read(body)?);
            Ok(())
        })
    }

    /// Dumps; `start` is called for each attempt, `visit` for each object.
    pub(super) fn fold<A>(
        mut self,
        socket: &mut Socket,
        mut start: impl FnMut() -> A,
        mut visit: impl FnMut(&mut A, &Body<'_>) -> Result<()>,
    ) -> Result<A> {
        for attempt in 1..=ATTEMPTS {
            let mut gathered = start();
            self.send(socket, flags::DUMP)?;
            match self.read(socket, |body| visit(&mut gathered, body))? {
                End::Done(None) => return Ok(gathered),
                End::Done(Some(of_dump)) if of_dump == settled_generation(socket)? as u16 => {
                    return Ok(gathered);
                }
                _ => debug!(request = %self.label, attempt, "the ruleset changed during a dump"),
            }
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
    fn read(&self, socket: &mut Socket, mut visit: impl FnMut(&Body<'_>) -> Result<()>) -> Result<End> {
        let mut disturbed = false;
        let mut generation = None;
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
                            0 if !disturbed => Ok(End::Done(generation)),
                            0 => Ok(End::Disturbed),
                            errno if is_retry(errno) => Ok(End::Disturbed),
                            _ => Err(self.refused(&message)),
                        };
                    }
                    _ if disturbed => {}
                    _ => {
                        let body = Body::new(message.payload).ok_or(Error::Malformed("a short message"))?;
                        // NLM_F_DUMP_INTR alone will not do: the kernel does not set it in dumps of elements.
                        if *generation.get_or_insert(body.generation) == body.generation {
                            visit(&body)?;
                        } else {
                            disturbed = true;
                        }
                    }
                }
            }
        }
    }

    fn refused(&self, message: &Message<'_>) -> Error {
        match message.answer() {
            None => Error::Malformed("an error without errno"),
            Some(answer) => Error::Request {
                request: self.label.clone(),
                errno: Errno(answer.errno),
                message: answer.message,
            },
        }
    }
}

//! The kernel's table of flows: dumped and deleted from, over one socket.

use super::{
    UdpFlow,
    abi::{self, filter, proto, tuple},
    flow::{self, Tracked},
};
use crate::{
    AddressFamily, Errno, Error, Result, Socket,
    attr::Put,
    message::{self, Message, flags, messages},
    socket::{Received, Wait},
};
use nix::libc;

/// The number of deletions per send. The kernel may reply to each, and a receive buffer of the default size
/// holds 256 answers.
const BATCH: usize = 256;
/// Stale answers are drained before each request, so that one number does for all.
pub(super) const SEQ: u32 = 1;

/// The flows of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct ConntrackHandle {
    pub(super) socket: Socket,
    pub(super) filter: Filter,
    /// The request; kept to reuse its allocation.
    pub(super) buf: Vec<u8>,
}

/// Where a dump is filtered by protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// `CTA_FILTER`, from Linux 5.8: a third of the time. (Linux compares IPv6 addresses in it the wrong way round, so
    /// it is asked for the protocol only.)
    Kernel,
    Ours,
}

impl ConntrackHandle {
    /// Opens a socket of its own.
    pub fn open() -> Result<Self> {
        Ok(ConntrackHandle { socket: Socket::open()?, filter: Filter::Kernel, buf: Vec::new() })
    }

    /// Calls `visit` with each UDP flow of the family, while the kernel is still dumping: nothing is gathered. A flow
    /// may be visited twice when the table changes meanwhile, and one that is made meanwhile may be left out. `visit`
    /// may delete flows through another handle.
    ///
    /// # Errors
    /// When the kernel refuses, or `visit` does: the dump ends then.
    pub fn udp_flows(&mut self, family: AddressFamily, mut visit: impl FnMut(UdpFlow) -> Result<()>) -> Result<()> {
        match self.dump(family, &mut visit) {
            // Refused before the first flow, if it is for the filter.
            Err(error) if self.filter == Filter::Kernel && is_filter_refused(&error) => {
                self.filter = Filter::Ours;
                self.dump(family, &mut visit)
            }
            result => result,
        }
    }

    /// Deletes these flows; what is gone already is no error. Returns how many there were.
    ///
    /// # Errors
    /// The first refusal. The flows before it and after it in its batch are deleted, those of later batches are not.
    pub fn delete(&mut self, list: &[UdpFlow]) -> Result<usize> {
        let mut deleted = 0;
        for batch in list.chunks(BATCH) {
            deleted += self.delete_batch(batch)?;
        }
        Ok(deleted)
    }

    /// How much of the process's memory its requests have taken at most.
    #[cfg(test)]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.buf.capacity()
    }

    fn dump(&mut self, family: AddressFamily, visit: &mut impl FnMut(UdpFlow) -> Result<()>) -> Result<()> {
        self.buf.clear();
        write_dump(&mut self.buf, family, self.filter);
        self.socket.drain()?;
        self.socket.send(&[&self.buf])?;
        loop {
            // The kernel queues the first datagram when it is asked, and the next whenever one is read.
            let datagram = match self.socket.receive(Wait::No)? {
                Received::Datagram(datagram) => datagram,
                Received::Overrun => return Err(overrun("dump flows")),
                Received::Nothing => return Err(Error::Malformed("a dump without end")),
            };
            for message in messages(datagram).filter(|message| message.seq == SEQ) {
                match message.kind {
                    message::DONE | message::ERROR => {
                        return match errno(&message)? {
                            0 => Ok(()),
                            errno => Err(refused("list UDP flows", errno)),
                        };
                    }
                    _ => match flow::read(message.payload).ok_or(Error::Malformed("a flow"))? {
                        Tracked::Udp(flow) => visit(flow)?,
                        Tracked::Other => {}
                    },
                }
            }
        }
    }

    fn delete_batch(&mut self, batch: &[UdpFlow]) -> Result<usize> {
        self.buf.clear();
        let last = batch.len() as u32;
        for (seq, flow) in (1..).zip(batch) {
            let ack = if seq == last { flags::ACK } else { 0 };
            flow::write_delete(&mut self.buf, flow, ack, seq);
        }
        self.socket.drain()?;
        self.socket.send(&[&self.buf])?;
        let (mut gone, mut answered, mut failed) = (0, false, None);
        // All answers are queued when the send returns.
        loop {
            let datagram = match self.socket.receive(Wait::No)? {
                Received::Datagram(datagram) => datagram,
                Received::Overrun => return Err(overrun("delete flows")),
                Received::Nothing => break,
            };
            for message in messages(datagram).filter(|message| message.kind == message::ERROR) {
                answered |= message.seq == last;
                match errno(&message)? {
                    0 => {}
                    libc::ENOENT => gone += 1,
                    errno => failed = failed.or(Some(refused("delete a UDP flow", errno))),
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None if answered => Ok(batch.len() - gone),
            None => Err(Error::Malformed("no answer to a deletion")),
        }
    }
}

/// Appends a request for all flows of a family, of protocol UDP if the kernel is to filter.
fn write_dump(buf: &mut Vec<u8>, family: AddressFamily, filter: Filter) {
    let at = message::start(buf, abi::SUBSYSTEM | abi::msg::GET, flags::REQUEST | flags::DUMP, SEQ);
    buf.extend_from_slice(&[family.number(), 0, 0, 0]);
    if filter == Filter::Kernel {
        let original = buf.open(abi::TUPLE_ORIG);
        let protocol = buf.open(tuple::PROTO);
        buf.put(proto::NUM, &[abi::UDP]);
        buf.close(protocol);
        buf.close(original);
        // Unlike the rest in host byte order.
        let flags = buf.open(abi::FILTER);
        buf.put(filter::ORIG_FLAGS, &filter::PROTO_NUM.to_ne_bytes());
        buf.put(filter::REPLY_FLAGS, &0u32.to_ne_bytes());
        buf.close(flags);
    }
    message::finish(buf, at);
}

fn is_filter_refused(error: &Error) -> bool {
    let refused = [libc::EINVAL, libc::EOPNOTSUPP, libc::ERANGE];
    matches!(error, Error::Request { errno, .. } if refused.contains(&errno.0))
}

pub(super) fn errno(message: &Message<'_>) -> Result<i32> {
    message.answer().map(|answer| answer.errno).ok_or(Error::Malformed("an error without errno"))
}

pub(super) fn refused(request: &str, errno: i32) -> Error {
    Error::Request { request: request.into(), errno: Errno(errno), message: None }
}

pub(super) fn overrun(call: &'static str) -> Error {
    Error::Socket { call, errno: Errno(libc::ENOBUFS) }
}

#[cfg(test)]
mod tests {
    use super::{super::captured::sent, *};

    #[test]
    fn a_dump_is_asked_for_as_conntrack_does() {
        let mut ours = Vec::new();
        write_dump(&mut ours, AddressFamily::V6, Filter::Ours);
        let theirs = sent("conntrack -L -f ipv6 -p udp");
        // But for the number of the request.
        assert_eq!((&ours[..8], &ours[16..]), (&theirs[..8], &theirs[16..]));
    }
}

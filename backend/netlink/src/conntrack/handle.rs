//! Dumps flows of the kernel's connection tracking, and deletes them.

use std::net::SocketAddr;

use ::proto::model::{IpFamily, Protocol};
use nix::libc;

use super::{
    Entry, Flow, Tuple,
    abi::{self, filter, msg, proto, tuple},
    entry::{self, DumpedEntry},
    flow::{self, DumpedFlow},
};
use crate::{
    Error, Result, Socket,
    attr::Put,
    exchange::{SEQ, collect, exchange, submit_each},
    message::{self, attributes, flags},
};

/// The number of deletions per send. The kernel may reply to each, and a receive buffer of the default size
/// holds 256 replies.
pub const DELETIONS_PER_SEND: usize = 256;

/// The flows of the network namespace of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct ConntrackHandle {
    socket: Socket,
    pub(super) filter: Filter,
    /// The request; kept to reuse the allocation.
    pub(super) buf: Vec<u8>,
}

/// Which flows are dumped.
#[derive(Clone, Copy, Debug)]
struct Selection {
    protocol: Protocol,
    /// TCP connections whose SYN has not been answered. Since Linux 5.19 the kernel omits answered ones if it filters.
    only_half_open: bool,
}

/// Which side filters a dump by protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// The kernel, with `CTA_FILTER` (Linux 5.8), in a third of the time. The filter has the protocol only, because the
    /// kernel compares IPv6 addresses of filters incorrectly.
    Kernel,
    /// This crate.
    Client,
}

impl ConntrackHandle {
    /// Opens a socket.
    pub fn open() -> Result<Self> {
        Ok(ConntrackHandle { socket: Socket::open()?, filter: Filter::Kernel, buf: Vec::new() })
    }

    /// Calls `visit` with each flow of the family and protocol during the dump, without collecting the flows. If the
    /// table changes during the dump, a flow may be visited twice, and a new flow may be omitted. `visit` may delete
    /// flows through another handle.
    ///
    /// # Errors
    /// When the kernel rejects the dump, or `visit` fails, which ends the dump.
    pub fn flows(&mut self, family: IpFamily, protocol: Protocol, visit: impl FnMut(Flow) -> Result<()>) -> Result<()> {
        self.dump(family, Selection { protocol, only_half_open: false }, visit)
    }

    /// As [`Self::flows`], with the TCP connections whose SYN has not been answered.
    ///
    /// # Errors
    /// When the kernel rejects the dump, or `visit` fails, which ends the dump.
    pub fn half_open(&mut self, family: IpFamily, visit: impl FnMut(Flow) -> Result<()>) -> Result<()> {
        self.dump(family, Selection { protocol: Protocol::Tcp, only_half_open: true }, visit)
    }

    /// Calls `visit` with each entry in zone 0 of both families and of all protocols with ports, in one dump. As for
    /// [`Self::flows`], an entry may be visited twice or omitted if the table changes meanwhile.
    ///
    /// # Errors
    /// When the kernel rejects the dump, or `visit` fails, which ends the dump.
    pub fn entries(&mut self, mut visit: impl FnMut(&Entry) -> Result<()>) -> Result<()> {
        self.buf.clear();
        // `AF_UNSPEC`: both families.
        message::put(&mut self.buf, abi::SUBSYSTEM | msg::GET, flags::REQUEST | flags::DUMP, SEQ, [0; 4], |_| {});

        exchange(&mut self.socket, &self.buf, "list connections", |message| {
            match entry::read(message.payload).ok_or(Error::Malformed("a connection"))? {
                DumpedEntry::Tracked(entry) => visit(&entry),
                DumpedEntry::Ignored => Ok(()),
            }
        })
    }

    /// The flow as it is now; `None` if it has ended.
    ///
    /// # Errors
    /// When the kernel rejects the request.
    pub fn find(&mut self, flow: &Flow) -> Result<Option<Flow>> {
        self.buf.clear();
        flow::write_request(&mut self.buf, msg::GET, flow, flags::ACK, SEQ);
        let replies = match collect(&mut self.socket, &self.buf, "look up a flow", "a flow", flow::read) {
            Err(error) if error.is_not_found() => return Ok(None),
            replies => replies?,
        };

        Ok(replies.into_iter().find_map(|reply| match reply {
            DumpedFlow::Open(found) if found.id == flow.id => Some(found),
            DumpedFlow::Open(_) | DumpedFlow::Ignored => None,
        }))
    }

    /// Deletes these flows and returns how many existed. A missing flow is not an error.
    ///
    /// # Errors
    /// The first rejection. The other flows of its batch are deleted; flows of later batches are not.
    pub fn delete(&mut self, list: &[Flow]) -> Result<usize> {
        let mut deleted = 0;
        for batch in list.chunks(DELETIONS_PER_SEND) {
            deleted += self.delete_batch(batch)?;
        }
        Ok(deleted)
    }

    /// Deletes the UDP flows of both families to stale destinations, so that NAT translates their next packets anew.
    /// UDP has no end of a connection: a client that keeps sending would use the old endpoint forever.
    ///
    /// # Errors
    /// When the kernel rejects a dump or a deletion.
    pub fn delete_udp(&mut self, is_stale: impl Fn(SocketAddr) -> bool) -> Result<()> {
        for family in IpFamily::ALL {
            let mut stale = Vec::new();
            self.flows(family, Protocol::Udp, |flow| {
                if is_stale(flow.original.destination) {
                    stale.push(flow);
                }
                Ok(())
            })?;
            self.delete(&stale)?;
        }
        Ok(())
    }

    /// The reply tuple of a flow in zone 0, whose source is the endpoint; `None` if there is no such flow. `protocol`
    /// is the `IPPROTO_*` of a protocol with ports.
    ///
    /// # Errors
    /// When the kernel rejects the request.
    pub fn reply(&mut self, protocol: u8, original: &Tuple) -> Result<Option<Tuple>> {
        self.buf.clear();
        let family = IpFamily::of(&original.destination.ip());
        flow::put(&mut self.buf, msg::GET, flags::ACK, SEQ, family, |buf| {
            buf.nest(abi::TUPLE_ORIG, |buf| flow::write_tuple(buf, protocol, original));
        });

        let read = |payload: &[u8]| flow::read_tuple(attributes(payload)?.find(abi::TUPLE_REPLY)?.nested());
        match collect(&mut self.socket, &self.buf, "look up a flow", "a flow", read) {
            Err(error) if error.is_not_found() => Ok(None),
            replies => replies.map(|mut replies| replies.pop()),
        }
    }

    /// Dumps the selected flows. Without a filter of the kernel, all flows of the family are read.
    fn dump(
        &mut self,
        family: IpFamily,
        selection: Selection,
        mut visit: impl FnMut(Flow) -> Result<()>,
    ) -> Result<()> {
        match self.try_dump(family, selection, &mut visit) {
            // The kernel rejects the filter before the first flow.
            Err(error) if self.filter == Filter::Kernel && is_filter_rejected(&error) => {
                self.filter = Filter::Client;
                self.try_dump(family, selection, &mut visit)
            }
            result => result,
        }
    }

    fn try_dump(
        &mut self,
        family: IpFamily,
        selection: Selection,
        visit: &mut impl FnMut(Flow) -> Result<()>,
    ) -> Result<()> {
        self.buf.clear();
        write_dump(&mut self.buf, family, selection, self.filter);

        let request = format!("list {} flows", selection.protocol);
        exchange(&mut self.socket, &self.buf, &request, |message| {
            match flow::read(message.payload).ok_or(Error::Malformed("a flow"))? {
                DumpedFlow::Open(flow) if selection.contains(&flow) => visit(flow),
                DumpedFlow::Open(_) | DumpedFlow::Ignored => Ok(()),
            }
        })
    }

    fn delete_batch(&mut self, batch: &[Flow]) -> Result<usize> {
        let mut missing = 0;
        let mut rejection = None;
        let write = |buf: &mut Vec<u8>, flow: &Flow, seq, ack| flow::write_request(buf, msg::DELETE, flow, ack, seq);
        submit_each(&mut self.socket, &mut self.buf, batch, write, |_, errno| match errno.0 {
            libc::ENOENT => missing += 1,
            _ => rejection = rejection.or(Some(errno)),
        })?;

        match rejection {
            Some(errno) => Err(Error::Request { request: "delete a flow".to_owned(), errno, message: None }),
            None => Ok(batch.len() - missing),
        }
    }
}

impl Selection {
    fn contains(self, flow: &Flow) -> bool {
        flow.protocol == self.protocol && (!self.only_half_open || flow.is_half_open)
    }
}

/// Appends a request for the flows of a family: the selected flows if the kernel filters, otherwise all.
fn write_dump(buf: &mut Vec<u8>, family: IpFamily, selection: Selection, filter: Filter) {
    let protocol = selection.protocol.number();
    flow::put(buf, msg::GET, flags::DUMP, SEQ, family, |buf| {
        if filter == Filter::Client {
            return;
        }

        buf.nest(abi::TUPLE_ORIG, |buf| buf.nest(tuple::PROTO, |buf| buf.put(proto::NUM, &[protocol])));
        // Unlike other numbers of conntrack in host byte order.
        buf.nest(abi::FILTER, |buf| {
            buf.put_ne_u32(filter::ORIG_FLAGS, filter::PROTO_NUM);
            buf.put_ne_u32(filter::REPLY_FLAGS, 0);
        });
        if selection.only_half_open {
            buf.put_u32(abi::STATUS, 0);
            buf.put_u32(abi::STATUS_MASK, abi::STATUS_SEEN_REPLY);
        }
    });
}

fn is_filter_rejected(error: &Error) -> bool {
    let rejected = [libc::EINVAL, libc::EOPNOTSUPP, libc::ERANGE];
    matches!(error, Error::Request { errno, .. } if rejected.contains(&errno.0))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::captured::sent, *};

    #[test]
    fn the_request_for_a_dump_equals_that_of_conntrack() {
        let mut ours = Vec::new();
        let udp = Selection { protocol: Protocol::Udp, only_half_open: false };
        write_dump(&mut ours, IpFamily::V6, udp, Filter::Client);
        let theirs = sent("conntrack -L -f ipv6 -p udp");
        // Except the sequence number.
        assert_eq!((&ours[..8], &ours[16..]), (&theirs[..8], &theirs[16..]));
    }
}

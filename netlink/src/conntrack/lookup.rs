//! Looks up one flow by its original tuple.

use nix::libc;

use super::{
    ConntrackHandle, Tuple,
    abi::{self},
    flow,
    handle::{SEQ, errno, overrun, refused},
};
use crate::{
    AddressFamily, Error, Result,
    attr::{Put, attrs},
    message::{self, flags, messages},
    socket::{Received, Wait},
};

impl ConntrackHandle {
    /// The direction of the answers of a flow in zone 0; its source is the endpoint. `None` when there is no such flow.
    /// `protocol`: `IPPROTO_*` of one with ports.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reply(&mut self, protocol: u8, original: &Tuple) -> Result<Option<Tuple>> {
        self.buf.clear();
        write_get(&mut self.buf, protocol, original);
        self.socket.drain()?;
        self.socket.send(&[&self.buf])?;
        let mut found = None;
        loop {
            let datagram = match self.socket.receive(Wait::No)? {
                Received::Datagram(datagram) => datagram,
                Received::Overrun => return Err(overrun("look up a flow")),
                Received::Nothing => return Err(Error::Malformed("no answer to a look-up")),
            };
            for message in messages(datagram).filter(|message| message.seq == SEQ) {
                match message.kind {
                    message::DONE | message::ERROR => {
                        return match errno(&message)? {
                            0 => Ok(found),
                            libc::ENOENT => Ok(None),
                            errno => Err(refused("look up a flow", errno)),
                        };
                    }
                    _ => found = Some(read_reply(message.payload).ok_or(Error::Malformed("a flow"))?),
                }
            }
        }
    }
}

fn write_get(buf: &mut Vec<u8>, protocol: u8, original: &Tuple) {
    let family = if original.destination.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 };
    let at = message::start(buf, abi::SUBSYSTEM | abi::msg::GET, flags::REQUEST | flags::ACK, SEQ);
    buf.extend_from_slice(&[family.number(), 0, 0, 0]);
    let tuple = buf.open(abi::TUPLE_ORIG);
    flow::write_tuple(buf, protocol, original);
    buf.close(tuple);
    message::finish(buf, at);
}

fn read_reply(payload: &[u8]) -> Option<Tuple> {
    let reply = attrs(payload.get(abi::NFGENMSG..)?).find(abi::TUPLE_REPLY)?;
    flow::read_tuple(reply.nested())
}

//! Looks up one flow by its original tuple.

use super::{
    ConntrackHandle, Tuple,
    abi::{self, msg},
    flow,
};
use crate::{
    AddressFamily, Result,
    attr::Put,
    exchange::{SEQ, collect},
    message::{self, attributes, flags},
};

impl ConntrackHandle {
    /// The reply tuple of a flow in zone 0; its source is the endpoint. `None` if there is no such flow. `protocol`:
    /// the `IPPROTO_*` of a protocol with ports.
    ///
    /// # Errors
    /// When the kernel rejects the request.
    pub fn reply(&mut self, protocol: u8, original: &Tuple) -> Result<Option<Tuple>> {
        self.buf.clear();
        let family = AddressFamily::of(&original.destination.ip());
        let request_flags = flags::REQUEST | flags::ACK;
        let subheader = [family.number(), 0, 0, 0];
        message::put(&mut self.buf, abi::SUBSYSTEM | msg::GET, request_flags, SEQ, subheader, |buf| {
            buf.nest(abi::TUPLE_ORIG, |buf| flow::write_tuple(buf, protocol, original));
        });
        match collect(&mut self.socket, &self.buf, "look up a flow", "a flow", read_reply) {
            Err(error) if error.is_not_found() => Ok(None),
            replies => replies.map(|mut replies| replies.pop()),
        }
    }
}

fn read_reply(payload: &[u8]) -> Option<Tuple> {
    flow::read_tuple(attributes(payload)?.find(abi::TUPLE_REPLY)?.nested())
}

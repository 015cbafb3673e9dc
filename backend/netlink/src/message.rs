//! Netlink messages (`struct nlmsghdr` and its payload): written to a buffer, read from a datagram.

use crate::{
    Errno, Error, Result,
    attr::{Attrs, align, attrs},
};

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of the header behind it: `struct nfgenmsg` of nfnetlink, `struct genlmsghdr` of generic netlink.
pub(crate) const SUBHEADER: usize = 4;

/// `NLMSG_ERROR`: an error, or with errno 0 an acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;

/// `NLM_F_*`.
pub(crate) mod flags {
    constants! { u16:
        REQUEST = 0x1, ACK = 0x4, DUMP = 0x300, EXCL = 0x200, CREATE = 0x400, APPEND = 0x800,
        /// In a reply to a dump: the objects changed during the dump.
        DUMP_INTR = 0x10,
        /// In an error: it does not repeat the request's payload.
        CAPPED = 0x100,
        /// In an error: attributes follow.
        ACK_TLVS = 0x200,
    }
}

/// `NLMSGERR_ATTR_MSG`, `NLMSGERR_ATTR_OFFS`.
const ATTR_MSG: u16 = 1;
const ATTR_OFFS: u16 = 2;

/// Appends a message; `body` appends its attributes.
pub(crate) fn put(
    buf: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    seq: u32,
    subheader: [u8; SUBHEADER],
    body: impl FnOnce(&mut Vec<u8>),
) {
    let at = start(buf, kind, flags, seq);
    buf.extend_from_slice(&subheader);
    body(buf);
    finish(buf, at);
}

/// Appends a header whose length [`finish`] fills in; returns its offset.
pub(crate) fn start(buf: &mut Vec<u8>, kind: u16, flags: u16, seq: u32) -> usize {
    let at = buf.len();
    buf.extend_from_slice(&[0; 4]);
    buf.extend_from_slice(&kind.to_ne_bytes());
    buf.extend_from_slice(&flags.to_ne_bytes());
    buf.extend_from_slice(&seq.to_ne_bytes());
    buf.extend_from_slice(&[0; 4]);
    at
}

/// Ends the message that starts at `at`.
pub(crate) fn finish(buf: &mut [u8], at: usize) {
    let len = (buf.len() - at) as u32;
    buf[at..at + 4].copy_from_slice(&len.to_ne_bytes());
}

/// Clears `NLM_F_ACK` in the header at `at`.
pub(crate) fn clear_ack(buf: &mut [u8], at: usize) {
    let kept = u16::from_ne_bytes([buf[at + 6], buf[at + 7]]) & !flags::ACK;
    buf[at + 6..at + 8].copy_from_slice(&kept.to_ne_bytes());
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    /// The netlink port of the process whose request caused the message.
    pub(crate) port: u32,
    pub(crate) payload: &'a [u8],
}

/// The payload of an [`ERROR`] message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    /// Positive; 0 in an acknowledgement.
    pub(crate) errno: i32,
    /// The offending attribute, in bytes from the start of the request's header.
    pub(crate) offset: Option<usize>,
    pub(crate) message: Option<String>,
}

impl ErrorReply {
    /// `Ok` for an acknowledgement. `request` describes the request in an error, as the command line tool writes it.
    pub(crate) fn check(self, request: &str) -> Result<()> {
        match self.errno {
            0 => Ok(()),
            errno => Err(Error::Request { request: request.to_owned(), errno: Errno(errno), message: self.message }),
        }
    }
}

/// The attributes behind the subsystem's header.
pub(crate) fn attributes(payload: &[u8]) -> Option<Attrs<'_>> {
    payload.get(SUBHEADER..).map(attrs)
}

impl Message<'_> {
    /// The payload of an [`ERROR`] message, or the errno of a [`DONE`].
    pub(crate) fn error_reply(&self) -> Result<ErrorReply> {
        self.read_error().ok_or(Error::Malformed("an error without errno"))
    }

    fn read_error(&self) -> Option<ErrorReply> {
        let errno = i32::from_ne_bytes(*self.payload.first_chunk()?);
        let mut reply = ErrorReply { errno: errno.saturating_neg(), offset: None, message: None };
        if self.flags & flags::ACK_TLVS == 0 {
            return Some(reply);
        }

        let mut rest = &self.payload[4..];
        if self.kind == ERROR {
            // The request that failed precedes the attributes: its header alone, or all of it.
            let is_capped = self.flags & flags::CAPPED != 0;
            let request_len = if is_capped { HEADER } else { u32::from_ne_bytes(*rest.first_chunk()?) as usize };
            rest = rest.get(align(request_len)..)?;
        }

        for attr in attrs(rest) {
            match attr.kind {
                ATTR_MSG => reply.message = attr.str().map(str::to_owned),
                ATTR_OFFS => reply.offset = attr.ne_u32().map(|offset| offset as usize),
                _ => {}
            }
        }
        Some(reply)
    }
}

/// The messages in a datagram. An invalid length ends the iteration.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<HEADER>()?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);

        let len = word(0) as usize;
        let payload = rest.get(HEADER..len)?;
        rest = rest.get(align(len)..).unwrap_or_default();

        Some(Message { kind: half(4), flags: half(6), seq: word(8), port: word(12), payload })
    })
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;
    use crate::attr::Put;

    #[test]
    fn an_error_is_read_with_its_message_and_offset() {
        let mut datagram = Vec::new();
        let at = start(&mut datagram, ERROR, flags::CAPPED | flags::ACK_TLVS, 7);
        datagram.extend_from_slice(&(-libc::ENOENT).to_ne_bytes());
        datagram.extend_from_slice(&[0; HEADER]);
        datagram.put_str(ATTR_MSG, "no such chain");
        datagram.put_ne_u32(ATTR_OFFS, 184);
        finish(&mut datagram, at);
        let ack = start(&mut datagram, ERROR, 0, 8);
        datagram.extend_from_slice(&[0; 4 + HEADER]);
        finish(&mut datagram, ack);

        let read: Vec<Message<'_>> = messages(&datagram).collect();
        assert_eq!(read.iter().map(|message| message.seq).collect::<Vec<_>>(), [7, 8]);
        let rejection =
            ErrorReply { errno: libc::ENOENT, offset: Some(184), message: Some("no such chain".to_owned()) };
        assert_eq!(read[0].error_reply(), Ok(rejection));
        assert_eq!(read[1].error_reply(), Ok(ErrorReply { errno: 0, offset: None, message: None }));
    }
}

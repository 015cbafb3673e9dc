//! Netlink messages (`struct nlmsghdr` and what follows it): written into a buffer, read from a datagram.

use nix::libc;

use crate::attr::{align, attrs};

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// `NLMSG_ERROR`: an error, or with errno 0 an acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(crate) const DONE: u16 = 3;

/// `NLM_F_*`.
pub(crate) mod flags {
    pub(crate) const REQUEST: u16 = 0x1;
    pub(crate) const ACK: u16 = 0x4;
    /// Of a dump's answers: what is dumped changed meanwhile.
    pub(crate) const DUMP_INTR: u16 = 0x10;
    pub(crate) const DUMP: u16 = 0x300;
    /// Of a request that makes something: it must not be there yet. The same bit as the second of [`DUMP`]'s.
    pub(crate) const EXCL: u16 = 0x200;
    pub(crate) const CREATE: u16 = 0x400;
    pub(crate) const APPEND: u16 = 0x800;
    /// Of an error: it does not repeat the request's content.
    pub(super) const CAPPED: u16 = 0x100;
    /// Of an error: attributes follow.
    pub(super) const ACK_TLVS: u16 = 0x200;
}

/// `NLMSGERR_ATTR_MSG`, `NLMSGERR_ATTR_OFFS`.
const ATTR_MSG: u16 = 1;
const ATTR_OFFS: u16 = 2;

/// Appends a header whose length is filled in by [`finish`]; returns where it starts.
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

/// A message that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    /// Whose request it answers or tells of.
    pub(crate) port: u32,
    pub(crate) payload: &'a [u8],
}

/// The content of an [`ERROR`] message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Positive; 0 for an acknowledgement.
    pub(crate) errno: i32,
    /// The offending attribute, in bytes from the start of the request's header.
    pub(crate) offset: Option<usize>,
    pub(crate) message: Option<String>,
}

impl Message<'_> {
    /// The content of an [`ERROR`] message, or the errno of a [`DONE`].
    pub(crate) fn answer(&self) -> Option<Answer> {
        let errno = i32::from_ne_bytes(*self.payload.first_chunk()?);
        let mut answer = Answer { errno: errno.saturating_neg(), offset: None, message: None };
        if self.flags & flags::ACK_TLVS == 0 {
            return Some(answer);
        }
        let mut rest = &self.payload[4..];
        if self.kind == ERROR {
            let len = if self.flags & flags::CAPPED != 0 {
                HEADER
            } else {
                align(u32::from_ne_bytes(*rest.first_chunk()?) as usize)
            };
            rest = rest.get(len..)?;
        }
        for attr in attrs(rest) {
            match attr.kind {
                ATTR_MSG => answer.message = attr.str().map(str::to_owned),
                ATTR_OFFS => answer.offset = attr.payload.try_into().ok().map(|b| u32::from_ne_bytes(b) as usize),
                _ => {}
            }
        }
        Some(answer)
    }
}

/// The messages in a datagram; a broken length ends the walk.
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

/// Whether a request that was refused so may be sent again at once.
pub(crate) fn is_retry(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_error_with_its_explanation() {
        let mut datagram = Vec::new();
        let at = start(&mut datagram, ERROR, flags::CAPPED | flags::ACK_TLVS, 7);
        datagram.extend_from_slice(&(-libc::ENOENT).to_ne_bytes());
        datagram.extend_from_slice(&[0; HEADER]);
        crate::attr::Put::put_str(&mut datagram, ATTR_MSG, "no such chain");
        crate::attr::Put::put(&mut datagram, ATTR_OFFS, &184u32.to_ne_bytes());
        finish(&mut datagram, at);
        let ack = start(&mut datagram, ERROR, 0, 8);
        datagram.extend_from_slice(&[0; 4 + HEADER]);
        finish(&mut datagram, ack);

        let read: Vec<Message<'_>> = messages(&datagram).collect();
        assert_eq!(read.iter().map(|message| message.seq).collect::<Vec<_>>(), [7, 8]);
        let answer = read[0].answer().unwrap();
        assert_eq!(answer.errno, libc::ENOENT);
        assert_eq!(answer.offset, Some(184));
        assert_eq!(answer.message.as_deref(), Some("no such chain"));
        assert_eq!(read[1].answer(), Some(Answer { errno: 0, offset: None, message: None }));
    }
}

//! One request and what comes back: the messages of a dump, or a yes or no.

use crate::{
    Errno, Error, Result, Socket,
    message::{self, Message, flags, messages},
    socket::{Received, Wait},
};
use nix::libc;

/// The number of messages per send. If the kernel rejects all of them, the receive buffer holds all replies.
const CHUNK: usize = 1024;

/// Stale answers are drained before each request, so that one number does for all.
pub(crate) const SEQ: u32 = 1;

/// Sends a request, which asks for a dump or an acknowledgement, and calls `visit` with each message before the end.
/// `name` is the request in words.
pub(crate) fn exchange(
    socket: &mut Socket,
    request: &[u8],
    name: &str,
    mut visit: impl FnMut(&Message<'_>) -> Result<()>,
) -> Result<()> {
    socket.drain()?;
    socket.send(&[request])?;
    loop {
        for message in messages(receive(socket)?).filter(|message| message.seq == SEQ) {
            match message.kind {
                message::DONE | message::ERROR => {
                    let answer = message.answer().ok_or(Error::Malformed("an error without errno"))?;
                    return match answer.errno {
                        0 => Ok(()),
                        errno => Err(Error::Request {
                            request: name.to_owned(),
                            errno: Errno(errno),
                            message: answer.message,
                        }),
                    };
                }
                _ => visit(&message)?,
            }
        }
    }
}

/// The next datagram of an answer. The kernel answers while it is asked, and goes on with a dump whenever a datagram is
/// read.
fn receive(socket: &mut Socket) -> Result<&[u8]> {
    match socket.receive(Wait::No)? {
        Received::Datagram(datagram) => Ok(datagram),
        Received::Overrun => Err(Error::Socket { call: "receive from netlink", errno: Errno(libc::ENOBUFS) }),
        Received::Nothing => Err(Error::Malformed("an answer without end")),
    }
}

/// Sends messages that ask for nothing but to be done, and tells which of them the kernel refused, and why. Their
/// numbers are 1, 2, 3 ..; only the last one asks for an acknowledgement.
pub(crate) fn submit(
    socket: &mut Socket,
    requests: &[u8],
    last: u32,
    mut refused: impl FnMut(&Message<'_>, u32, Errno),
) -> Result<()> {
    socket.drain()?;
    socket.send(&[requests])?;
    loop {
        for message in messages(receive(socket)?).filter(|message| message.kind == message::ERROR) {
            let answer = message.answer().ok_or(Error::Malformed("an error without errno"))?;
            if answer.errno != 0 {
                refused(&message, message.seq, Errno(answer.errno));
            }
            if message.seq == last {
                return Ok(());
            }
        }
    }
}

/// Has each item done by a message of its own, as [`submit`] does, and tells by its index which the kernel refused.
/// `write` appends the message of an item, with its number and the flag that asks for an acknowledgement.
///
/// # Errors
/// When it is not known what came of them.
pub(crate) fn submit_each<T>(
    socket: &mut Socket,
    buf: &mut Vec<u8>,
    items: &[T],
    mut write: impl FnMut(&mut Vec<u8>, &T, u32, u16),
    mut refused: impl FnMut(usize, Errno),
) -> Result<()> {
    for (chunk, items) in items.chunks(CHUNK).enumerate() {
        buf.clear();
        for (seq, item) in (1..).zip(items) {
            let ack = if seq as usize == items.len() { flags::ACK } else { 0 };
            write(buf, item, seq, ack);
        }
        submit(socket, buf, items.len() as u32, |_, seq, errno| {
            refused(chunk * CHUNK + seq.saturating_sub(1) as usize, errno);
        })?;
    }
    Ok(())
}

//! Requests and their replies: dumps, single requests, and sequences of requests.

use std::time::Duration;

use nix::libc;

use crate::{
    Errno, Error, Result, Socket,
    message::{self, Message, flags, messages},
    socket::Received,
};

/// The number of messages per send. If the kernel rejects all of them, the receive buffer holds all replies.
const MESSAGES_PER_SEND: usize = 1024;

/// The sequence number of every single request: stale replies are drained before each.
pub(crate) const SEQ: u32 = 1;

/// Sends a request for a dump or with an acknowledgement, and calls `visit` with each message before the end. `name`
/// describes the request in an error, as the command line tool writes it.
///
/// # Errors
/// [`Error::Interrupted`] if the kernel reports that the objects changed during the dump.
pub(crate) fn exchange(
    socket: &mut Socket,
    request: &[u8],
    name: &str,
    mut visit: impl FnMut(&Message<'_>) -> Result<()>,
) -> Result<()> {
    socket.drain()?;
    socket.send(&[request])?;

    let mut has_changed = false;
    loop {
        for message in messages(receive(socket)?).filter(|message| message.seq == SEQ) {
            has_changed |= message.flags & flags::DUMP_INTR != 0;
            match message.kind {
                message::DONE | message::ERROR => {
                    message.error_reply()?.check(name)?;
                    return if has_changed { Err(interrupted(name)) } else { Ok(()) };
                }
                _ if has_changed => {}
                _ => visit(&message)?,
            }
        }
    }
}

/// As [`exchange`]; collects the objects that `read` decodes from the payloads. `object` names them in the error for a
/// malformed reply, of which `read` returns `None`.
pub(crate) fn collect<T>(
    socket: &mut Socket,
    request: &[u8],
    name: &str,
    object: &'static str,
    mut read: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>> {
    let mut list = Vec::new();
    exchange(socket, request, name, |message| {
        list.push(read(message.payload).ok_or(Error::Malformed(object))?);
        Ok(())
    })?;
    Ok(list)
}

/// The error of a dump during which the objects changed.
pub(crate) fn interrupted(name: &str) -> Error {
    Error::Interrupted { request: name.to_owned(), attempts: 1 }
}

/// Sends messages and calls `rejected` for each message that the kernel rejected. Their sequence numbers are 1, 2, 3,
/// ..; only the last message requests an acknowledgement.
pub(crate) fn submit(
    socket: &mut Socket,
    requests: &[u8],
    last: u32,
    mut rejected: impl FnMut(&Message<'_>, Errno),
) -> Result<()> {
    socket.drain()?;
    socket.send(&[requests])?;

    loop {
        for message in messages(receive(socket)?).filter(|message| message.kind == message::ERROR) {
            let errno = message.error_reply()?.errno;
            if errno != 0 {
                rejected(&message, Errno(errno));
            }
            if message.seq == last {
                return Ok(());
            }
        }
    }
}

/// Sends a message for each item, as [`submit`] does, and calls `rejected` with the index of each item that the kernel
/// rejected. `write` appends the message of an item, with this sequence number and these flags.
///
/// # Errors
/// When it is unknown which of the messages the kernel executed.
pub(crate) fn submit_each<T>(
    socket: &mut Socket,
    buf: &mut Vec<u8>,
    items: &[T],
    mut write: impl FnMut(&mut Vec<u8>, &T, u32, u16),
    mut rejected: impl FnMut(usize, Errno),
) -> Result<()> {
    for (chunk, items) in items.chunks(MESSAGES_PER_SEND).enumerate() {
        buf.clear();
        for (seq, item) in (1..).zip(items) {
            let ack = if seq as usize == items.len() { flags::ACK } else { 0 };
            write(buf, item, seq, ack);
        }

        submit(socket, buf, items.len() as u32, |message, errno| {
            rejected(chunk * MESSAGES_PER_SEND + message.seq.saturating_sub(1) as usize, errno);
        })?;
    }
    Ok(())
}

/// The next datagram of a reply. The kernel replies before the send returns, and continues a dump each time a datagram
/// is read.
fn receive(socket: &mut Socket) -> Result<&[u8]> {
    match socket.receive(Duration::ZERO)? {
        Received::Datagram(datagram) => Ok(datagram),
        Received::Overrun => Err(Error::Socket { call: "receive from netlink", errno: Errno(libc::ENOBUFS) }),
        Received::Nothing => Err(Error::Malformed("a reply without end")),
    }
}

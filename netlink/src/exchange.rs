//! One request and what comes back: the messages of a dump, or a yes or no.

use crate::{
    Errno, Error, Result, Socket,
    message::{self, Message, messages},
    socket::{Received, Wait},
};
use nix::libc;

/// Stale answers are drained before each request, so that one number does for all.
pub(crate) const SEQ: u32 = 1;

/// Sends a request, which asks for a dump or an acknowledgement, and calls `visit` with each message before the end. `name` is the
/// request in words.
pub(crate) fn exchange(
    socket: &mut Socket,
    request: &[u8],
    name: &str,
    mut visit: impl FnMut(&Message<'_>) -> Result<()>,
) -> Result<()> {
    socket.drain()?;
    socket.send(&[request])?;
    loop {
        // The kernel answers while it is asked, and goes on with a dump whenever a datagram is read.
        let datagram = match socket.receive(Wait::No)? {
            Received::Datagram(datagram) => datagram,
            Received::Overrun => {
                return Err(Error::Socket { call: "receive from netlink", errno: Errno(libc::ENOBUFS) });
            }
            Received::Nothing => return Err(Error::Malformed("an answer without end")),
        };
        for message in messages(datagram).filter(|message| message.seq == SEQ) {
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

/// Sends messages that ask for nothing but to be done, and tells which of them the kernel refused, and why. Their numbers are 1, 2, 3 ..;
/// only the last one asks for an acknowledgement.
pub(crate) fn submit(
    socket: &mut Socket,
    requests: &[u8],
    last: u32,
    mut refused: impl FnMut(&Message<'_>, u32, Errno),
) -> Result<()> {
    socket.drain()?;
    socket.send(&[requests])?;
    loop {
        let datagram = match socket.receive(Wait::No)? {
            Received::Datagram(datagram) => datagram,
            Received::Overrun => {
                return Err(Error::Socket { call: "receive from netlink", errno: Errno(libc::ENOBUFS) });
            }
            Received::Nothing => return Err(Error::Malformed("requests without an answer to the last")),
        };
        for message in messages(datagram).filter(|message| message.kind == message::ERROR) {
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

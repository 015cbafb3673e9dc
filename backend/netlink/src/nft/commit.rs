//! Sends a batch and reads the kernel's replies.
//!
//! ```text
//! BATCH_BEGIN  op 1 (ack)  op 2  ...  op n (ack)  BATCH_END   --sendmsg-->  executed, replies queued
//!   error for op i   -> rejected, by sequence number; the kernel continues and may report more
//!   ack of op n      -> success, if there is no error: an aborted batch acknowledges its good operations too
//!   ENOBUFS          -> replies are missing: rejected if an error was read, else unknown
//! ```

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::NftBatch;
use crate::{
    Errno, Error, RejectedOperation, Result, Socket,
    message::{self, ErrorReply, messages},
    socket::Received,
};

/// Commits the batch; an empty one is not sent.
pub(super) fn commit(socket: &mut Socket, batch: &NftBatch) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    socket.drain()?;
    let (operations, end) = batch.parts();
    socket.send(&[operations, &end])?;
    Replies::read(socket, batch.len() as u32)?.into_result(batch)
}

/// The kernel's replies to a batch.
#[derive(Debug, Default)]
struct Replies {
    first_acknowledged: bool,
    last_acknowledged: bool,
    overrun: bool,
    /// Errors, by sequence number.
    errors: Vec<(u32, ErrorReply)>,
}

impl Replies {
    /// All replies are queued when `sendmsg` returns.
    fn read(socket: &mut Socket, last: u32) -> Result<Self> {
        let mut replies = Replies::default();
        loop {
            match socket.receive(Duration::ZERO)? {
                Received::Nothing => return Ok(replies),
                Received::Overrun => replies.overrun = true,
                Received::Datagram(datagram) => {
                    for message in messages(datagram).filter(|message| message.kind == message::ERROR) {
                        let reply = message.error_reply()?;
                        replies.add(message.seq, reply, last);
                    }
                }
            }
        }
    }

    fn add(&mut self, seq: u32, reply: ErrorReply, last: u32) {
        if reply.errno == 0 {
            self.first_acknowledged |= seq == 1;
            self.last_acknowledged |= seq == last;
        } else {
            self.errors.push((seq, reply));
        }
    }

    fn into_result(self, batch: &NftBatch) -> Result<()> {
        if !self.errors.is_empty() {
            let first_acknowledged = self.first_acknowledged;
            let operations = self.errors.into_iter().map(|(seq, reply)| {
                // A failure of the commit has the sequence number of the first operation, which was acknowledged.
                let whole = seq == 0 || seq == 1 && first_acknowledged;
                rejected_operation(batch, (!whole).then(|| seq as usize - 1), reply)
            });
            return Err(Error::Rejected { operations: operations.collect(), is_complete: !self.overrun });
        }
        if self.last_acknowledged && !self.overrun { Ok(()) } else { Err(Error::OutcomeUnknown) }
    }
}

fn rejected_operation(batch: &NftBatch, index: Option<usize>, reply: ErrorReply) -> RejectedOperation {
    let operation = index.and_then(|index| batch.get(index));
    let element = operation
        .as_ref()
        .and_then(|op| reply.offset.and_then(|offset| op.element_at(offset)).or_else(|| op.only_element()));
    let label = match (&operation, element) {
        (Some(operation), Some(element)) => operation.element_label(element),
        (Some(operation), None) => operation.label(),
        (None, _) => format!("a transaction of {} operations", batch.len()),
    };
    let errno = Errno(reply.errno);
    RejectedOperation { errno, operation: operation.and(index), label, element, message: reply.message }
}

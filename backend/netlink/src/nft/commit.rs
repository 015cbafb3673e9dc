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
    is_first_acknowledged: bool,
    is_last_acknowledged: bool,
    /// Whether the kernel dropped replies.
    is_overrun: bool,
    /// Errors, by sequence number.
    errors: Vec<(u32, ErrorReply)>,
}

impl Replies {
    /// All replies are queued when `sendmsg` returns. `last` is the sequence number of the last operation.
    fn read(socket: &mut Socket, last: u32) -> Result<Self> {
        let mut replies = Replies::default();
        loop {
            match socket.receive(Duration::ZERO)? {
                Received::Nothing => return Ok(replies),
                Received::Overrun => replies.is_overrun = true,
                Received::Datagram(datagram) => {
                    for message in messages(datagram).filter(|message| message.kind == message::ERROR) {
                        replies.add(message.seq, message.error_reply()?, last);
                    }
                }
            }
        }
    }

    fn add(&mut self, seq: u32, reply: ErrorReply, last: u32) {
        if reply.errno == 0 {
            self.is_first_acknowledged |= seq == 1;
            self.is_last_acknowledged |= seq == last;
        } else {
            self.errors.push((seq, reply));
        }
    }

    fn into_result(self, batch: &NftBatch) -> Result<()> {
        if self.errors.is_empty() {
            let is_applied = self.is_last_acknowledged && !self.is_overrun;
            return if is_applied { Ok(()) } else { Err(Error::OutcomeUnknown) };
        }

        let mut operations = Vec::with_capacity(self.errors.len());
        for (seq, reply) in self.errors {
            // A failure of the commit has the sequence number of the first operation, which was acknowledged.
            let is_of_commit = seq == 0 || seq == 1 && self.is_first_acknowledged;
            let index = if is_of_commit { None } else { Some(seq as usize - 1) };
            operations.push(rejected_operation(batch, index, reply));
        }
        Err(Error::Rejected { operations, is_complete: !self.is_overrun })
    }
}

/// `index` is that of the operation in the batch; `None` if the kernel rejected the whole batch.
fn rejected_operation(batch: &NftBatch, index: Option<usize>, reply: ErrorReply) -> RejectedOperation {
    let ErrorReply { errno, offset, message } = reply;
    let errno = Errno(errno);
    let Some((index, operation)) = index.and_then(|index| Some((index, batch.get(index)?))) else {
        let label = format!("a transaction of {} operations", batch.len());
        return RejectedOperation { errno, operation: None, label, element: None, message };
    };

    let reported = offset.and_then(|offset| operation.element_at(offset));
    let element = reported.or_else(|| operation.only_element());
    let label = match element {
        Some(element) => operation.element_label(element),
        None => operation.label(),
    };
    RejectedOperation { errno, operation: Some(index), label, element, message }
}

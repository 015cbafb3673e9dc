//! Sends a batch and reads the kernel's replies.
//!
//! ```text
//! BATCH_BEGIN  op 1 (ack)  op 2  ...  op n (ack)  BATCH_END   --sendmsg-->  executed, answers queued
//!   error for op i   -> refused, by sequence number; the kernel goes on and may report more
//!   ack of op n      -> success, if there is no error: an aborted batch acknowledges its good operations too
//!   ENOBUFS          -> replies are missing: rejected if an error was read, else unknown
//! ```

#[cfg(test)]
mod tests;

use super::NftBatch;
use crate::{
    Errno, Error, RejectedOperation, RejectedOperations, Result, Socket,
    message::{self, Answer, messages},
    socket::{Received, Wait},
};

/// Commits the batch; an empty one is not sent.
pub(super) fn commit(socket: &mut Socket, batch: &NftBatch) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    socket.drain()?;
    let (operations, end) = batch.parts();
    socket.send(&[operations, &end])?;
    let answers = Answers::read(socket, batch.len() as u32)?;
    answers.judge(batch)
}

/// What came back.
#[derive(Debug, Default)]
struct Answers {
    first_acknowledged: bool,
    last_acknowledged: bool,
    overrun: bool,
    /// Errors, by sequence number.
    errors: Vec<(u32, Answer)>,
}

impl Answers {
    /// All answers are queued when `sendmsg` returns, so none is waited for.
    fn read(socket: &mut Socket, last: u32) -> Result<Self> {
        let mut answers = Answers::default();
        loop {
            match socket.receive(Wait::No)? {
                Received::Nothing => return Ok(answers),
                Received::Overrun => answers.overrun = true,
                Received::Datagram(datagram) => {
                    for message in messages(datagram).filter(|message| message.kind == message::ERROR) {
                        let answer = message.answer().ok_or(Error::Malformed("an error without errno"))?;
                        answers.add(message.seq, answer, last);
                    }
                }
            }
        }
    }

    fn add(&mut self, seq: u32, answer: Answer, last: u32) {
        if answer.errno == 0 {
            self.first_acknowledged |= seq == 1;
            self.last_acknowledged |= seq == last;
        } else {
            self.errors.push((seq, answer));
        }
    }

    fn judge(self, batch: &NftBatch) -> Result<()> {
        if !self.errors.is_empty() {
            let first_acknowledged = self.first_acknowledged;
            let list = self.errors.into_iter().map(|(seq, answer)| {
                // What fails at the commit is reported with the first operation's number, though that one was good.
                let whole = seq == 0 || seq == 1 && first_acknowledged;
                refusal(batch, (!whole).then(|| seq as usize - 1), answer)
            });
            return Err(Error::Rejected(RejectedOperations::new(list.collect(), !self.overrun)));
        }
        if self.last_acknowledged && !self.overrun { Ok(()) } else { Err(Error::OutcomeUnknown) }
    }
}

fn refusal(batch: &NftBatch, index: Option<usize>, answer: Answer) -> RejectedOperation {
    let operation = index.and_then(|index| batch.get(index));
    let element = operation
        .as_ref()
        .and_then(|op| answer.offset.and_then(|offset| op.element_at(offset)).or_else(|| op.only_element()));
    let label = match (&operation, element) {
        (Some(operation), Some(element)) => operation.element_label(element),
        (Some(operation), None) => operation.label(),
        (None, _) => format!("a transaction of {} operations", batch.len()),
    };
    let errno = Errno(answer.errno);
    RejectedOperation { errno, operation: operation.and(index), label, element, message: answer.message }
}

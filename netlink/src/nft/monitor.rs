//! The kernel's notifications of nf_tables changes, to detect changes of our tables by other processes.

#[cfg(test)]
mod tests;

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    abi::{self, generation, msg},
    decode::Body,
    table::TableFamily,
};
use crate::{
    Result, Socket,
    message::{Message, messages},
    socket::{Received, Wait},
};

/// Listens to all changes of nf_tables in the network namespace of the thread that opened it.
///
/// Each transaction announces its operations and then its generation. Our own are announced too: compare
/// [`NftEvent::Changed::port`] with [`super::NftHandle::port`]. A bulk load is many announcements (and the kernel holds
/// a page for each element until it has told all), so expect [`NftEvent::Lost`] after one, or [`NftMonitor::leave`]
/// before it.
///
/// Its descriptor is readable when there is something to hear.
#[derive(Debug)]
pub struct NftMonitor {
    socket: Socket,
}

/// What [`NftMonitor::wait`] heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NftEvent {
    /// An object of a table changed. Consecutive equal events are reported once.
    Changed {
        /// The table's family; `None` for one this crate has no name for.
        family: Option<TableFamily>,
        /// The table's name.
        table: String,
        /// Which kind of object: nft's noun.
        object: &'static str,
        /// The chain's name, or that of the rule's chain.
        chain: Option<String>,
        /// What was done.
        verb: NftChange,
        /// The netlink port of the process that changed it.
        port: u32,
    },
    /// A transaction is complete.
    Generation {
        /// As in [`super::NftHandle::generation`].
        id: u32,
        /// The process that made it.
        pid: u32,
        /// Its name.
        process: String,
        /// Its netlink address.
        port: u32,
    },
    /// Announcements were lost: anything may have changed.
    Lost,
}

/// What was done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftChange {
    /// It was made or changed.
    New,
    /// It was deleted.
    Delete,
}

impl NftMonitor {
    /// Starts to listen.
    pub fn open() -> Result<Self> {
        let monitor = NftMonitor { socket: Socket::open()? };
        monitor.join()?;
        Ok(monitor)
    }

    /// Listens again.
    pub fn join(&self) -> Result<()> {
        self.socket.join(abi::GROUP)
    }

    /// Stops listening. Queued events can still be read; events until the next join are not reported to
    /// be lost.
    pub fn leave(&self) -> Result<()> {
        self.socket.leave(abi::GROUP)
    }

    /// Waits for events until the timeout, and returns those that are queued.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<NftEvent>> {
        let mut notices = Vec::new();
        let mut wait = Wait::For(timeout);
        loop {
            match self.socket.receive(wait)? {
                Received::Nothing => return Ok(notices),
                Received::Overrun => push(&mut notices, NftEvent::Lost),
                Received::Datagram(datagram) => {
                    messages(datagram).filter_map(|message| notice(&message)).for_each(|new| push(&mut notices, new));
                }
            }
            wait = Wait::No;
        }
    }
}

impl AsFd for NftMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn push(notices: &mut Vec<NftEvent>, new: NftEvent) {
    if notices.last() != Some(&new) {
        notices.push(new);
    }
}

fn notice(message: &Message<'_>) -> Option<NftEvent> {
    let body = Body::new(message.payload)?;
    let kind = message.kind.checked_sub(abi::SUBSYSTEM)?;
    let object = match kind {
        msg::NEWGEN => {
            return Some(NftEvent::Generation {
                id: body.u32(generation::ID)?,
                pid: body.u32(generation::PROC_PID).unwrap_or(0),
                process: body.str(generation::PROC_NAME).unwrap_or_default().into(),
                port: message.port,
            });
        }
        msg::NEWTABLE | msg::DELTABLE => "table",
        msg::NEWCHAIN | msg::DELCHAIN => "chain",
        msg::NEWRULE | msg::DELRULE => "rule",
        msg::NEWSET | msg::DELSET => "set",
        msg::NEWSETELEM | msg::DELSETELEM => "element",
        _ => "object",
    };
    let verb = match kind {
        msg::DELTABLE | msg::DELCHAIN | msg::DELRULE | msg::DELSET | msg::DELSETELEM => NftChange::Delete,
        _ => NftChange::New,
    };
    let chain = match object {
        "chain" => body.str(abi::chain::NAME),
        "rule" => body.str(abi::rule::CHAIN),
        _ => None,
    };
    let (family, table, chain) = (TableFamily::from_number(body.family), body.table()?.into(), chain.map(Into::into));
    Some(NftEvent::Changed { family, table, object, chain, verb, port: message.port })
}

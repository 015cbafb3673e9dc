//! Who changed what: the kernel's announcements of nf_tables changes, to notice that somebody touched our tables.

#[cfg(test)]
mod tests;

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use super::{
    abi::{self, generation, msg},
    decode::Body,
    table::Family,
};
use crate::{
    Result, Socket,
    message::{Message, messages},
    socket::{Received, Wait},
};

/// Listens to all changes of nf_tables in the network namespace of the thread that opened it.
///
/// Each transaction announces its operations and then its generation. Our own are announced too: compare
/// [`Notice::Changed::port`] with [`super::Handle::port`]. A bulk load is many announcements (and the kernel holds a page for each
/// element until it has told all), so expect [`Notice::Lost`] after one, or [`Monitor::leave`] before it.
///
/// Its descriptor is readable when there is something to hear.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

/// What [`Monitor::wait`] heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Something in a table changed. Neighbours that are equal are told once.
    Changed {
        /// The table's family; `None` for one this crate has no name for.
        family: Option<Family>,
        /// The table's name.
        table: String,
        /// Which kind of object: nft's noun.
        object: &'static str,
        /// The chain's name, or that of the rule's chain.
        chain: Option<String>,
        /// What was done.
        verb: Verb,
        /// The netlink address of who changed it.
        port: u32,
    },
    /// A transaction is complete.
    Generation {
        /// As in [`super::Handle::generation`].
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
pub enum Verb {
    /// It was made or changed.
    Put,
    /// It was deleted.
    Delete,
}

impl Monitor {
    /// Starts to listen.
    pub fn open() -> Result<Self> {
        let monitor = Monitor { socket: Socket::open()? };
        monitor.join()?;
        Ok(monitor)
    }

    /// Listens again.
    pub fn join(&self) -> Result<()> {
        self.socket.join(abi::GROUP)
    }

    /// Stops listening. What was announced before is still there to be read, what is announced meanwhile is not said to be lost.
    pub fn leave(&self) -> Result<()> {
        self.socket.leave(abi::GROUP)
    }

    /// Waits for the next announcements, at most so long, and returns those that are there; none when there were none.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<Notice>> {
        let mut notices = Vec::new();
        let mut wait = Wait::For(timeout);
        loop {
            match self.socket.receive(wait)? {
                Received::Nothing => return Ok(notices),
                Received::Overrun => push(&mut notices, Notice::Lost),
                Received::Datagram(datagram) => {
                    messages(datagram).filter_map(|message| notice(&message)).for_each(|new| push(&mut notices, new));
                }
            }
            wait = Wait::No;
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn push(notices: &mut Vec<Notice>, new: Notice) {
    if notices.last() != Some(&new) {
        notices.push(new);
    }
}

fn notice(message: &Message<'_>) -> Option<Notice> {
    let body = Body::new(message.payload)?;
    let kind = message.kind.checked_sub(abi::SUBSYSTEM)?;
    let object = match kind {
        msg::NEWGEN => {
            return Some(Notice::Generation {
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
        msg::DELTABLE | msg::DELCHAIN | msg::DELRULE | msg::DELSET | msg::DELSETELEM => Verb::Delete,
        _ => Verb::Put,
    };
    let chain = match object {
        "chain" => body.str(abi::chain::NAME),
        "rule" => body.str(abi::rule::CHAIN),
        _ => None,
    };
    let (family, table, chain) = (Family::from_number(body.family), body.table()?.into(), chain.map(Into::into));
    Some(Notice::Changed { family, table, object, chain, verb, port: message.port })
}

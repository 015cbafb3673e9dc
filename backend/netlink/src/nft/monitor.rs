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
    socket::Received,
};

/// Listens to all changes of nf_tables in the network namespace of the thread that opened it.
///
/// Each transaction, also of this process, causes notifications of its operations and then of its generation: compare
/// [`NftEvent::Changed::port`] with [`super::NftHandle::port`]. A bulk load causes many notifications (and the kernel
/// needs a page per element until it has sent them), so expect [`NftEvent::Lost`] after one, or [`NftMonitor::leave`]
/// before it.
///
/// Its file descriptor is readable when events are queued.
#[derive(Debug)]
pub struct NftMonitor {
    socket: Socket,
}

/// An event from [`NftMonitor::wait`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NftEvent {
    /// An object of a table changed. Consecutive equal events are reported once.
    Changed {
        /// The table's family; `None` for a family that this crate does not support.
        family: Option<TableFamily>,
        /// The table's name.
        table: String,
        /// The kind of object: the noun in nft.
        object: &'static str,
        /// The chain's name, or that of the rule's chain.
        chain: Option<String>,
        /// Whether the object was deleted; otherwise it was created or changed.
        is_deletion: bool,
        /// The netlink port of the process that changed it.
        port: u32,
    },
    /// A transaction is complete.
    Generation {
        /// As in [`super::NftHandle::generation`].
        id: u32,
        /// The process that committed it.
        pid: u32,
        /// Its name.
        process: String,
        /// Its netlink address.
        port: u32,
    },
    /// The kernel dropped notifications: any object may have changed.
    Lost,
}

impl NftMonitor {
    /// Opens a socket and joins the multicast group.
    pub fn open() -> Result<Self> {
        let monitor = NftMonitor { socket: Socket::open()? };
        monitor.join()?;
        Ok(monitor)
    }

    /// Joins the multicast group again.
    pub fn join(&self) -> Result<()> {
        self.socket.join(abi::GROUP)
    }

    /// Leaves the multicast group. Queued events can still be read; events until the next join are not reported as
    /// lost.
    pub fn leave(&self) -> Result<()> {
        self.socket.leave(abi::GROUP)
    }

    /// Waits for events until the timeout, and returns all queued events.
    pub fn wait(&mut self, timeout: Duration) -> Result<Vec<NftEvent>> {
        let mut events = Vec::new();
        let mut remaining = timeout;
        loop {
            match self.socket.receive(remaining)? {
                Received::Nothing => return Ok(events),
                Received::Overrun => push(&mut events, NftEvent::Lost),
                Received::Datagram(datagram) => {
                    for event in messages(datagram).filter_map(|message| event(&message)) {
                        push(&mut events, event);
                    }
                }
            }
            // Further datagrams are read only if they are queued.
            remaining = Duration::ZERO;
        }
    }
}

impl AsFd for NftMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Appends an event, unless it equals the last one.
fn push(events: &mut Vec<NftEvent>, new: NftEvent) {
    if events.last() != Some(&new) {
        events.push(new);
    }
}

/// The event of a notification; `None` if it is none of nf_tables, or malformed.
pub(super) fn event(message: &Message<'_>) -> Option<NftEvent> {
    let body = Body::new(message.payload)?;
    let kind = message.kind.checked_sub(abi::SUBSYSTEM)?;
    if kind == msg::NEWGEN {
        return Some(NftEvent::Generation {
            id: body.u32(generation::ID)?,
            pid: body.u32(generation::PROC_PID).unwrap_or(0),
            process: body.str(generation::PROC_NAME).unwrap_or_default().into(),
            port: message.port,
        });
    }

    let (object, chain) = match kind {
        msg::NEWTABLE | msg::DELTABLE => ("table", None),
        msg::NEWCHAIN | msg::DELCHAIN => ("chain", body.str(abi::chain::NAME)),
        msg::NEWRULE | msg::DELRULE => ("rule", body.str(abi::rule::CHAIN)),
        msg::NEWSET | msg::DELSET => ("set", None),
        msg::NEWSETELEM | msg::DELSETELEM => ("element", None),
        _ => ("object", None),
    };
    Some(NftEvent::Changed {
        family: TableFamily::from_number(body.family.into()),
        table: body.table()?.into(),
        object,
        chain: chain.map(Into::into),
        is_deletion: matches!(kind, msg::DELTABLE | msg::DELCHAIN | msg::DELRULE | msg::DELSET | msg::DELSETELEM),
        port: message.port,
    })
}

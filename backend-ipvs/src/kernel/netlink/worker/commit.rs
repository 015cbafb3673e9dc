//! Operations become messages: those that follow each other and are of one kind go together.

use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink::{
    Errno,
    ipset::Entry,
    ipvs::{Command, Destination},
};
use nix::libc;

use super::{
    super::super::{DEVICE, Refused},
    Worker,
};
use crate::{
    object::{Object, Value, Weight},
    plan::Operation,
    set::Set,
};

/// What goes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    AddEntries(Set),
    DeleteEntries(Set),
    AddAddresses,
    DeleteAddresses,
    Commands,
}

// === impl Worker ===

impl Worker {
    /// See [`super::super::Kernel::commit`].
    pub(in super::super) fn commit(&mut self, operations: &[Operation]) -> Result<Vec<Refused>> {
        let mut refused = Vec::new();
        let mut done = 0;
        for run in operations.chunk_by(|one, other| batch(one) == batch(other)) {
            let mut refuse = |index: usize, errno: Errno| {
                let what = run.get(index).map(|operation| operation.object().to_string()).unwrap_or_default();
                refused.push(Refused { index: done + index, reason: format!("{what}: {errno}") });
            };
            match run.first().map(batch) {
                Some(Batch::AddEntries(set)) => {
                    let entries: Vec<Entry> = run.iter().filter_map(entry).collect();
                    let list = self.ipset.add(set.name(), &entries)?;
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(Batch::DeleteEntries(set)) => {
                    let entries: Vec<Entry> = run.iter().filter_map(entry).collect();
                    let list = self.ipset.delete(set.name(), &entries)?;
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(batch @ (Batch::AddAddresses | Batch::DeleteAddresses)) => {
                    let device = self.device.find(DEVICE)?.context("our device is gone")?;
                    let addresses: Vec<IpAddr> = run.iter().filter_map(address).collect();
                    let list = match batch {
                        Batch::AddAddresses => self.device.add(device, &addresses)?,
                        _ => self.device.delete(device, &addresses)?,
                    };
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(Batch::Commands) => {
                    let commands: Vec<Command> = run.iter().filter_map(command).collect();
                    for (index, errno) in self.execute(commands)? {
                        refuse(index, errno);
                    }
                }
                None => {}
            }
            done += run.len();
        }
        Ok(refused)
    }

    /// Executes commands. One that is refused because somebody else came first is tried in the other form: what is there is changed,
    /// and what has to go is gone.
    fn execute(&mut self, commands: Vec<Command>) -> Result<Vec<(usize, Errno)>> {
        let mut refused = Vec::new();
        for one in self.ipvs()?.execute(&commands)? {
            let other = match (commands.get(one.index), one.errno.0) {
                (Some(Command::AddService(server, scheduling)), libc::EEXIST) => {
                    Some(Command::SetService(*server, scheduling.clone()))
                }
                (Some(Command::AddDestination(server, to)), libc::EEXIST) => {
                    Some(Command::SetDestination(*server, *to))
                }
                (Some(Command::DeleteService(_)), libc::ESRCH)
                | (Some(Command::DeleteDestination(..)), libc::ESRCH | libc::ENOENT) => continue,
                _ => None,
            };
            let Some(other) = other else {
                refused.push((one.index, one.errno));
                continue;
            };
            let again = self.ipvs()?.execute(&[other])?;
            refused.extend(again.first().map(|again| (one.index, again.errno)));
        }
        Ok(refused)
    }
}

fn batch(operation: &Operation) -> Batch {
    match operation {
        Operation::Add(object, _) | Operation::Change(object, _) => match object {
            Object::Entry(set, _) => Batch::AddEntries(*set),
            Object::Address(_) => Batch::AddAddresses,
            Object::Server(_) | Object::Destination(..) => Batch::Commands,
        },
        Operation::Remove(object) => match object {
            Object::Entry(set, _) => Batch::DeleteEntries(*set),
            Object::Address(_) => Batch::DeleteAddresses,
            Object::Server(_) | Object::Destination(..) => Batch::Commands,
        },
    }
}

fn entry(operation: &Operation) -> Option<Entry> {
    let Object::Entry(_, entry) = operation.object() else { return None };
    let mark = match operation {
        Operation::Add(_, Value::Mark(mark)) | Operation::Change(_, Value::Mark(mark)) => Some(mark.raw()),
        _ => None,
    };
    Some(Entry { mark, ..*entry })
}

fn address(operation: &Operation) -> Option<IpAddr> {
    match operation.object() {
        Object::Address(address) => Some(*address),
        _ => None,
    }
}

fn command(operation: &Operation) -> Option<Command> {
    Some(match operation {
        Operation::Add(Object::Server(server), Value::Scheduling(scheduling)) => {
            Command::AddService(*server, scheduling.clone())
        }
        Operation::Change(Object::Server(server), Value::Scheduling(scheduling)) => {
            Command::SetService(*server, scheduling.clone())
        }
        Operation::Remove(Object::Server(server)) => Command::DeleteService(*server),
        Operation::Add(Object::Destination(server, to), Value::Weight(weight)) => {
            Command::AddDestination(*server, destination(*to, *weight))
        }
        Operation::Change(Object::Destination(server, to), Value::Weight(weight)) => {
            Command::SetDestination(*server, destination(*to, *weight))
        }
        Operation::Remove(Object::Destination(server, to)) => Command::DeleteDestination(*server, *to),
        _ => return None,
    })
}

/// See [`Weight::Draining`].
fn destination(address: std::net::SocketAddr, weight: Weight) -> Destination {
    match weight {
        Weight::Of(weight) => Destination::new(address, weight),
        Weight::Draining(until) => {
            Destination { upper_threshold: until, lower_threshold: until, ..Destination::new(address, 0) }
        }
    }
}

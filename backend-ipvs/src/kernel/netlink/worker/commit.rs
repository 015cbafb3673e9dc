//! Operations become messages: those that follow each other and are of one kind go together.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use anyhow::{Context, Result};
use netlink::{
    Errno,
    ipset::IpsetEntry,
    ipvs::{Destination, IpvsCommand, PERSISTENT, Scheduling, VirtualServerKey},
    rtnl,
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

/// The scheduler that stands in for one that the kernel does not have.
const MAKESHIFT: &str = "rr";

/// What has come of commands, by their indices.
#[derive(Debug, Default)]
struct Outcome {
    refused: Vec<(usize, Errno)>,
    /// Virtual servers that were made with another scheduler, for the kernel does not have theirs.
    makeshifts: HashMap<usize, Scheduling>,
}

/// What is left of a command that was refused.
enum Left {
    /// It is as it should be.
    Nothing,
    /// That.
    Refusal,
    /// This instead.
    Command(IpvsCommand),
}

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
                refused.push(Refused { index: done + index, reason: format!("{what}: {errno}"), instead: None });
            };
            match run.first().map(batch) {
                Some(Batch::AddEntries(set)) => {
                    let entries: Vec<IpsetEntry> = run.iter().filter_map(entry).collect();
                    let list = self.ipset.add(set.name(), &entries)?;
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(Batch::DeleteEntries(set)) => {
                    let entries: Vec<IpsetEntry> = run.iter().filter_map(entry).collect();
                    let list = self.ipset.delete(set.name(), &entries)?;
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(batch @ (Batch::AddAddresses | Batch::DeleteAddresses)) => {
                    let link = rtnl::link(DEVICE)?.with_context(|| format!("device {DEVICE} does not exist"))?;
                    let addresses: Vec<IpAddr> = run.iter().filter_map(address).collect();
                    let list = match batch {
                        Batch::AddAddresses => rtnl::add_addresses(&link, &addresses)?,
                        _ => rtnl::delete_addresses(&link, &addresses)?,
                    };
                    list.into_iter().for_each(|one| refuse(one.index, one.errno));
                }
                Some(Batch::Commands) => {
                    let commands: Vec<IpvsCommand> = run.iter().filter_map(command).collect();
                    let outcome = self.execute(commands)?;
                    outcome.refused.into_iter().for_each(|(index, errno)| refuse(index, errno));
                    refused.extend(outcome.makeshifts.into_iter().filter_map(|(index, scheduling)| {
                        Some(makeshift_of(run.get(index)?, done + index, scheduling))
                    }));
                }
                None => {}
            }
            done += run.len();
        }
        Ok(refused)
    }

    /// Executes commands. One that is refused is tried in another form where there is one, until the kernel has taken it or there is none.
    fn execute(&mut self, commands: Vec<IpvsCommand>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut round: Vec<(usize, IpvsCommand)> = commands.into_iter().enumerate().collect();
        while !round.is_empty() {
            let commands: Vec<IpvsCommand> = round.iter().map(|(_, command)| command.clone()).collect();
            let refused = self.ipvs()?.execute(&commands)?;
            let (mut next, mut remade) = (Vec::new(), HashSet::new());
            for (one, (index, command)) in refused.iter().filter_map(|one| Some((one, round.get(one.index)?.clone()))) {
                match left(command, one.errno, &remade) {
                    Left::Nothing => {}
                    Left::Refusal => {
                        outcome.makeshifts.remove(&index);
                        outcome.refused.push((index, one.errno));
                    }
                    Left::Command(command) => {
                        if let IpvsCommand::AddServer(server, scheduling) | IpvsCommand::SetServer(server, scheduling) =
                            &command
                        {
                            remade.insert(*server);
                            if one.errno.0 == libc::ENOENT {
                                outcome.makeshifts.insert(index, scheduling.clone());
                            }
                        }
                        next.push((index, command));
                    }
                }
            }
            round = next;
        }
        Ok(outcome)
    }
}

/// What is left of a command that was refused. `remade`: the virtual servers before it that are tried again, in the order of commands.
fn left(command: IpvsCommand, errno: Errno, remade: &HashSet<VirtualServerKey>) -> Left {
    match (command, errno.0) {
        // Somebody else came first: what is there is changed, and what has to go is gone.
        (IpvsCommand::AddServer(server, scheduling), libc::EEXIST) => {
            Left::Command(IpvsCommand::SetServer(server, scheduling))
        }
        (IpvsCommand::AddDestination(server, to), libc::EEXIST) => {
            Left::Command(IpvsCommand::SetDestination(server, to))
        }
        (IpvsCommand::DeleteServer(_), libc::ESRCH)
        | (IpvsCommand::DeleteDestination(..), libc::ESRCH | libc::ENOENT) => Left::Nothing,
        // No such scheduler. `ip_vs_rr` comes with IPVS everywhere.
        (IpvsCommand::AddServer(server, Scheduling { scheduler, timeout, flags }), libc::ENOENT)
            if *scheduler != *MAKESHIFT =>
        {
            Left::Command(IpvsCommand::AddServer(server, makeshift(flags, timeout)))
        }
        (IpvsCommand::SetServer(server, Scheduling { scheduler, timeout, flags }), libc::ENOENT)
            if *scheduler != *MAKESHIFT =>
        {
            Left::Command(IpvsCommand::SetServer(server, makeshift(flags, timeout)))
        }
        // It came with its virtual server.
        (command @ IpvsCommand::AddDestination(server, _), libc::ESRCH) if remade.contains(&server) => {
            Left::Command(command)
        }
        _ => Left::Refusal,
    }
}

/// What a virtual server is made with for want of its scheduler.
fn makeshift(flags: u32, timeout: u32) -> Scheduling {
    Scheduling { scheduler: MAKESHIFT.into(), flags: flags & PERSISTENT, timeout }
}

fn makeshift_of(operation: &Operation, index: usize, instead: Scheduling) -> Refused {
    let object = operation.object();
    let reason = match operation {
        Operation::Add(_, Value::Scheduling(Scheduling { scheduler, .. }))
        | Operation::Change(_, Value::Scheduling(Scheduling { scheduler, .. })) => format!(
            "{object}: the kernel has no scheduler {scheduler} (module ip_vs_{scheduler}), it is {} until the Service or the backend \
             changes",
            instead.scheduler
        ),
        _ => object.to_string(),
    };
    Refused { index, reason, instead: Some(Value::Scheduling(instead)) }
}

fn batch(operation: &Operation) -> Batch {
    match operation {
        Operation::Add(object, _) | Operation::Change(object, _) => match object {
            Object::SetEntry(set, _) => Batch::AddEntries(*set),
            Object::Address(_) => Batch::AddAddresses,
            Object::Server(_) | Object::Destination(..) => Batch::Commands,
        },
        Operation::Remove(object) => match object {
            Object::SetEntry(set, _) => Batch::DeleteEntries(*set),
            Object::Address(_) => Batch::DeleteAddresses,
            Object::Server(_) | Object::Destination(..) => Batch::Commands,
        },
    }
}

fn entry(operation: &Operation) -> Option<IpsetEntry> {
    let Object::SetEntry(_, entry) = operation.object() else { return None };
    let mark = match operation {
        Operation::Add(_, Value::Mark(mark)) | Operation::Change(_, Value::Mark(mark)) => Some(mark.raw()),
        _ => None,
    };
    Some(IpsetEntry { mark, ..*entry })
}

fn address(operation: &Operation) -> Option<IpAddr> {
    match operation.object() {
        Object::Address(address) => Some(*address),
        _ => None,
    }
}

fn command(operation: &Operation) -> Option<IpvsCommand> {
    Some(match operation {
        Operation::Add(Object::Server(server), Value::Scheduling(scheduling)) => {
            IpvsCommand::AddServer(*server, scheduling.clone())
        }
        Operation::Change(Object::Server(server), Value::Scheduling(scheduling)) => {
            IpvsCommand::SetServer(*server, scheduling.clone())
        }
        Operation::Remove(Object::Server(server)) => IpvsCommand::DeleteServer(*server),
        Operation::Add(Object::Destination(server, to), Value::Weight(weight)) => {
            IpvsCommand::AddDestination(*server, destination(*to, *weight))
        }
        Operation::Change(Object::Destination(server, to), Value::Weight(weight)) => {
            IpvsCommand::SetDestination(*server, destination(*to, *weight))
        }
        Operation::Remove(Object::Destination(server, to)) => IpvsCommand::DeleteDestination(*server, *to),
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

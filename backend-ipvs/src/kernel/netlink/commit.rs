//! Executes operations. Consecutive operations of one kind are sent together.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use netlink::{
    Errno, RejectedRequest,
    ipset::IpsetEntry,
    ipvs::{Destination, IpvsCommand, PERSISTENT, Scheduling, VirtualServerKey},
    rtnl,
};
use nix::libc;

use super::{super::Rejected, Worker, device};
use crate::{
    object::{Object, Value, Weight},
    plan::Operation,
    set::SetId,
};

/// Replaces a scheduler that the kernel does not have. `ip_vs_rr` comes with IPVS everywhere.
const FALLBACK_SCHEDULER: &str = "rr";

/// The reaction to a rejected command.
enum NextAttempt {
    /// Nothing: the object is as desired.
    None,
    /// Report the rejection.
    Reject,
    /// Execute the changed command.
    Retry,
}

/// Operations that are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchKind {
    AddEntries(SetId),
    DeleteEntries(SetId),
    AddAddresses,
    DeleteAddresses,
    Commands,
}

// === impl Worker ===

impl Worker {
    /// See [`super::Kernel::commit`].
    pub(super) fn commit(&mut self, operations: &[Operation]) -> Result<HashMap<usize, Rejected>> {
        if let Some(dry_run) = &mut self.dry_run {
            dry_run.operations.extend_from_slice(operations);
            return Ok(HashMap::new());
        }

        let mut rejected = HashMap::new();
        let mut done = 0;
        for run in operations.chunk_by(|one, other| batch_kind(one) == batch_kind(other)) {
            let requests = match batch_kind(&run[0]) {
                BatchKind::AddEntries(set) => self.ipset.add(set.name(), &entries(run))?,
                BatchKind::DeleteEntries(set) => self.ipset.delete(set.name(), &entries(run))?,
                BatchKind::AddAddresses => rtnl::add_addresses(&device()?, &addresses(run))?,
                BatchKind::DeleteAddresses => rtnl::delete_addresses(&device()?, &addresses(run))?,
                BatchKind::Commands => self.execute(run.iter().filter_map(command).collect(), |index, instead| {
                    rejected.insert(done + index, degraded_operation(&run[index], instead));
                })?,
            };

            for RejectedRequest { index, errno } in requests {
                let object = run.get(index).map(|operation| operation.object().to_string()).unwrap_or_default();
                rejected.insert(done + index, Rejected { reason: format!("{object}: {errno}"), instead: None });
            }
            done += run.len();
        }
        Ok(rejected)
    }

    /// Executes commands, and returns those that were rejected. A rejected command is retried in another form, if there
    /// is one. `degraded` is called with a virtual server that gets the fallback scheduler, because the kernel lacks
    /// its own.
    fn execute(
        &mut self,
        commands: Vec<IpvsCommand>,
        mut degraded: impl FnMut(usize, &Scheduling),
    ) -> Result<Vec<RejectedRequest>> {
        let mut all_rejected = Vec::new();
        let mut round: Vec<(usize, IpvsCommand)> = commands.into_iter().enumerate().collect();
        while !round.is_empty() {
            let commands: Vec<IpvsCommand> = round.iter().map(|(_, command)| command.clone()).collect();
            let rejected = self.ipvs()?.execute(&commands)?;

            let mut next = Vec::new();
            let mut retried = HashSet::new();
            for RejectedRequest { index, errno } in rejected {
                let Some((index, mut command)) = round.get(index).cloned() else { continue };
                match next_attempt(&mut command, errno, &retried) {
                    NextAttempt::None => {}
                    NextAttempt::Reject => all_rejected.push(RejectedRequest { index, errno }),
                    NextAttempt::Retry => {
                        if let IpvsCommand::AddServer(server, scheduling) | IpvsCommand::SetServer(server, scheduling) =
                            &command
                        {
                            retried.insert(*server);
                            if errno.0 == libc::ENOENT {
                                degraded(index, scheduling);
                            }
                        }
                        next.push((index, command));
                    }
                }
            }
            round = next;
        }
        Ok(all_rejected)
    }
}

/// The reaction to a rejected command, which is changed for a retry. `retried`: the virtual servers of earlier commands
/// that are retried.
fn next_attempt(command: &mut IpvsCommand, errno: Errno, retried: &HashSet<VirtualServerKey>) -> NextAttempt {
    match (&mut *command, errno.0) {
        // Another process was faster: an existing object is changed, and a missing object needs no deletion.
        (IpvsCommand::AddServer(server, scheduling), libc::EEXIST) => {
            *command = IpvsCommand::SetServer(*server, scheduling.clone());
        }
        (IpvsCommand::AddDestination(server, destination), libc::EEXIST) => {
            *command = IpvsCommand::SetDestination(*server, *destination);
        }
        (IpvsCommand::DeleteServer(_), libc::ESRCH)
        | (IpvsCommand::DeleteDestination(..), libc::ESRCH | libc::ENOENT) => return NextAttempt::None,
        // The kernel has no such scheduler. The flags of another scheduler do not apply to the fallback.
        (IpvsCommand::AddServer(_, scheduling) | IpvsCommand::SetServer(_, scheduling), libc::ENOENT)
            if *scheduling.scheduler != *FALLBACK_SCHEDULER =>
        {
            scheduling.scheduler = FALLBACK_SCHEDULER.into();
            scheduling.flags &= PERSISTENT;
        }
        // It depends on a virtual server that is retried.
        (IpvsCommand::AddDestination(server, _), libc::ESRCH) if retried.contains(server) => {}
        _ => return NextAttempt::Reject,
    }
    NextAttempt::Retry
}

fn degraded_operation(operation: &Operation, instead: &Scheduling) -> Rejected {
    let object = operation.object();
    let reason = match operation.value() {
        Some(Value::Scheduling(Scheduling { scheduler, .. })) => format!(
            "{object}: the kernel has no scheduler {scheduler} (module ip_vs_{scheduler}), it is {} \
             until the Service or the backend changes",
            instead.scheduler
        ),
        _ => object.to_string(),
    };
    Rejected { reason, instead: Some(Value::Scheduling(instead.clone())) }
}

fn batch_kind(operation: &Operation) -> BatchKind {
    let removes = operation.value().is_none();
    match operation.object() {
        Object::SetEntry(set, _) if removes => BatchKind::DeleteEntries(*set),
        Object::SetEntry(set, _) => BatchKind::AddEntries(*set),
        Object::Address(_) if removes => BatchKind::DeleteAddresses,
        Object::Address(_) => BatchKind::AddAddresses,
        Object::Server(_) | Object::Destination(..) => BatchKind::Commands,
    }
}

fn entries(operations: &[Operation]) -> Vec<IpsetEntry> {
    let mut entries = Vec::with_capacity(operations.len());
    for operation in operations {
        let Object::SetEntry(_, entry) = operation.object() else { continue };
        let mark = match operation.value() {
            Some(Value::Mark(mark)) => Some(mark.raw()),
            _ => None,
        };
        entries.push(IpsetEntry { mark, ..*entry });
    }
    entries
}

fn addresses(operations: &[Operation]) -> Vec<IpAddr> {
    let mut addresses = Vec::with_capacity(operations.len());
    for operation in operations {
        if let Object::Address(address) = operation.object() {
            addresses.push(*address);
        }
    }
    addresses
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
fn destination(address: SocketAddr, weight: Weight) -> Destination {
    match weight {
        Weight::Of(weight) => Destination::new(address, weight),
        Weight::Draining(until) => {
            Destination { upper_threshold: until, lower_threshold: until, ..Destination::new(address, 0) }
        }
    }
}

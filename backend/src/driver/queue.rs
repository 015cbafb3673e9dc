//! The service ports that are to be programmed, and which of them the next transaction contains.
//!
//! ```text
//!   1. cluster DNS and the API server, without the others if those do not fit into the same transaction
//!   2. alternately: the namespaces with the fewest pending writes, their smallest service ports first
//!                   the service ports that have waited longest
//! ```
//!
//! So a change of one namespace waits for at most two transactions of another namespace that has more pending writes,
//! and no service port waits forever. A batch that the kernel rejected without naming a service port is bisected;
//! between two attempts, other service ports are programmed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proto::model::ServicePortKey;

use crate::NodeState;

/// The urgent service ports get a transaction of their own if at least this many others are queued.
const MIN_OTHERS: usize = 256;

/// The dirty service ports. A service port that changes again keeps its position: only its latest state counts.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: BTreeMap<ServicePortKey, QueueEntry>,
    /// Parts of batches that the kernel rejected, to be tried on their own, the last part first. Their service ports
    /// are among the entries, too, and stay there when a part is taken, until [`Self::done`] removes them.
    pub(super) suspects: Vec<Vec<ServicePortKey>>,
    /// Whether the base ruleset has to be programmed again.
    pub(super) facts: bool,
    /// The number of calls of [`Self::push`], and of [`Self::next`].
    pushed: u64,
    taken: u64,
}

#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    /// Ascends in the order in which service ports are queued.
    arrival: u64,
    /// The number of kernel objects to write, or an estimate; `None`: not computed since the last change.
    writes: Option<usize>,
    is_urgent: bool,
}

impl Queue {
    /// Adds a service port, or records that it has changed again.
    pub(super) fn push(&mut self, key: ServicePortKey, state: &NodeState) {
        let port = state.service_port(&key).map_or(0, |service_port| service_port.port.port.get());
        let arrival = self.pushed;
        self.pushed += 1;
        let is_urgent = is_urgent(&key, port);
        let entry = self.entries.entry(key).or_insert(QueueEntry { arrival, writes: None, is_urgent });
        entry.writes = None;
        entry.is_urgent = is_urgent;
    }

    /// A service port is programmed, or the kernel has rejected it.
    pub(super) fn done(&mut self, key: &ServicePortKey) {
        self.entries.remove(key);
    }

    /// A service port was programmed in part, by a transaction with this many writes. Its remaining writes are
    /// estimated, because their computation takes as long as a transaction if the service port is large.
    pub(super) fn unfinished(&mut self, key: &ServicePortKey, writes: usize) {
        if let Some(QueueEntry { writes: Some(left), .. }) = self.entries.get_mut(key) {
            *left = left.saturating_sub(writes).max(1);
        }
    }

    /// What is left to write for a service port has changed.
    pub(super) fn changed(&mut self, key: &ServicePortKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.writes = None;
        }
    }

    pub(super) fn contains(&self, key: &ServicePortKey) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.suspects.is_empty() && !self.facts
    }

    /// The service ports that are not programmed.
    pub(super) fn service_ports(&self) -> BTreeSet<ServicePortKey> {
        self.entries.keys().cloned().collect()
    }

    /// The next batch, of at most `budget` writes unless one service port alone has more. `writes` computes the number
    /// of writes of a service port.
    pub(super) fn next(
        &mut self,
        budget: usize,
        mut writes: impl FnMut(&ServicePortKey) -> usize,
    ) -> Vec<ServicePortKey> {
        self.taken += 1;
        let is_second = self.taken.is_multiple_of(2);
        let has_others = self.entries.len() > self.suspects.iter().map(Vec::len).sum::<usize>();
        if (is_second || !has_others)
            && let Some(suspects) = self.suspects.pop()
        {
            return self.first_suspects(suspects, budget, writes);
        }

        let suspected: HashSet<&ServicePortKey> = self.suspects.iter().flatten().collect();
        let others = || self.entries.iter().filter(|(key, _)| !suspected.contains(key));
        if budget == usize::MAX {
            return others().map(|(key, _)| key.clone()).collect();
        }

        // The urgent ones do not wait until the writes of all others are computed.
        let urgent: Vec<_> = others().filter(|(_, entry)| entry.is_urgent).map(|(key, _)| key.clone()).collect();
        if !urgent.is_empty() && others().count() - urgent.len() >= MIN_OTHERS {
            return urgent;
        }

        for (key, entry) in &mut self.entries {
            entry.writes.get_or_insert_with(|| writes(key));
        }
        let entries: Vec<_> = self.entries.iter().collect();
        let mut order = Vec::with_capacity(entries.len());
        for namespace in entries.chunk_by(|(one, _), (other, _)| one.namespace == other.namespace) {
            let of_namespace: usize = namespace.iter().filter_map(|(_, entry)| entry.writes).sum();
            let others = namespace.iter().filter(|(key, _)| !suspected.contains(key));
            order.extend(others.map(|(key, entry)| {
                (!entry.is_urgent, of_namespace, entry.writes.unwrap_or_default(), entry.arrival, *key)
            }));
        }

        if is_second {
            order.sort_unstable_by_key(|(is_not_urgent, .., arrival, _)| (*is_not_urgent, *arrival));
        } else {
            order.sort_unstable();
        }
        let count = fitting(order.iter().map(|(_, _, writes, ..)| *writes), budget);
        order[..count].iter().map(|(.., key)| (*key).clone()).collect()
    }

    /// The first of these suspects that fit into the budget. The rest waits for its turn.
    fn first_suspects(
        &mut self,
        mut suspects: Vec<ServicePortKey>,
        budget: usize,
        writes: impl FnMut(&ServicePortKey) -> usize,
    ) -> Vec<ServicePortKey> {
        let rest = suspects.split_off(fitting(suspects.iter().map(writes), budget));
        if !rest.is_empty() {
            self.suspects.push(rest);
        }
        suspects
    }

    /// Whether nothing but this batch is queued.
    pub(super) fn has_only(&self, batch: &[ServicePortKey]) -> bool {
        batch.len() == self.entries.len() && batch.iter().all(|key| self.contains(key)) && self.suspects.is_empty()
    }
}

/// How many of the first writes fit into a budget: at least one that is not 0.
fn fitting(writes: impl Iterator<Item = usize>, budget: usize) -> usize {
    let mut sum = 0_usize;
    let fits = |writes: &usize| {
        let before = sum;
        sum = sum.saturating_add(*writes);
        before == 0 || sum <= budget
    };
    writes.take_while(fits).count()
}

const DNS: u16 = 53;

/// Whether this is the API server's Service (`default/kubernetes`) or cluster DNS: any Service with port 53 in
/// `kube-system`.
pub(super) fn is_urgent(key: &ServicePortKey, port: u16) -> bool {
    match (&*key.namespace, &*key.name) {
        ("default", "kubernetes") => true,
        ("kube-system", _) => port == DNS,
        _ => false,
    }
}

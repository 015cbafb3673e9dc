//! Compares the kernel with the applied state from time to time, because IPVS, ipset and addresses have no sufficient
//! notifications: whether our objects still exist, and whether destinations have drained.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    time::Duration,
};

use anyhow::Result;
use backend::Drift;
use netlink::ipvs::VirtualServerKey;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{IpvsDataPlane, MAX_TRANSACTION_WRITES, now};
use crate::{
    applied::AppliedState,
    kernel::{Connections, Kernel, Summary},
    object::{Object, Value, Weight},
    plan::{Objects, Operation, destinations},
    set::SetId,
};

/// The shortest interval between two checks.
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The longest interval between two checks.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// The interval between two checks, as a multiple of the duration of a check: 4 % of a core.
const INTERVAL_FACTOR: u32 = 25;

/// The longest time without a check while changes arrive without a pause: then a transaction begins with a check.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(60);

/// The interval after a check of this duration.
fn interval(took: Duration) -> Duration {
    took.saturating_mul(INTERVAL_FACTOR).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

#[expect(private_bounds, reason = "only this crate calls these methods")]
impl<K: Kernel> IpvsDataPlane<K> {
    /// Returns when another process has, or may have, changed our objects. May be dropped while it waits.
    pub(super) async fn watch(&mut self, applied: &mut Option<AppliedState>) -> Drift {
        loop {
            tokio::time::sleep_until(self.next_check).await;
            let begun = Instant::now();
            // If this check is dropped, which may happen at once, the next check does not follow at once.
            self.next_check = begun + MIN_INTERVAL;
            let checked = self.check(applied).await;
            self.next_check = Instant::now() + interval(begun.elapsed());
            self.overdue_at = Instant::now() + MAX_DELAY;

            match checked {
                Ok(None) => {}
                Ok(Some(drift)) => return drift,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot read the kernel to detect changes");
                    return Drift::Outdated;
                }
            }
        }
    }

    /// Compares the kernel with the applied state, and deletes drained destinations.
    async fn check(&mut self, applied: &mut Option<AppliedState>) -> Result<Option<Drift>> {
        let Some(known) = applied else {
            if mem::take(&mut self.is_removing) {
                return Ok(Some(Drift::Outdated));
            }
            // After a preview: there is nothing to compare the kernel with.
            return std::future::pending().await;
        };
        if let Some(drift) = self.changed(known).await? {
            return Ok(Some(drift));
        }

        known.idle = self.all_drained(known).await?;
        // If the removal fails or is cancelled, the content of the kernel is unknown.
        if !known.idle.is_empty()
            && let Some(mut known) = applied.take()
        {
            self.is_removing = true;
            let removed = self.change(&mut known, BTreeSet::new(), 0, MAX_TRANSACTION_WRITES).await?.operations;
            self.is_removing = false;
            *applied = Some(known);
            debug!(removed, "removed destinations whose connections have ended");
        }
        Ok(None)
    }

    /// The objects that another process has, or may have, changed. Takes over the addresses of other devices if no
    /// object depends on an address that differs.
    pub(super) async fn changed(&mut self, known: &mut AppliedState) -> Result<Option<Drift>> {
        let summary = self.kernel.summary().await?;
        let mut object = missing(known, &summary);
        if object.is_none() && self.next_rules_check <= Instant::now() {
            let begun = Instant::now();
            let has_rules = self.kernel.has_rules(known.rules.clone()).await?;
            self.next_rules_check = Instant::now() + interval(begun.elapsed());
            if !has_rules {
                object = Some("rules");
            }
        }
        if let Some(object) = object {
            return Ok(Some(Drift::Changed { object: object.to_owned(), process: "unknown".to_owned(), pid: 0 }));
        }

        let mut differing = summary.elsewhere.symmetric_difference(&known.foreign_addresses);
        let node_ports = &self.settings.dataplane.nodeport_addresses;
        if differing.any(|address| known.has_vip_at(*address) || node_ports.serve(address)) {
            return Ok(Some(Drift::Outdated));
        }
        known.foreign_addresses = summary.elsewhere;
        Ok(None)
    }

    /// As [`Self::drained`], of all virtual servers. A transaction reads them again when as many more destinations
    /// drain as these virtual servers have now, so that the cost of a read is in proportion to the changes since the
    /// last read.
    pub(super) async fn all_drained(&mut self, applied: &AppliedState) -> Result<HashSet<Object>> {
        self.forget_other_drains(&applied.observed);
        let servers = applied.draining_servers();
        let count = |server: &VirtualServerKey| destinations(&applied.observed, *server).count();
        let all: usize = servers.iter().map(count).sum();
        let idle = self.drained(applied, servers).await?;
        let in_use = applied.draining.len() - idle.len();
        self.max_draining = in_use + MAX_TRANSACTION_WRITES.max(all - idle.len());
        Ok(idle)
    }

    /// The draining destinations of these virtual servers whose connections have ended or whose time is over. If the
    /// virtual server is removed too, only established connections count: its address may be needed elsewhere.
    pub(super) async fn drained(
        &mut self,
        applied: &AppliedState,
        servers: HashSet<VirtualServerKey>,
    ) -> Result<HashSet<Object>> {
        let mut idle = HashSet::new();
        if servers.is_empty() {
            return Ok(idle);
        }

        let connections = self.kernel.connections(servers.iter().copied().collect()).await?;
        let now = Instant::now();
        for server in servers {
            let is_needed = applied.desired(&Object::Server(server)).is_some();
            for (object, value) in destinations(&applied.observed, server) {
                let (Object::Destination(_, address), Value::Weight(Weight::Draining(until))) = (object, value) else {
                    continue;
                };
                let Connections { active, inactive } =
                    connections.get(&(server, *address)).copied().unwrap_or_default();
                let has_ended = active == 0 && (inactive == 0 || !is_needed);
                let is_over = self.drain_deadline(*object, *until) <= now;
                if (has_ended || is_over) && applied.draining.contains(object) {
                    idle.insert(*object);
                }
            }
        }
        Ok(idle)
    }

    /// Records when the destinations that begin to drain are deleted at the latest.
    pub(super) fn record_drains(&mut self, operations: &[Operation]) {
        for operation in operations {
            if let Operation::Change(object, Value::Weight(Weight::Draining(until))) = operation {
                self.drain_deadline(*object, *until);
            }
        }
    }

    /// Forgets the deadlines of destinations that do not drain any more.
    pub(super) fn forget_other_drains(&mut self, observed: &Objects) {
        let drains = |object: &Object, until| observed.get(object) == Some(&Value::Weight(Weight::Draining(until)));
        self.drain_deadlines.retain(|(object, until), _| drains(object, *until));
    }

    /// When a destination for which the kernel stores this time is deleted at the latest. The wall clock counts only
    /// when this process sees it for the first time: soon after the drain has begun, or after a restart.
    fn drain_deadline(&mut self, object: Object, until: u32) -> Instant {
        let remaining = || Duration::from_secs(until.saturating_sub(now()).into()).min(self.settings.drain);
        *self.drain_deadlines.entry((object, until)).or_insert_with(|| Instant::now() + remaining())
    }
}

/// The kind of our objects of which any are missing, or entries have changed.
fn missing(applied: &AppliedState, summary: &Summary) -> Option<&'static str> {
    let is_used = |set: &SetId| !applied.rules[set.family].is_empty();
    let mut sets: HashMap<SetId, usize> = SetId::all().filter(is_used).map(|set| (set, 0)).collect();
    let mut addresses = 0;
    let mut has_servers = true;
    for object in applied.observed.keys() {
        match object {
            Object::SetEntry(set, _) => *sets.entry(*set).or_default() += 1,
            Object::Address(_) => addresses += 1,
            Object::Server(server) => has_servers &= summary.servers.contains(server),
            Object::Destination(..) => {}
        }
    }

    let has_all_sets = summary.sets.keys().filter(|set| is_used(set)).count() == sets.len();
    if !has_all_sets || sets.iter().any(|(set, size)| summary.sets.get(set) != Some(size)) {
        Some("sets")
    } else if !has_servers {
        Some("virtual servers")
    } else if summary.addresses < addresses {
        // More addresses are no drift, because other processes may have added excluded addresses.
        Some("addresses")
    } else {
        None
    }
}

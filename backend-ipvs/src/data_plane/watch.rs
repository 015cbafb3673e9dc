//! Compares the kernel with the applied state from time to time, because IPVS, ipset and addresses have no
//! notifications that would do: whether our objects are still there, and whether destinations have drained.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
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
    object::Object,
    set::SetId,
};

/// The interval between two checks, if they take no time.
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// The longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// The interval in between, as a multiple of the duration of a check: 4 % of a core.
const INTERVAL_FACTOR: u32 = 25;

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
            let checked = self.check(applied).await;
            self.next_check = Instant::now() + interval(begun.elapsed());
            match checked {
                Ok(None) => {}
                Ok(Some(drift)) => return drift,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "cannot read the kernel to detect changes");
                    return Drift::Possible;
                }
            }
        }
    }

    async fn check(&mut self, applied: &mut Option<AppliedState>) -> Result<Option<Drift>> {
        let Some(known) = applied else { return std::future::pending().await };
        let summary = self.kernel.summary().await?;
        let mut object = missing(known, &summary);
        if object.is_none() && self.next_rules_check <= Instant::now() {
            let begun = Instant::now();
            let has_rules = self.kernel.has_rules(known.rules.clone()).await?;
            self.next_rules_check = Instant::now() + interval(begun.elapsed());
            object = (!has_rules).then_some("rules");
        }
        if let Some(object) = object {
            return Ok(Some(Drift::Changed { object: object.to_owned(), process: "unknown".to_owned(), pid: 0 }));
        }
        if summary.elsewhere != known.foreign_addresses {
            return Ok(Some(Drift::Possible));
        }
        let servers: HashSet<_> = known.draining().map(|(server, ..)| server).collect();
        // If the removal fails or is cancelled, the content of the kernel is unknown.
        if !servers.is_empty()
            && let Some(mut known) = applied.take()
        {
            let removed = self.remove_drained(&mut known, servers).await?;
            *applied = Some(known);
            if removed > 0 {
                debug!(removed, "removed destinations whose connections have ended");
            }
        }
        Ok(None)
    }

    /// Removes the draining destinations of these virtual servers whose connections have ended or whose time is over.
    /// If the virtual server is removed too, only established connections count: its address may be needed elsewhere.
    pub(super) async fn remove_drained(
        &mut self,
        applied: &mut AppliedState,
        servers: HashSet<VirtualServerKey>,
    ) -> Result<usize> {
        if servers.is_empty() {
            return Ok(0);
        }
        let connections = self.kernel.connections(servers.iter().copied().collect()).await?;
        let now = now();
        let is_idle = |(server, address, until): &(VirtualServerKey, SocketAddr, u32)| {
            let Connections { active, inactive } = connections.get(&(*server, *address)).copied().unwrap_or_default();
            let stays = applied.desired(&Object::Server(*server)).is_some();
            *until <= now || (active == 0 && (inactive == 0 || !stays))
        };
        let draining = applied.draining().filter(|(server, ..)| servers.contains(server));
        let idle: HashSet<_> =
            draining.filter(is_idle).map(|(server, address, _)| Object::Destination(server, address)).collect();
        if idle.is_empty() {
            return Ok(0);
        }
        Ok(self.change(applied, BTreeSet::new(), MAX_TRANSACTION_WRITES, &idle).await?.operations)
    }
}

/// Which objects of ours are missing.
fn missing(applied: &AppliedState, summary: &Summary) -> Option<&'static str> {
    let is_used = |set: &SetId| !applied.rules[set.family].is_empty();
    let mut sets: HashMap<SetId, usize> = SetId::all().filter(is_used).map(|set| (set, 0)).collect();
    let (mut addresses, mut servers) = (0, true);
    for object in applied.observed.keys() {
        match object {
            Object::SetEntry(set, _) => *sets.entry(*set).or_default() += 1,
            Object::Address(_) => addresses += 1,
            Object::Server(server) => servers &= summary.servers.contains(server),
            Object::Destination(..) => {}
        }
    }
    if summary.sets.iter().filter(|(set, _)| is_used(set)).count() != sets.len()
        || sets.iter().any(|(set, size)| summary.sets.get(set) != Some(size))
    {
        Some("sets")
    } else if !servers {
        Some("virtual servers")
    } else {
        // Addresses that are excluded may have been added by other processes.
        (summary.addresses < addresses).then_some("addresses")
    }
}

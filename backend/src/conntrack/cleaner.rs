//! Deletes stale UDP flows after the backend has programmed a state and before it programs the next one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::{AddressFamily, conntrack::ConntrackHandle};
use proto::model::{IpFamily, PerFamily, Protocol, ServicePortFailure};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tracing::{debug, info};

use super::{ConntrackCleanup, UdpVips};
use crate::{NodeState, metrics::Metrics, pending::Work};

/// The number of flows that are deleted together.
const BATCH: usize = 256;

/// Decides when to clean up, cleans up, and counts.
#[derive(Debug)]
pub(crate) struct ConntrackCleaner {
    mode: ConntrackCleanup,
    metrics: Arc<Metrics>,
    repeated: Repeated,
    /// The flows deleted since the start.
    pub(crate) deleted_flows: u64,
    /// The failed cleanups since the start.
    pub(crate) failures: u64,
}

/// The cleanup of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilyCleanup {
    family: IpFamily,
    pub(crate) deleted: usize,
    took: Duration,
}

impl ConntrackCleaner {
    pub(crate) fn new(mode: ConntrackCleanup, metrics: Arc<Metrics>) -> Self {
        Self { mode, metrics, repeated: Repeated::default(), deleted_flows: 0, failures: 0 }
    }

    /// Cleans up after `work`, which has programmed `state` except for `failures`. The backend must wait until this
    /// returns: a flow to an endpoint that is newer than `state` would be taken for stale.
    pub(crate) async fn clean_up(&mut self, work: &Work, state: &NodeState, failures: &[ServicePortFailure]) {
        let is_due = concerns_udp(work) || self.repeated.is_failing();
        if self.mode == ConntrackCleanup::Disabled || !is_due {
            return;
        }
        let failed: Vec<_> = failures.iter().map(|failure| &failure.key).collect();
        let mut vips = UdpVips::of(state, &failed);
        let begun = Instant::now();
        // The thread inherits the network namespace.
        let result = tokio::task::spawn_blocking(move || clean_up(&mut vips)).await;
        match result.context("the cleanup task failed").flatten() {
            Ok(cleanups) => self.succeeded(&cleanups, begun.elapsed()),
            Err(error) => {
                let error = format!("{error:#}");
                let occurrence = self.repeated.failed(&error);
                warn_if_news!(occurrence, error, "cannot delete stale UDP flows, retrying after the next change");
                self.failures += 1;
            }
        }
    }

    fn succeeded(&mut self, cleanups: &[FamilyCleanup], took: Duration) {
        if let Some(Recovery { count, duration }) = self.repeated.recovered() {
            info!(failures = count, after_ms = duration.as_millis(), "stale UDP flows can be deleted again");
        }
        let flows: usize = cleanups.iter().map(|cleanup| cleanup.deleted).sum();
        let took_ms = took.as_micros() as f64 / 1e3;
        if flows == 0 {
            debug!(took_ms, "no stale UDP flows");
        } else {
            info!(flows, took_ms, "deleted stale UDP flows");
        }
        self.deleted_flows += flows as u64;
        for FamilyCleanup { family, deleted, took } in cleanups {
            self.metrics.conntrack_cleanup(*family, *took, *deleted);
        }
    }
}

/// Whether flows may have become stale: an endpoint, a VIP or an address of the node may have changed.
fn concerns_udp(work: &Work) -> bool {
    match work {
        Work::Reconcile => true,
        Work::Apply(changes) => changes.node || changes.service_ports.iter().any(|key| key.protocol == Protocol::Udp),
    }
}

/// Deletes the stale flows of both families. Blocks. A family without UDP services is skipped.
pub(crate) fn clean_up(vips: &mut PerFamily<UdpVips>) -> Result<Vec<FamilyCleanup>> {
    let addresses = netlink::rtnl::addresses().context("cannot list the node's addresses")?;
    let mut cleanups = Vec::new();
    for (family, conntrack_family) in IpFamily::ALL.into_iter().zip(AddressFamily::ALL) {
        let vips = &mut vips[family];
        // Without VIPs no flow can be stale.
        if vips.vips.is_empty() {
            continue;
        }
        vips.addresses.extend(&addresses);
        let begun = Instant::now();
        let deleted = clean_up_family(conntrack_family, vips).with_context(|| format!("{family} flows"))?;
        cleanups.push(FamilyCleanup { family, deleted, took: begun.elapsed() });
    }
    Ok(cleanups)
}

/// Deletes while the kernel dumps, so that memory does not grow with the number of flows.
fn clean_up_family(family: AddressFamily, vips: &UdpVips) -> netlink::Result<usize> {
    let (mut reader, mut deleter) = (ConntrackHandle::open()?, ConntrackHandle::open()?);
    let (mut stale, mut deleted) = (Vec::new(), 0);
    reader.udp_flows(family, |flow| {
        if vips.is_stale(&flow) {
            stale.push(flow);
        }
        if stale.len() == BATCH {
            deleted += deleter.delete(&stale)?;
            stale.clear();
        }
        Ok(())
    })?;
    deleted += deleter.delete(&stale)?;
    Ok(deleted)
}

#[cfg(test)]
mod tests;

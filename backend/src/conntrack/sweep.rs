//! Deletes stale UDP flows, after the backend has put a state in force and before the next one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::AddressFamily as Kernel;
use netlink::conntrack::ConntrackHandle;
use proto::model::{IpFamily, PerFamily, Protocol, ServicePortFailure};
use tracing::{debug, info, warn};

use super::{ConntrackCleanup, Vips};
use crate::{NodeState, metrics::Metrics, pending::Work};

/// So many flows are gathered before they are deleted.
const BATCH: usize = 256;

/// Decides when to look, looks, and counts.
#[derive(Debug)]
pub(crate) struct Sweeper {
    conntrack: ConntrackCleanup,
    metrics: Arc<Metrics>,
    owed: Owed,
    /// Flows deleted since the start.
    pub(crate) deleted: u64,
    /// How often it could not be done, since the start.
    pub(crate) failed: u64,
}

/// What was done to the flows of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swept {
    family: IpFamily,
    pub(crate) deleted: usize,
    took: Duration,
}

/// What an earlier failure has left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Nothing,
    Sweep,
}

impl Sweeper {
    pub(crate) fn new(conntrack: ConntrackCleanup, metrics: Arc<Metrics>) -> Self {
        Self { conntrack, metrics, owed: Owed::Nothing, deleted: 0, failed: 0 }
    }

    /// The backend has done `work` and `state` is in force, but for `failures`. It must do nothing else until this returns: a
    /// flow to an endpoint that is newer than `state` would be taken for stale.
    pub(crate) async fn follow(&mut self, work: &Work, state: &NodeState, failures: &[ServicePortFailure]) {
        if self.conntrack == ConntrackCleanup::Disabled || self.owed == Owed::Nothing && !concerns_udp(work) {
            return;
        }
        let failed: Vec<_> = failures.iter().map(|failure| &failure.key).collect();
        let mut vips = Vips::of(state, &failed);
        let begun = Instant::now();
        // In the same network namespace: new threads inherit it.
        let swept = tokio::task::spawn_blocking(move || sweep(&mut vips)).await;
        let swept = swept.context("the thread ended early").flatten();
        let ms = begun.elapsed().as_micros() as f64 / 1e3;
        match swept {
            Ok(swept) => {
                let flows: usize = swept.iter().map(|swept| swept.deleted).sum();
                if flows == 0 {
                    debug!(ms, "no stale UDP flows");
                } else {
                    info!(flows, ms, "stale UDP flows deleted");
                }
                self.deleted += flows as u64;
                for Swept { family, deleted, took } in swept {
                    self.metrics.swept(family, took, deleted);
                }
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), "stale UDP flows may be left, until the next change");
                self.failed += 1;
                self.owed = Owed::Sweep;
                return;
            }
        }
        self.owed = Owed::Nothing;
    }
}

/// Whether a flow may have become stale: an endpoint, a VIP or an address of the node has come or gone.
fn concerns_udp(work: &Work) -> bool {
    match work {
        Work::Reconcile => true,
        Work::Apply(changes) => changes.node || changes.service_ports.iter().any(|key| key.protocol == Protocol::Udp),
    }
}

/// Deletes the stale flows of both families. Blocks. A family without UDP services costs nothing, and is not in the answer.
pub(crate) fn sweep(vips: &mut PerFamily<Vips>) -> Result<Vec<Swept>> {
    let addresses = netlink::rtnl::addresses().context("list the node's addresses")?;
    let mut swept = Vec::new();
    for family in IpFamily::ALL {
        let vips = &mut vips[family];
        if vips.is_empty() {
            continue;
        }
        vips.add_addresses(&addresses);
        let begun = Instant::now();
        let deleted = sweep_family(family, vips).with_context(|| format!("{family} flows"))?;
        swept.push(Swept { family, deleted, took: begun.elapsed() });
    }
    Ok(swept)
}

/// Deletes while the kernel dumps, so that no number of flows takes much memory.
fn sweep_family(family: IpFamily, vips: &Vips) -> netlink::Result<usize> {
    let family = match family {
        IpFamily::V4 => Kernel::V4,
        IpFamily::V6 => Kernel::V6,
    };
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

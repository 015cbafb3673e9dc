//! Deletes stale UDP flows and half-open TCP connections in a thread of its own, so that a large conntrack table delays
//! no commit.
//!
//! ```text
//!   before a sync: prepare ──▶ updates (the latest of each service port) ──▶ thread: UdpVips ──▶ flows to delete
//!                     └─ VIPs that are lost ─▶ updates, when programmed ─────────────▲
//!   after a sync: programmed ──▶ due: one cleanup for all syncs meanwhile ──────────┘
//! ```
//!
//! The thread compares with the newest state, even if that is being programmed: a flow to an endpoint that is about to
//! be added is not stale. A flow that the kernel creates by the previous state is deleted after the sync.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink::{
    AddressFamily,
    conntrack::{ConntrackHandle, Flow, FlowProtocol},
};
use proto::model::{IpFamily, PerFamily, Protocol, ServicePortKey};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{debug, error, info};

use super::{
    ConntrackCleanup, UdpServicePort, UdpVips, WithdrawnVips,
    half_open::{ChangedPorts, HalfOpenPorts},
    requests::CleanupRequests,
};
use crate::{Changes, DepartedEndpoints, NodeState, Progress, backend::Work, metrics::Metrics};

/// The number of flows that are deleted together.
const BATCH: usize = 256;

/// The most VIPs that were withdrawn and wait for a cleanup. Flows to others stay until their clients end them.
const MAX_WITHDRAWN: usize = 65_536;

/// The sync loop's side. None of its calls blocks. Dropping it ends the thread after the current cleanup.
#[derive(Debug)]
pub(crate) struct ConntrackCleaner {
    requests: Option<CleanupRequests<Updates>>,
    /// The UDP service ports, as they were last recorded.
    service_ports: BTreeMap<ServicePortKey, UdpServicePort>,
    /// The VIPs that they have lost, while the kernel may still have these.
    withdrawn: WithdrawnVips,
    /// The TCP service ports that changed, while the kernel may still have them as they were.
    changed: ChangedPorts,
    /// The UDP service ports that are not programmed as they were last recorded.
    unfinished: BTreeSet<ServicePortKey>,
    /// Whether any flow may become stale by what is programmed now: it is a reconcile, or changes the node's addresses.
    concerns_all: bool,
    /// Whether a frontend has confirmed the state that is programmed. Until then no flow is deleted: a state from the
    /// file, or of a frontend that is behind, may lack endpoints that exist.
    is_confirmed: bool,
}

/// What the sync loop has recorded since the thread last took it: one entry at most for each service port.
#[derive(Debug, Default)]
struct Updates {
    /// The UDP service ports that changed; `None`: removed.
    service_ports: BTreeMap<ServicePortKey, Option<UdpServicePort>>,
    /// The VIPs that the kernel no longer has.
    withdrawn: WithdrawnVips,
    /// The TCP service ports whose change is programmed.
    half_open: HalfOpenPorts,
    /// Whether UDP flows may be stale since the last cleanup.
    is_udp_due: bool,
    /// The addresses of the Node object, if they changed.
    node_addresses: Option<Vec<IpAddr>>,
    /// The UDP service ports that are not programmed, if they changed.
    failed: Option<BTreeSet<ServicePortKey>>,
}

/// The flows of the kernel. Every call blocks.
pub(crate) trait FlowTable: Send + 'static {
    /// The addresses of the node's interfaces.
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>>;

    /// Calls `visit` with each flow. It may delete flows.
    fn visit(
        &self,
        family: AddressFamily,
        protocol: FlowProtocol,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()>;

    /// Calls `visit` with each TCP connection whose SYN has not been answered.
    fn visit_half_open(
        &self,
        family: AddressFamily,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()>;

    /// Deletes flows. Returns how many there were.
    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize>;

    /// Deletes those that are still as they were listed, one by one. Returns how many there were.
    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize>;
}

/// The flows of the network namespace of the calling thread.
#[derive(Debug)]
pub(crate) struct KernelFlowTable;

/// The thread's side.
#[derive(Debug)]
struct CleanerThread<T> {
    table: T,
    newest: NewestState,
    progress: watch::Sender<Progress>,
    metrics: Arc<Metrics>,
    repeated: Repeated,
}

/// What the thread knows of the newest state.
#[derive(Debug)]
struct NewestState {
    requests: CleanupRequests<Updates>,
    service_ports: BTreeMap<ServicePortKey, UdpServicePort>,
    /// The VIPs that the kernel no longer has, and whose flows were not deleted yet.
    withdrawn: WithdrawnVips,
    half_open: HalfOpenPorts,
    is_udp_due: bool,
    node_addresses: Vec<IpAddr>,
    failed: BTreeSet<ServicePortKey>,
}

/// The cleanup of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilyCleanup {
    family: IpFamily,
    pub(crate) deleted: usize,
    took: Duration,
}

// === impl ConntrackCleaner ===

impl ConntrackCleaner {
    /// Starts the thread, in the network namespace of the calling thread.
    pub(crate) fn start(
        mode: ConntrackCleanup,
        table: impl FlowTable,
        progress: watch::Sender<Progress>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let with = |requests| Self {
            requests,
            service_ports: BTreeMap::new(),
            withdrawn: WithdrawnVips::new(),
            changed: ChangedPorts::default(),
            unfinished: BTreeSet::new(),
            concerns_all: false,
            is_confirmed: false,
        };
        if mode == ConntrackCleanup::Disabled {
            return with(None);
        }
        let requests = CleanupRequests::default();
        let newest = NewestState {
            requests: requests.clone(),
            service_ports: BTreeMap::new(),
            withdrawn: WithdrawnVips::new(),
            half_open: HalfOpenPorts::default(),
            is_udp_due: false,
            node_addresses: Vec::new(),
            failed: BTreeSet::new(),
        };
        let thread = CleanerThread { table, newest, progress, metrics, repeated: Repeated::default() };
        let started = thread::Builder::new().name("conntrack".to_owned()).spawn(move || thread.run());
        if let Err(error) = started {
            error!(%error, "cannot start the thread that deletes stale UDP flows");
            return with(None);
        }
        with(Some(requests))
    }

    /// Records a commit, at a cost proportional to the change. `departed`: the endpoints that left service ports;
    /// `None`: the commit before is not comparable.
    pub(crate) fn committed(&mut self, changes: &Changes, departed: Option<&DepartedEndpoints>) {
        if self.requests.is_some() {
            self.changed.committed(changes, departed);
        }
    }

    /// Records what `work` is about to program, at a cost proportional to the change.
    pub(crate) fn prepare(&mut self, work: &Work, state: &NodeState) {
        let Self { requests: Some(requests), service_ports, withdrawn, unfinished, concerns_all, .. } = self else {
            return;
        };
        let is_udp = |key: &&ServicePortKey| key.protocol == Protocol::Udp;
        let update = |key: &ServicePortKey| (key.clone(), state.service_port(key).map(UdpServicePort::of));
        let updates: BTreeMap<_, _> = match work {
            Work::Reconcile => {
                unfinished.clear();
                *concerns_all = true;
                let removed = service_ports.keys().filter(|key| state.service_port(key).is_none());
                state.service_ports().keys().filter(is_udp).chain(removed).map(update).collect()
            }
            Work::Apply(changes) => {
                unfinished.extend(changes.service_ports.iter().filter(is_udp).cloned());
                *concerns_all = changes.node;
                changes.service_ports.iter().filter(is_udp).map(update).collect()
            }
        };
        for (key, now) in &updates {
            let before = match now {
                Some(now) => service_ports.insert(key.clone(), now.clone()),
                None => service_ports.remove(key),
            };
            let lost = before.iter().flat_map(|before| UdpServicePort::lost_since(now.as_ref(), before));
            add_withdrawn(withdrawn, lost.map(|vip| (vip, key.clone())));
        }
        requests.record(|Updates { service_ports, node_addresses, .. }| {
            service_ports.extend(updates);
            if *concerns_all {
                *node_addresses = Some(state.node().addresses.clone());
            }
        });
    }

    /// Requests a cleanup after a call that has programmed all but these service ports, if the state is confirmed.
    pub(crate) fn programmed<'a>(&mut self, failed: impl Iterator<Item = &'a ServicePortKey>) {
        let Self { requests: Some(requests), withdrawn, unfinished, concerns_all, is_confirmed, .. } = self else {
            return;
        };
        let failed: BTreeSet<_> = failed.filter(|key| key.protocol == Protocol::Udp).cloned().collect();
        let is_kept = |(_, key): &(_, ServicePortKey)| failed.contains(key);
        let (kept, gone): (WithdrawnVips, WithdrawnVips) = std::mem::take(withdrawn).into_iter().partition(is_kept);
        *withdrawn = kept;
        let programmed = unfinished.extract_if(.., |key| !failed.contains(key)).count();
        let needs = *concerns_all || programmed > 0 || !gone.is_empty();
        unfinished.extend(failed.iter().cloned());
        let record = |updates: &mut Updates| {
            add_withdrawn(&mut updates.withdrawn, gone);
            updates.failed = Some(failed);
            updates.is_udp_due |= needs;
        };
        if *is_confirmed {
            requests.request(record, needs);
        } else {
            requests.record(record);
        }
    }

    /// Requests a cleanup of half-open connections when everything is programmed, except for these service ports, if
    /// the state is confirmed.
    pub(crate) fn finished<'a>(&mut self, state: &NodeState, failed: impl Iterator<Item = &'a ServicePortKey>) {
        let Self { requests: Some(requests), changed, is_confirmed, .. } = self else { return };
        let half_open = changed.programmed(state, &failed.collect());
        if half_open.is_empty() {
            return;
        }
        let record = |updates: &mut Updates| updates.half_open.update(half_open);
        if *is_confirmed {
            requests.request(record, true);
        } else {
            requests.record(record);
        }
    }

    /// A frontend has confirmed the state, which is programmed. Requests the cleanup that was not before.
    pub(crate) fn confirmed(&mut self) {
        if !std::mem::replace(&mut self.is_confirmed, true)
            && let Some(requests) = &self.requests
        {
            requests.request(|updates| updates.is_udp_due = true, true);
        }
    }

    /// The state is older than what was programmed before.
    pub(crate) fn rolled_back(&mut self) {
        self.is_confirmed = false;
    }
}

impl Drop for ConntrackCleaner {
    fn drop(&mut self) {
        if let Some(requests) = &self.requests {
            requests.close();
        }
    }
}

/// Adds VIPs, up to [`MAX_WITHDRAWN`].
fn add_withdrawn(withdrawn: &mut WithdrawnVips, vips: impl IntoIterator<Item = <WithdrawnVips as IntoIterator>::Item>) {
    withdrawn.extend(vips.into_iter().take(MAX_WITHDRAWN.saturating_sub(withdrawn.len())));
}

// === impl CleanerThread ===

impl<T: FlowTable> CleanerThread<T> {
    fn run(mut self) {
        let requests = self.newest.requests.clone();
        while requests.wait() {
            let begun = Instant::now();
            let mut rested = Duration::ZERO;
            let result = self.clean_up();
            let half_open = self.clean_up_half_open(|time| {
                rested = time;
                requests.rest(time)
            });
            let is_failing = result.is_err() || half_open.is_err();
            let took = begun.elapsed().saturating_sub(rested);
            self.report(result, half_open, took);
            requests.finish(is_failing);
            requests.pause(took);
        }
    }

    /// Deletes the half-open connections that changes have left behind. Lists none without a change of TCP.
    fn clean_up_half_open(&mut self, rest: impl FnOnce(Duration) -> bool) -> Result<usize> {
        let Self { table, newest, .. } = self;
        let mut ports = std::mem::take(&mut newest.half_open);
        if ports.is_empty() {
            return Ok(0);
        }
        let result = ports.clean_up(table, &newest.node_addresses, rest);
        if result.is_err() {
            ports.update(std::mem::take(&mut newest.half_open));
            newest.half_open = ports;
        }
        result
    }

    /// Deletes the stale flows of both families, if there may be any. A family without VIPs is skipped.
    fn clean_up(&mut self) -> Result<Vec<FamilyCleanup>> {
        let Self { table, newest, .. } = self;
        newest.update();
        if !std::mem::take(&mut newest.is_udp_due) {
            return Ok(Vec::new());
        }
        // Those that are withdrawn meanwhile wait for the next cleanup: this one has missed flows to them.
        let withdrawn = std::mem::take(&mut newest.withdrawn);
        let result = clean_up(table, newest.vips(&withdrawn), |vips| {
            let changed = newest.update();
            if changed {
                *vips = newest.vips(&withdrawn);
            }
            changed
        });
        if result.is_err() {
            add_withdrawn(&mut newest.withdrawn, withdrawn);
            newest.is_udp_due = true;
        }
        result
    }

    /// Reports what each half has deleted, also if the other one has failed.
    fn report(&mut self, cleanups: Result<Vec<FamilyCleanup>>, half_open: Result<usize>, took: Duration) {
        let errors: Vec<_> = [cleanups.as_ref().err(), half_open.as_ref().err()].into_iter().flatten().collect();
        if !errors.is_empty() {
            let error = errors.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>().join("; ");
            let occurrence = self.repeated.failed(&error);
            warn_if_news!(occurrence, error, "cannot delete stale flows, retrying after the next change");
            self.progress.send_modify(|progress| progress.conntrack_failures += 1);
        } else if let Some(Recovery { count, duration }) = self.repeated.recovered() {
            info!(failures = count, after_ms = duration.as_millis(), "stale flows can be deleted again");
        }
        if let Ok(connections @ 1..) = half_open {
            info!(connections, "deleted half-open TCP connections to endpoints that departed or to new VIPs");
        }
        let Ok(cleanups) = cleanups else { return };
        let flows: usize = cleanups.iter().map(|cleanup| cleanup.deleted).sum();
        let took_ms = took.as_micros() as f64 / 1e3;
        if flows == 0 {
            debug!(took_ms, "no stale UDP flows");
        } else {
            info!(flows, took_ms, "deleted stale UDP flows");
            self.progress.send_modify(|progress| progress.deleted_flows += flows as u64);
        }
        for FamilyCleanup { family, deleted, took } in cleanups {
            self.metrics.conntrack_cleanup(family, took, deleted);
        }
    }
}

// === impl NewestState ===

impl NewestState {
    /// Takes what the sync loop has recorded. Returns whether anything changed.
    fn update(&mut self) -> bool {
        let updates = self.requests.take();
        let Updates { service_ports, withdrawn, half_open, is_udp_due, node_addresses, failed } = updates;
        add_withdrawn(&mut self.withdrawn, withdrawn);
        self.half_open.update(half_open);
        self.is_udp_due |= is_udp_due || !service_ports.is_empty();
        let mut changed = !service_ports.is_empty();
        for (key, service_port) in service_ports {
            match service_port {
                Some(service_port) => self.service_ports.insert(key, service_port),
                None => self.service_ports.remove(&key),
            };
        }
        if let Some(addresses) = node_addresses {
            changed |= self.node_addresses != addresses;
            self.node_addresses = addresses;
        }
        if let Some(failed) = failed {
            changed |= self.failed != failed;
            self.failed = failed;
        }
        changed
    }

    fn vips(&self, withdrawn: &WithdrawnVips) -> PerFamily<UdpVips> {
        let programmed = self.service_ports.iter().filter(|(key, _)| !self.failed.contains(*key));
        UdpVips::new(programmed.map(|(_, service_port)| service_port), withdrawn, &self.node_addresses)
    }
}

/// Deletes the stale flows of both families while the kernel dumps them, so that memory does not grow with their
/// number. Before each deletion `update` may replace the VIPs; what is not stale by then stays. Blocks.
pub(crate) fn clean_up(
    table: &impl FlowTable,
    mut vips: PerFamily<UdpVips>,
    mut update: impl FnMut(&mut PerFamily<UdpVips>) -> bool,
) -> Result<Vec<FamilyCleanup>> {
    let addresses = table.addresses().context("cannot list the node's addresses")?;
    let mut cleanups = Vec::new();
    for (family, conntrack_family) in IpFamily::ALL.into_iter().zip(AddressFamily::ALL) {
        // Without VIPs no flow can be stale.
        if vips[family].is_empty() {
            continue;
        }
        vips[family].add_addresses(&addresses);
        let begun = Instant::now();
        let mut stale = Vec::new();
        let mut deleted = 0;
        let mut delete = |stale: &mut Vec<Flow>, vips: &mut PerFamily<UdpVips>| {
            if update(vips) {
                vips[family].add_addresses(&addresses);
                stale.retain(|flow| vips[family].is_stale(flow));
            }
            deleted += table.delete(stale)?;
            stale.clear();
            Ok(())
        };
        let visited = table.visit(conntrack_family, FlowProtocol::Udp, &mut |flow| {
            if vips[family].is_stale(&flow) {
                stale.push(flow);
            }
            if stale.len() == BATCH { delete(&mut stale, &mut vips) } else { Ok(()) }
        });
        visited.and_then(|()| delete(&mut stale, &mut vips)).with_context(|| format!("{family} flows"))?;
        cleanups.push(FamilyCleanup { family, deleted, took: begun.elapsed() });
    }
    Ok(cleanups)
}

// === impl KernelFlowTable ===

impl FlowTable for KernelFlowTable {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        netlink::rtnl::addresses()
    }

    fn visit(
        &self,
        family: AddressFamily,
        protocol: FlowProtocol,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        ConntrackHandle::open()?.flows(family, protocol, visit)
    }

    fn visit_half_open(
        &self,
        family: AddressFamily,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        ConntrackHandle::open()?.half_open(family, visit)
    }

    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize> {
        if flows.is_empty() { Ok(0) } else { ConntrackHandle::open()?.delete(flows) }
    }

    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize> {
        let mut handle = ConntrackHandle::open()?;
        let mut deleted = 0;
        for flow in flows {
            if handle.find(flow)?.as_ref() == Some(flow) {
                deleted += handle.delete(std::slice::from_ref(flow))?;
            }
        }
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests;

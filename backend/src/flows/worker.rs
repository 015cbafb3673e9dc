//! Deletes stale UDP flows and half-open TCP connections in a thread of its own, so that a large conntrack table delays
//! no commit.
//!
//! ```text
//!   before a sync: prepare ──▶ updates: the newest state ──▶ thread: UdpVips ──▶ flows to delete
//!                     └─ what differs from the state before: VIPs that are lost, endpoints that departed
//!   after a sync: programmed ──▶ updates, and due: one cleanup for all syncs meanwhile
//! ```
//!
//! The thread compares with the newest state, even if that is being programmed: a flow to an endpoint that is about to
//! be added is not stale. A flow that the kernel creates by the previous state is deleted after the sync.

use std::{
    collections::{BTreeSet, HashSet},
    mem,
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
use proto::{
    model::{IpFamily, PerFamily, Protocol, ServicePortKey},
    state::ServicePortChange,
};
use runtime::{
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{debug, error, info};

use super::{
    ConntrackCleanup,
    half_open::{ChangedPorts, HalfOpenPorts},
    requests::CleanupRequests,
    udp::{UdpVips, WithdrawnVips, lost_vips},
};
use crate::{NodeState, Progress, dataplane::NodePortAddresses, metrics::Metrics};

/// The number of flows that are deleted together.
const BATCH: usize = 256;

/// The most VIPs that were withdrawn and wait for a cleanup. Flows to others stay until their clients end them.
const MAX_WITHDRAWN: usize = 65_536;

/// The programmer's side. None of its calls blocks. Dropping it ends the thread after the current cleanup.
#[derive(Debug)]
pub(crate) struct ConntrackCleaner {
    requests: Option<CleanupRequests<Updates>>,
    /// The state that was last recorded.
    state: NodeState,
    /// The UDP service ports that changed, while the kernel may still have them as they were.
    changed_udp: BTreeSet<ServicePortKey>,
    /// The same of TCP, with the endpoints that departed.
    changed_tcp: ChangedPorts,
    /// The VIPs that UDP service ports have lost, while the kernel may still have these.
    withdrawn: WithdrawnVips,
    /// Whether the facts of the node changed.
    is_node_changed: bool,
    /// Whether a frontend has confirmed the state that is programmed. Until then no flow is deleted: a state from the
    /// file, or of a frontend that is behind, may lack endpoints that exist.
    is_confirmed: bool,
}

/// What was recorded since the thread last took it.
#[derive(Debug, Default)]
struct Updates {
    /// The newest state, which is programmed or about to be.
    state: Option<NodeState>,
    /// The VIPs that the kernel no longer has.
    withdrawn: WithdrawnVips,
    /// The TCP service ports whose change is programmed.
    half_open: HalfOpenPorts,
    /// Whether UDP flows may be stale since the last cleanup.
    is_udp_due: bool,
    /// The UDP service ports that are not programmed, if they changed.
    failed: Option<BTreeSet<ServicePortKey>>,
}

/// The flows of the kernel. Every call blocks.
pub(crate) trait FlowTable: Send + 'static {
    /// The addresses of the node's interfaces that may serve node ports.
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

/// The flows of the network namespace of the calling thread, with the addresses that serve node ports there.
#[derive(Debug)]
pub(crate) struct KernelFlowTable(pub(crate) NodePortAddresses);

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
    nodeport_addresses: NodePortAddresses,
    state: NodeState,
    /// The VIPs that the kernel no longer has, and whose flows were not deleted yet.
    withdrawn: WithdrawnVips,
    half_open: HalfOpenPorts,
    is_udp_due: bool,
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
    /// Starts the thread, in the network namespace of the calling thread. `state`: what the kernel may have.
    pub(crate) fn start(
        mode: ConntrackCleanup,
        nodeport_addresses: NodePortAddresses,
        table: impl FlowTable,
        state: NodeState,
        progress: watch::Sender<Progress>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut cleaner = Self {
            requests: None,
            state: state.clone(),
            changed_udp: BTreeSet::new(),
            changed_tcp: ChangedPorts::default(),
            withdrawn: WithdrawnVips::new(),
            is_node_changed: false,
            is_confirmed: false,
        };
        if mode == ConntrackCleanup::Disabled {
            return cleaner;
        }
        let requests = CleanupRequests::default();
        let newest = NewestState {
            requests: requests.clone(),
            nodeport_addresses,
            state,
            withdrawn: WithdrawnVips::new(),
            half_open: HalfOpenPorts::default(),
            is_udp_due: false,
            failed: BTreeSet::new(),
        };
        let thread = CleanerThread { table, newest, progress, metrics, repeated: Repeated::default() };
        match thread::Builder::new().name("conntrack".to_owned()).spawn(move || thread.run()) {
            Ok(_) => cleaner.requests = Some(requests),
            Err(error) => error!(%error, "cannot start the thread that deletes stale UDP flows"),
        }
        cleaner
    }

    /// Records the state that is about to be programmed, at a cost proportional to the change.
    pub(crate) fn prepare(&mut self, state: &NodeState) {
        let Self { requests: Some(requests), changed_udp, changed_tcp, withdrawn, .. } = self else { return };
        let before = mem::replace(&mut self.state, state.clone());
        self.is_node_changed = before.node() != state.node();
        for change in before.diff(state) {
            let key = change.key;
            changed_tcp.record(&change);
            if key.protocol == Protocol::Udp {
                add_withdrawn(withdrawn, lost_vips(&change).into_iter().map(|vip| (vip, key.clone())));
                changed_udp.insert(key.clone());
            }
        }
        // A cleanup that was requested before must not follow from a state that may lack endpoints.
        if self.is_confirmed {
            requests.record(|updates| updates.state = Some(state.clone()));
        }
    }

    /// A call has programmed what was recorded last, except for these service ports: some that cannot be, and, unless
    /// it `is_finished`, some that will be. Requests a cleanup if the state is confirmed.
    pub(crate) fn programmed<'a>(
        &mut self,
        is_reconcile: bool,
        is_finished: bool,
        failed: impl Iterator<Item = &'a ServicePortKey>,
    ) {
        let Self { requests: Some(requests), state, changed_udp, changed_tcp, withdrawn, .. } = self else { return };
        let failed: BTreeSet<_> = failed.cloned().collect();
        let half_open = if is_finished { changed_tcp.programmed(state, &failed) } else { HalfOpenPorts::default() };
        let is_kept = |(_, key): &(_, ServicePortKey)| failed.contains(key);
        let (kept, gone): (WithdrawnVips, WithdrawnVips) = mem::take(withdrawn).into_iter().partition(is_kept);
        *withdrawn = kept;
        let failed: BTreeSet<_> = failed.into_iter().filter(|key| key.protocol == Protocol::Udp).collect();
        let programmed = changed_udp.extract_if(.., |key| !failed.contains(key)).count();
        changed_udp.extend(failed.iter().cloned());
        let is_udp_due = is_reconcile || self.is_node_changed || programmed > 0 || !gone.is_empty();
        let is_due = is_udp_due || !half_open.is_empty();
        let record = |updates: &mut Updates| {
            add_withdrawn(&mut updates.withdrawn, gone);
            updates.half_open.update(half_open);
            updates.failed = Some(failed);
            updates.is_udp_due |= is_udp_due;
        };
        if self.is_confirmed {
            requests.request(record, is_due);
        } else {
            requests.record(record);
        }
    }

    /// A frontend has confirmed the state, which is programmed. Requests the cleanup that was not before.
    pub(crate) fn confirmed(&mut self) {
        if !mem::replace(&mut self.is_confirmed, true)
            && let Some(requests) = &self.requests
        {
            let record = |updates: &mut Updates| {
                updates.state = Some(self.state.clone());
                updates.is_udp_due = true;
            };
            requests.request(record, true);
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

    /// Deletes the half-open connections that changes have left behind. Lists none without such a change.
    fn clean_up_half_open(&mut self, rest: impl FnOnce(Duration) -> bool) -> Result<usize> {
        let Self { table, newest, .. } = self;
        let mut ports = mem::take(&mut newest.half_open);
        ports.retain_departed(&newest.state);
        if ports.is_empty() {
            return Ok(0);
        }
        let result = ports.clean_up(table, &newest.node_addresses(), rest);
        if result.is_err() {
            ports.update(mem::take(&mut newest.half_open));
            newest.half_open = ports;
        }
        result
    }

    /// Deletes the stale flows of both families, if there may be any. A family without VIPs is skipped.
    fn clean_up(&mut self) -> Result<Vec<FamilyCleanup>> {
        let Self { table, newest, .. } = self;
        newest.update();
        if !mem::take(&mut newest.is_udp_due) {
            return Ok(Vec::new());
        }
        // Those that are withdrawn meanwhile wait for the next cleanup: this one has missed flows to them.
        let withdrawn = mem::take(&mut newest.withdrawn);
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
    /// Takes what was recorded. Returns whether anything changed.
    fn update(&mut self) -> bool {
        let Updates { state, withdrawn, half_open, is_udp_due, failed } = self.requests.take();
        add_withdrawn(&mut self.withdrawn, withdrawn);
        self.half_open.update(half_open);
        let mut changed = false;
        if let Some(state) = state {
            let before = mem::replace(&mut self.state, state);
            let is_udp = |change: ServicePortChange<'_>| change.key.protocol == Protocol::Udp;
            let is_udp_changed = before.diff(&self.state).any(is_udp);
            self.is_udp_due |= is_udp_changed;
            changed = is_udp_changed || before.node().addresses != self.state.node().addresses;
        }
        self.is_udp_due |= is_udp_due;
        if let Some(failed) = failed {
            changed |= self.failed != failed;
            self.failed = failed;
        }
        changed
    }

    /// The addresses of the Node object that serve node ports.
    fn node_addresses(&self) -> Vec<IpAddr> {
        self.nodeport_addresses.of_node(self.state.node())
    }

    fn vips(&self, withdrawn: &WithdrawnVips) -> PerFamily<UdpVips> {
        UdpVips::of(&self.state, &self.node_addresses(), &self.failed, withdrawn)
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
        let mut addresses = netlink::rtnl::addresses()?;
        // Loopback addresses may serve node ports of iptables, whatever the option says.
        addresses.retain(|address| address.is_loopback() || self.0.contain(address));
        Ok(addresses)
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

//! Whether the nodes that are connected here still send new connections to a pod that ends.
//!
//! ```text
//!   EndpointSlices ──▶ in use until all entries of the pod are terminating and no pool has it
//!                          │ revision R
//!   Acks ─────────────────▶└─▶ behind until all nodes have programmed R ──▶ drained
//! ```
//!
//! A pod is asked about while it ends, perhaps before its EndpointSlice says so. An address that is in no slice, or in
//! one that does not call it terminating, is therefore never drained. The slices of a pod are written by one controller
//! and watched in the order of their versions: after one that is terminating, none that is ready can follow.

use std::{collections::BTreeSet, mem, net::IpAddr, sync::Arc, time::Duration};

use proto::{model::Revision, node_set::NodeSet};
use runtime::Shutdown;
use tokio::time::{sleep, timeout};

use crate::{
    context::FrontendContext,
    object::ObjectName,
    streams::{Fleet, MAX_LISTED, StreamStatus},
    waiting_drains::{DrainState, WaitingEntry},
};

/// How long a node without a stream may be about to connect to another frontend.
const LEFT: Duration = Duration::from_secs(10);
/// For how long a node that acknowledges, but does not program, is waited for.
const MAX_LAG: Duration = Duration::from_secs(60);
/// How often is checked whether failures of nodes have ended, of which there is no notification.
const FAILURES_INTERVAL: Duration = Duration::from_millis(250);

/// One question about the addresses of a pod, while it is waited for.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    context: &'a FrontendContext,
    addresses: Vec<IpAddr>,
    /// The Services that had one of the addresses since the question.
    services: BTreeSet<ObjectName>,
    /// The first revision since which no pool has one of them.
    unused_since: Option<Revision>,
    entry: WaitingEntry<'a>,
}

#[derive(Clone, Debug)]
pub(crate) struct DrainReport {
    pub(crate) state: DrainState,
    pub(crate) services: BTreeSet<ObjectName>,
    pub(crate) behind: NodesBehind,
    /// The nodes that make no progress, of a pod that is drained.
    pub(crate) stalled: NodesBehind,
    /// The nodes of the cluster that are connected here and make progress.
    pub(crate) connected: NodeSet,
    pub(crate) cluster: NodeSet,
    /// Of a pod that is drained: how many nodes have left this frontend, or appeared, in the last [`LEFT`].
    pub(crate) left: usize,
}

/// The first nodes that may still send new connections, and how many there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodesBehind {
    pub(crate) first: Vec<Arc<str>>,
    pub(crate) count: usize,
}

// === impl Drain ===

impl<'a> Drain<'a> {
    pub(crate) fn new(context: &'a FrontendContext, addresses: Vec<IpAddr>) -> Self {
        let entry = context.drains.enter(addresses.clone());
        Self { context, addresses, services: BTreeSet::new(), unused_since: None, entry }
    }

    /// Waits until the pod is drained, at most for this time.
    pub(crate) async fn wait(mut self, patience: Duration, mut shutdown: Shutdown) -> DrainReport {
        let is_drained = async {
            let (mut commits, mut programmed) = (self.context.cluster.commits(), self.context.streams.programmed());
            loop {
                commits.borrow_and_update();
                programmed.borrow_and_update();
                let state = self.state();
                self.entry.update(state, &self.services);
                if state == DrainState::Drained {
                    return;
                }
                // Their senders live as long as the frontend.
                tokio::select! {
                    _ = commits.changed() => {}
                    _ = programmed.changed() => {}
                    () = sleep(FAILURES_INTERVAL) => {}
                    () = shutdown.recv() => return,
                }
            }
        };
        let _ = timeout(patience, is_drained).await;
        self.report()
    }

    fn state(&mut self) -> DrainState {
        let used = self.context.cluster.use_of(&self.addresses);
        self.services.extend(used.services.iter().cloned());
        let Some(revision) = used.revision.filter(|_| !used.is_used) else {
            self.unused_since = None;
            return if self.services.is_empty() { DrainState::Unknown } else { DrainState::InUse };
        };
        if self.services.is_empty() {
            return DrainState::Unknown;
        }
        let since = *self.unused_since.get_or_insert(revision);
        let is_behind = self.context.streams.with(|fleet| {
            fleet.behind(since).any(is_waited_for)
                || fleet.failing_backends(MAX_LAG).any(|status| is_waited_for(status) && fails(status, &self.services))
        });
        if is_behind { DrainState::Behind(since) } else { DrainState::Drained }
    }

    fn report(mut self) -> DrainReport {
        let state = self.state();
        let since = self.unused_since.filter(|_| state == DrainState::Drained);
        let services = mem::take(&mut self.services);
        self.context.streams.with(|fleet| {
            let mut connected = fleet.connected;
            let unprogrammed = since.map(|since| unprogrammed(fleet, since, &services)).unwrap_or_default();
            unprogrammed.iter().filter(|node| fleet.nodes.contains_key(**node)).for_each(|node| connected.remove(node));
            DrainReport {
                state,
                behind: NodesBehind::of(fleet, state, &services),
                stalled: NodesBehind::first_of(unprogrammed),
                services,
                connected,
                cluster: fleet.cluster,
                // Only those that ask for the last nodes need it: it looks at all of them.
                left: if state == DrainState::Drained { fleet.left(LEFT) } else { 0 },
            }
        })
    }
}

// === impl NodesBehind ===

impl NodesBehind {
    /// The nodes that a pod of these Services waits for.
    pub(crate) fn of(fleet: &Fleet, state: DrainState, services: &BTreeSet<ObjectName>) -> Self {
        let DrainState::Behind(since) = state else { return Self::default() };
        Self::first_of(unprogrammed(fleet, since, services))
    }

    fn first_of(nodes: BTreeSet<&Arc<str>>) -> Self {
        let count = nodes.len();
        Self { first: nodes.into_iter().take(MAX_LISTED).cloned().collect(), count }
    }
}

/// The nodes that have not programmed the revision, or report that they could not program one of the Services. Those of
/// a pod that is drained make no progress.
fn unprogrammed<'a>(fleet: &'a Fleet, revision: Revision, services: &BTreeSet<ObjectName>) -> BTreeSet<&'a Arc<str>> {
    let failing = fleet.failing_backends(Duration::MAX).filter(|status| fails(status, services));
    fleet.behind(revision).chain(failing).map(|status| &status.node).collect()
}

/// Whether a node that has not programmed a revision makes progress.
fn is_waited_for(status: &StreamStatus) -> bool {
    !status.is_stalled() && status.lag() < MAX_LAG
}

/// Whether a node reports that it could not program one of the Services.
fn fails(status: &StreamStatus, services: &BTreeSet<ObjectName>) -> bool {
    !status.failing_services.is_disjoint(services)
}

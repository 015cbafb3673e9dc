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

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use proto::{
    model::{FailureKind, Revision},
    node_set::NodeSet,
};
use runtime::Shutdown;
use tokio::time::{sleep, timeout};

use crate::{
    context::FrontendContext,
    object::ObjectName,
    streams::{Fleet, MAX_LISTED, StreamStatus},
};

/// How long a node without a stream may be about to connect to another frontend.
const LEFT: Duration = Duration::from_secs(10);
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
}

/// What is known about new connections to the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainState {
    /// No EndpointSlice has one of its addresses.
    Unknown,
    /// Some entry is not terminating, or a pool has one.
    InUse,
    /// Nodes have not programmed this revision yet, in which no pool has one.
    Behind(Revision),
    /// No node that is connected here sends new connections.
    Drained,
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub(crate) struct DrainReport {
    pub(crate) state: DrainState,
    pub(crate) services: Vec<String>,
    /// The first nodes that are behind, and how many there are.
    pub(crate) behind: (Vec<Arc<str>>, usize),
    /// The nodes of the cluster that are connected here.
    pub(crate) connected: NodeSet,
    pub(crate) cluster: NodeSet,
    /// How many nodes have left this frontend, or appeared, in the last [`LEFT`].
    pub(crate) left: usize,
}

impl<'a> Drain<'a> {
    pub(crate) fn new(context: &'a FrontendContext, addresses: Vec<IpAddr>) -> Self {
        Self { context, addresses, services: BTreeSet::new(), unused_since: None }
    }

    /// Waits until the pod is drained, at most for this time.
    pub(crate) async fn wait(mut self, patience: Duration, mut shutdown: Shutdown) -> DrainReport {
        let is_drained = async {
            let (mut commits, mut programmed) = (self.context.cluster.commits(), self.context.streams.programmed());
            loop {
                commits.borrow_and_update();
                programmed.borrow_and_update();
                if self.state() == DrainState::Drained {
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
        self.services.extend(used.services);
        let Some(revision) = used.revision.filter(|_| !used.is_used) else {
            self.unused_since = None;
            return if self.services.is_empty() { DrainState::Unknown } else { DrainState::InUse };
        };
        if self.services.is_empty() {
            return DrainState::Unknown;
        }
        let since = *self.unused_since.get_or_insert(revision);
        let is_behind = self.context.streams.with(|fleet| {
            fleet.programmed_on_all_nodes().is_some_and(|programmed| programmed < since)
                || fleet.failing_backends().any(|status| self.fails(status))
        });
        if is_behind { DrainState::Behind(since) } else { DrainState::Drained }
    }

    fn report(mut self) -> DrainReport {
        let state = self.state();
        let fleet = self.context.streams.fleet();
        DrainReport {
            state,
            behind: match state {
                DrainState::Behind(since) => self.behind(&fleet, since),
                _ => Default::default(),
            },
            services: self.services.iter().map(ToString::to_string).collect(),
            connected: fleet.connected,
            cluster: fleet.cluster,
            left: fleet.disconnected().filter(|(_, since)| *since < LEFT).count(),
        }
    }

    fn behind(&self, fleet: &Fleet, since: Revision) -> (Vec<Arc<str>>, usize) {
        let is_behind = |status: &&StreamStatus| status.programmed < since || self.fails(status);
        let behind: Vec<_> = fleet.current_backends().filter(is_behind).map(|status| status.node.clone()).collect();
        let count = behind.len();
        (behind.into_iter().take(MAX_LISTED).collect(), count)
    }

    /// Whether a node reports that it could not program one of the Services.
    fn fails(&self, status: &StreamStatus) -> bool {
        status.failures.iter().any(|failure| {
            let name = ObjectName::new(failure.key.namespace.clone(), failure.key.name.clone());
            failure.kind == FailureKind::Program && self.services.contains(&name)
        })
    }
}

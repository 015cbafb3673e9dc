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
    cluster::UseQuestion,
    context::FrontendContext,
    object::ObjectName,
    streams::{Fleet, MAX_LISTED, StreamStatus},
    waiting_drains::{DrainState, WaitingEntry},
};

/// How long a node without a stream may be about to connect to another frontend.
const LEFT: Duration = Duration::from_secs(10);
/// For how long a node is waited for that acknowledges, but does not program, or that cannot program a Service of the
/// pod.
const MAX_LAG: Duration = Duration::from_secs(60);
/// How often is checked whether failures of nodes have ended, of which there is no notification.
const FAILURES_INTERVAL: Duration = Duration::from_millis(250);

/// One question about the addresses of a pod, while it is waited for.
#[derive(Debug)]
pub(crate) struct Drain<'a> {
    context: &'a FrontendContext,
    question: UseQuestion<'a>,
    /// The Services that had one of the addresses since the question.
    services: BTreeSet<ObjectName>,
    /// At the last look: the first revision since which no pool has one.
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
        Self {
            context,
            question: context.cluster.ask_use(addresses),
            services: BTreeSet::new(),
            unused_since: None,
            entry,
        }
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
        let used = self.question.answer();
        self.unused_since = used.unused_since;
        self.services.extend(used.services.iter().cloned());
        if self.services.is_empty() {
            return DrainState::Unknown;
        }
        let Some(since) = used.unused_since else { return DrainState::InUse };
        let is_behind = self.context.streams.with(|fleet| {
            behind(fleet, since, &used.namespaces).any(is_waited_for)
                || fleet.failing_backends().any(|status| {
                    let failing_for = status.failing_for(&self.services);
                    is_waited_for(status) && failing_for.is_some_and(|time| time < MAX_LAG)
                })
        });
        if is_behind {
            return DrainState::Behind(since);
        }
        // What nodes have programmed may be newer than the commit of the answer.
        if self.question.answer().unused_since == Some(since) { DrainState::Drained } else { DrainState::InUse }
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
    let failing = fleet.failing_backends().filter(|status| status.failing_for(services).is_some());
    let namespaces = services.iter().map(|service| service.namespace.clone()).collect();
    behind(fleet, revision, &namespaces).chain(failing).map(|status| &status.node).collect()
}

/// The nodes that have not programmed the revision, or not for these namespaces.
fn behind<'a>(
    fleet: &'a Fleet,
    revision: Revision,
    namespaces: &BTreeSet<Arc<str>>,
) -> impl Iterator<Item = &'a StreamStatus> {
    fleet.behind(revision).filter(move |status| !status.has_programmed_for(namespaces, revision))
}

/// Whether a node that has not programmed a revision makes progress.
fn is_waited_for(status: &StreamStatus) -> bool {
    !status.is_stalled() && status.lag() < MAX_LAG
}

#[cfg(test)]
mod tests {
    use crate::{
        Config,
        object::{ClusterObject, ObjectKind, SliceEndpoint, SourceUpdate},
        testing::{endpoint, initial, ip, put, service, slice},
    };

    use super::*;

    /// A slice of a Service with these pods; those that end are negative.
    fn pods(name: &str, service: &str, pods: &[i8]) -> SourceUpdate {
        let endpoints = pods.iter().map(|pod| {
            let address = format!("10.0.0.{}", pod.unsigned_abs());
            SliceEndpoint { ready: *pod > 0, terminating: *pod < 0, ..endpoint(&address, "node-9") }
        });
        put(slice(name, service, endpoints.collect()))
    }

    /// The Services `web` and `api` with pod 1, which ends, and a third one without it.
    fn context() -> FrontendContext {
        let context = FrontendContext::new(Config::default());
        let services = [("web", "10.96.0.1"), ("api", "10.96.0.2"), ("other", "10.96.0.3")];
        let services = services.map(|(name, ip)| ClusterObject::from(service(name, ip)));
        initial(services).into_iter().for_each(|update| context.cluster.index().apply(update));
        apply(&context, pods("x", "web", &[-1, 2]));
        apply(&context, pods("y", "api", &[-1, 2]));
        apply(&context, pods("z", "other", &[7]));
        commit(&context);
        context
    }

    fn apply(context: &FrontendContext, update: SourceUpdate) {
        context.cluster.index().apply(update);
    }

    fn commit(context: &FrontendContext) -> Revision {
        let commit = context.cluster.commit(|_| ()).unwrap();
        context.cluster.publish(commit.revision, commit.kind_versions);
        commit.revision
    }

    /// A question about pod 1.
    fn ask(context: &FrontendContext) -> Drain<'_> {
        Drain::new(context, vec![ip("10.0.0.1")])
    }

    /// The revision since which a pod is drained.
    fn drained_since(drain: &mut Drain<'_>) -> Revision {
        assert_eq!(drain.state(), DrainState::Drained);
        drain.question.answer().unused_since.unwrap()
    }

    /// The attack: a tenant changes its own Services all the time.
    #[test]
    fn question_is_answered_while_others_change_without_a_pause() {
        let context = context();
        apply(&context, pods("z", "other", &[8]));
        let mut drain = ask(&context);
        assert_eq!(drain.state(), DrainState::InUse, "what has changed may have had the address");
        let since = commit(&context);
        for pod in [9, 10, 11] {
            apply(&context, pods("z", "other", &[pod]));
            assert!(context.cluster.index().is_dirty());
            assert_eq!(drained_since(&mut drain), since);
            // The next question continues this one.
            drain = ask(&context);
            commit(&context);
        }
    }

    #[test]
    fn pod_that_a_pool_has_again_is_in_use_while_others_change() {
        let context = context();
        let mut drain = ask(&context);
        let since = drained_since(&mut drain);
        apply(&context, pods("x", "web", &[-1]));
        assert_eq!(drained_since(&mut drain), since, "no node knows that yet");
        commit(&context);
        apply(&context, pods("z", "other", &[8]));
        assert_eq!(drain.state(), DrainState::InUse);
        apply(&context, pods("x", "web", &[-1, 3]));
        assert_eq!(drain.state(), DrainState::InUse);
        let revision = commit(&context);
        apply(&context, pods("z", "other", &[9]));
        assert!(revision > since);
        assert_eq!(drained_since(&mut drain), revision);
    }

    /// A node may have programmed a revision in which a pool has the address, and no later one.
    #[test]
    fn commits_about_the_pod_that_no_look_has_seen_begin_the_wait_again() {
        for (change, back) in [
            (pods("x", "web", &[-1]), pods("x", "web", &[-1, 2])),
            (pods("z", "other", &[-1]), pods("z", "other", &[7])),
        ] {
            let context = context();
            let mut drain = ask(&context);
            let since = drained_since(&mut drain);
            apply(&context, change.clone());
            commit(&context);
            apply(&context, back);
            let revision = commit(&context);
            assert!(revision > since);
            assert_eq!(drained_since(&mut drain), revision, "{change:?}");
        }
    }

    #[test]
    fn slice_of_another_service_that_drops_the_address_is_waited_for() {
        let context = context();
        apply(&context, pods("z", "other", &[-1]));
        commit(&context);
        let mut drain = ask(&context);
        apply(&context, SourceUpdate::Delete(ObjectKind::EndpointSlice, ObjectName::new("ns", "z")));
        for drain in [&mut drain, &mut Drain::new(&context, vec![ip("10.0.0.1"), ip("fd00::1")])] {
            assert_eq!(drain.state(), DrainState::InUse);
        }
        let revision = commit(&context);
        assert_eq!(drained_since(&mut drain), revision);
    }
}

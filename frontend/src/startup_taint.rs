//! Removes the taint `fairlead.io/starting` from a node when its backend has programmed its first state, so that no pod
//! starts on a node whose Services do not work yet.
//!
//! ```text
//!   Index: the nodes with the taint ──┐
//!                                     ├─▶ due ─▶ GET ─▶ PATCH of spec.taints, if the Node is still the same
//!   Streams: programmed by node ──────┘    ▲                    │
//!                                          └── watch of Nodes ◀─┘
//! ```
//!
//! A node whose backend follows another replica is left to that one. A failed request is repeated, as the taint is
//! still there.
//!
//! A backend is asked to reconnect where it follows the wrong replica, or does not tell enough: while this replica has
//! lost the API, it may go to one that has not; and where its stream is older than its Node, it may be another machine.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
};
use runtime::{Shutdown, failure::Repeated, warn_if_news};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::info;

use crate::{
    Frontend,
    context::FrontendContext,
    object::{ObjectKind, STARTUP_TAINT},
    source::KindFreshness,
};

/// How often nodes are looked for. An Ack of one node has no notification of its own.
const INTERVAL: Duration = Duration::from_millis(250);
/// The most nodes in that time.
const NODES_PER_INTERVAL: usize = 16;
/// Until a node is tried again: after a success the watch takes a moment to deliver it.
const PAUSE: Duration = Duration::from_secs(5);
/// How long requests for a node, or watches of Nodes, fail until backends are asked to reconnect.
const FAILING: Duration = Duration::from_secs(30);
/// Until a backend is asked again: there may be no better replica.
const RECONNECT_PAUSE: Duration = Duration::from_secs(120);
/// The timeout of the requests for one node.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Frontend {
    /// Removes the taint from nodes that are programmed, until the shutdown. Takes the rights to get and patch Nodes.
    pub async fn remove_startup_taints(&self, client: Client, mut shutdown: Shutdown) {
        shutdown.run_until_started(run(&self.context, Api::all(client))).await;
    }
}

async fn run(context: &FrontendContext, nodes: Api<Node>) {
    let (mut tried, mut failures) = (HashMap::<Arc<str>, Instant>::new(), Repeated::default());
    // Since when the requests for a node fail, and when its backend was asked to reconnect.
    let (mut failing, mut asked) = (HashMap::<Arc<str>, Instant>::new(), HashMap::<Arc<str>, Instant>::new());
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tried.retain(|_, at| at.elapsed() < PAUSE);
        asked.retain(|_, at| at.elapsed() < RECONNECT_PAUSE);
        let failed = failing.iter().filter(|(_, since)| since.elapsed() >= FAILING);
        let failed: BTreeSet<_> = failed.map(|(node, _)| node.clone()).collect();
        let misplaced: Vec<_> =
            misplaced(context, &failed).into_iter().filter(|node| !asked.contains_key(node)).collect();
        for node in misplaced.into_iter().take(NODES_PER_INTERVAL) {
            failing.remove(&node);
            context.streams.with(|fleet| fleet.reconnect(&node));
            info!(%node, taint = STARTUP_TAINT, "asked the backend to reconnect: its taint cannot be removed here");
            asked.insert(node, Instant::now());
        }
        let due: Vec<_> = due(context).into_iter().filter(|node| !tried.contains_key(node)).collect();
        for node in due.into_iter().take(NODES_PER_INTERVAL) {
            tried.insert(node.clone(), Instant::now());
            let removed = timeout(TIMEOUT, remove(&nodes, &node)).await.map_err(anyhow::Error::from).flatten();
            match removed {
                Ok(true) => info!(%node, taint = STARTUP_TAINT, "removed the taint: the node is programmed"),
                Ok(false) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    let taint = STARTUP_TAINT;
                    failing.entry(node.clone()).or_insert_with(Instant::now);
                    warn_if_news!(failures.failed(&error), %node, taint, error, "cannot remove a taint, retrying");
                    continue;
                }
            }
            failing.remove(&node);
            failures.recovered();
        }
    }
}

/// The nodes that have the taint, and whose backend has acknowledged a state to this replica.
fn due(context: &FrontendContext) -> Vec<Arc<str>> {
    let starting = context.cluster.index().starting_nodes();
    context.streams.with(|fleet| starting.into_iter().filter(|node| fleet.has_programmed(node)).collect())
}

/// The nodes whose backend should reconnect. `failed`: those whose requests have failed for long.
fn misplaced(context: &FrontendContext, failed: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
    let starting = context.cluster.index().starting_nodes();
    let has_lost_api = has_lost_api(&context.freshness.snapshot());
    context.streams.with(|fleet| {
        let is_misplaced = |node: &Arc<str>| has_lost_api || failed.contains(node) || fleet.is_of_deleted_node(node);
        let starting: Vec<_> = starting.into_iter().filter(is_misplaced).collect();
        // Nodes that were created since may have the taint.
        let unknown = fleet.backends_without_node().filter(|_| has_lost_api).cloned();
        starting.into_iter().chain(unknown).filter(|node| fleet.is_connected(node)).collect()
    })
}

/// Whether the API server has not confirmed the Nodes for long.
fn has_lost_api(kinds: &[KindFreshness]) -> bool {
    let nodes = kinds.iter().find(|row| row.kind == ObjectKind::Node);
    nodes.is_some_and(|row| row.failures > 0 && row.age().is_some_and(|age| age >= FAILING))
}

/// Returns whether the node had the taint. A patch with the version of another state of the Node fails.
async fn remove(nodes: &Api<Node>, name: &str) -> Result<bool> {
    let Some(node) = nodes.get_opt(name).await.context("get the Node")? else { return Ok(false) };
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let others: Vec<&Taint> = taints.iter().filter(|taint| taint.key != STARTUP_TAINT).collect();
    if others.len() == taints.len() {
        return Ok(false);
    }
    let patch = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": others}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.context("patch spec.taints of the Node")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::WatchPhase;

    #[tokio::test(start_paused = true)]
    async fn api_is_lost_when_nodes_are_not_confirmed_and_requests_fail() {
        let row = |kind, failures| KindFreshness {
            kind,
            phase: WatchPhase::Watching,
            confirmed: Some(Instant::now()),
            lists: 1,
            failures,
            last_error: None,
        };
        let rows = |failures| [row(ObjectKind::Service, 9), row(ObjectKind::Node, failures)];
        let (quiet, failing) = (rows(0), rows(1));
        assert!(!has_lost_api(&failing));
        tokio::time::advance(FAILING).await;
        assert!(has_lost_api(&failing) && !has_lost_api(&quiet) && !has_lost_api(&[]));
    }
}

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

use std::{collections::HashMap, sync::Arc, time::Duration};

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

use crate::{Frontend, config::API_REQUEST_TIMEOUT, context::FrontendContext, object::STARTUP_TAINT};

/// How often nodes are looked for. An Ack of one node has no notification of its own.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The most nodes in one interval, each with two requests, to spare the API server.
const NODES_PER_INTERVAL: usize = 16;
/// The delay before a node is tried again: after a success the watch takes a moment to deliver it.
const RETRY_DELAY: Duration = Duration::from_secs(5);

impl Frontend {
    /// Removes the taint from nodes that are programmed, until the shutdown. Takes the rights to get and patch Nodes.
    pub async fn remove_startup_taints(&self, client: Client, mut shutdown: Shutdown) {
        shutdown.run_until_started(run(&self.context, Api::all(client))).await;
    }
}

async fn run(context: &FrontendContext, nodes: Api<Node>) {
    let mut tried = HashMap::<Arc<str>, Instant>::new();
    let mut failures = Repeated::default();
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

    loop {
        ticks.tick().await;
        tried.retain(|_, at| at.elapsed() < RETRY_DELAY);
        let due: Vec<_> = due(context).into_iter().filter(|node| !tried.contains_key(node)).collect();

        for node in due.into_iter().take(NODES_PER_INTERVAL) {
            tried.insert(node.clone(), Instant::now());
            let removed = timeout(API_REQUEST_TIMEOUT, remove(&nodes, &node)).await;
            match removed.map_err(anyhow::Error::from).flatten() {
                Ok(true) => info!(%node, taint = STARTUP_TAINT, "removed the taint: the node is programmed"),
                Ok(false) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    let taint = STARTUP_TAINT;
                    warn_if_news!(failures.failed(&error), %node, taint, error, "cannot remove a taint, retrying");
                    continue;
                }
            }
            failures.recovered();
        }
    }
}

/// The nodes that have the taint, and whose backend has acknowledged a state to this replica.
fn due(context: &FrontendContext) -> Vec<Arc<str>> {
    let starting = context.cluster.index().starting_nodes();
    context.streams.read(|fleet| starting.into_iter().filter(|node| fleet.has_programmed(node)).collect())
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

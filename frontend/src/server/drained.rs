//! The call `Drained`: whether the nodes that are connected here still send new connections to a pod that ends. What
//! the call `Status` says about the pods that wait for its answer.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use proto::{
    convert::{micros, pack_address, unpack_address},
    v1,
};
use runtime::Shutdown;
use tonic::Status;

use super::require_ready;
use crate::{
    context::FrontendContext,
    drain::{Drain, DrainReport, NodesBehind},
    identity::Identity,
    metrics::Rejection,
    object::ObjectName,
    streams::{Fleet, MAX_LISTED},
    waiting_drains::{DrainState, WaitingDrain},
};

/// The longest that a response is delayed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How many Services a response names.
const MAX_SERVICES: usize = 8;

pub(crate) async fn drained(
    context: &FrontendContext,
    identity: &Identity,
    request: &v1::DrainedRequest,
    shutdown: Shutdown,
) -> Result<v1::DrainedResponse, Status> {
    let v1::DrainedRequest { addresses, wait_millis } = request;
    let addresses = addresses.iter().map(|bytes| unpack_address(bytes, "addresses"));
    let addresses: Vec<IpAddr> =
        addresses.collect::<Result<_, _>>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    match &addresses[..] {
        [_] => {}
        [one, other] if one.is_ipv4() != other.is_ipv4() => {}
        _ => return Err(Status::invalid_argument("addresses: a pod has one, or one of each IP family")),
    }
    require_ready(&context.cluster)?;
    let patience = Duration::from_millis((*wait_millis).into()).min(MAX_WAIT);
    if let Some(node) = other_node(context, identity, &addresses) {
        context.metrics.rejected(Rejection::NotPermitted);
        return Err(Status::permission_denied(format!(
            "{identity} may ask for pods on its own node only, and this one is on node {node}"
        )));
    }
    let report = Drain::new(context, addresses).wait(patience, shutdown).await;
    let DrainReport { state, services, behind, stalled, connected, cluster, left } = report;
    let is_drained = state == DrainState::Drained;
    Ok(v1::DrainedResponse {
        state: v1::DrainState::from(state).into(),
        services: first_services(&services),
        behind: behind.first.iter().map(ToString::to_string).collect(),
        behind_count: behind.count as u64,
        programmed: is_drained.then_some(connected),
        cluster: Some(cluster),
        left: left as u64,
        stalled: stalled.first.iter().map(ToString::to_string).collect(),
    })
}

/// The node of a pod that a client may not ask for, because all endpoints with its first address, which decides about
/// which pod the answer is, are on other nodes. An address that is in no slice may be asked for: nothing is known about
/// it.
fn other_node(context: &FrontendContext, identity: &Identity, addresses: &[IpAddr]) -> Option<Arc<str>> {
    let Identity::Node(own) = identity else { return None };
    let index = context.cluster.index();
    let is_own = |node: &Option<Arc<str>>| node.as_ref().is_none_or(|node| node == own);
    let nodes: BTreeSet<_> =
        index.endpoints_at(*addresses.first()?).map(|(_, endpoint)| endpoint.node.clone()).collect();
    if nodes.iter().any(is_own) { None } else { nodes.into_iter().flatten().next() }
}

/// What the status says about the pods that wait.
pub(super) fn waiting(context: &FrontendContext, fleet: &Fleet) -> Vec<v1::WaitingDrain> {
    let waiting = context.drains.longest(MAX_LISTED).into_iter().map(|drain| {
        let WaitingDrain { addresses, services, state, since } = drain;
        let behind = NodesBehind::of(fleet, state, &services);
        v1::WaitingDrain {
            addresses: addresses.iter().map(pack_address).collect(),
            state: v1::DrainState::from(state).into(),
            services: first_services(&services),
            behind: behind.first.iter().map(ToString::to_string).collect(),
            behind_count: behind.count as u64,
            waited_micros: micros(since.elapsed()),
        }
    });
    waiting.collect()
}

fn first_services(services: &BTreeSet<ObjectName>) -> Vec<String> {
    services.iter().take(MAX_SERVICES).map(ToString::to_string).collect()
}

impl From<DrainState> for v1::DrainState {
    fn from(state: DrainState) -> Self {
        match state {
            DrainState::Unknown => Self::Unknown,
            DrainState::InUse => Self::InUse,
            DrainState::Behind(_) => Self::Behind,
            DrainState::Drained => Self::Drained,
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::model::IpFamily;

    use crate::{
        Config, Frontend,
        object::SliceObject,
        testing::{endpoint, ip, put, slice},
    };

    use super::*;

    #[test]
    fn node_may_ask_for_its_own_pods_only() {
        let context = Frontend::new(Config::default()).context;
        let endpoints = vec![endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2", "node-2")];
        context.cluster.index().apply(put(slice("x", "web", endpoints)));
        context.cluster.index().apply(put(slice("y", "db", vec![endpoint("10.0.0.2", "node-3")])));
        let other = |identity: Identity, address| other_node(&context, &identity, &[ip(address)]);
        let node = || Identity::Node("node-1".into());
        assert_eq!(other(node(), "10.0.0.1"), None);
        assert_eq!(other(node(), "10.0.0.2").as_deref(), Some("node-2"));
        assert_eq!(other(node(), "10.0.0.3"), None, "in no slice");
        assert_eq!(other(Identity::Node("node-3".into()), "10.0.0.2"), None, "the address is used again");
        assert_eq!(other(Identity::Admin("ops".into()), "10.0.0.2"), None);
    }

    #[test]
    fn node_may_not_ask_for_a_pod_of_another_node_beside_its_own() {
        let context = Frontend::new(Config::default()).context;
        let of_both = vec![endpoint("10.0.0.1", "node-1"), endpoint("10.0.0.2", "node-2")];
        context.cluster.index().apply(put(slice("x4", "web", of_both)));
        let of_both = vec![endpoint("fd00::1", "node-1"), endpoint("fd00::2", "node-2")];
        let slice = SliceObject { family: IpFamily::V6, ..slice("x6", "web", of_both) };
        context.cluster.index().apply(put(slice));
        let node = Identity::Node("node-1".into());
        let other = |addresses: [&str; 2]| other_node(&context, &node, &addresses.map(ip));
        assert_eq!(other(["10.0.0.1", "fd00::1"]), None);
        assert_eq!(other(["fd00::9", "10.0.0.1"]), None, "one is in no slice");
        assert_eq!(other(["10.0.0.1", "fd00::2"]), None, "the answer is about its own pod");
        for mixed in [["fd00::2", "10.0.0.1"], ["10.0.0.2", "fd00::1"]] {
            assert_eq!(other(mixed).as_deref(), Some("node-2"), "{mixed:?}");
        }
    }
}

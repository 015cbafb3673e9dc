//! The call `Drained`: whether the nodes that are connected here still send new connections to a pod that ends. What
//! the call `Status` says about the pods that wait for its answer.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use proto::{
    convert::{micros, pack_address, unpack_address},
    v1,
};
use runtime::Shutdown;
use tonic::Status;

use crate::{
    context::FrontendContext,
    drain::{Drain, DrainReport, DrainState, NodesBehind, WaitingDrain},
    object::ObjectName,
    streams::{Fleet, MAX_LISTED},
};

/// The longest that a response is delayed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The longest time that a pod is said to have waited before.
const MAX_WAITED: Duration = Duration::from_secs(3600);
/// A pod has an address of each family.
const MAX_ADDRESSES: usize = 2;
const ADDRESSES: &str = "addresses: a pod has one, or one of each IP family";
/// How many Services a response names.
const MAX_SERVICES: usize = 8;

/// Answers the call.
pub(crate) async fn drained(
    context: &FrontendContext,
    request: &v1::DrainedRequest,
    shutdown: Shutdown,
) -> Result<v1::DrainedResponse, Status> {
    let v1::DrainedRequest { addresses, wait_millis, waited_millis } = request;
    if addresses.len() > MAX_ADDRESSES {
        return Err(Status::invalid_argument(ADDRESSES));
    }
    let addresses = addresses.iter().map(|bytes| unpack_address(bytes, "addresses"));
    let addresses: Vec<IpAddr> =
        addresses.collect::<Result<_, _>>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    match &addresses[..] {
        [_] => {}
        [one, other] if one.is_ipv4() != other.is_ipv4() => {}
        _ => return Err(Status::invalid_argument(ADDRESSES)),
    }
    if !context.cluster.is_ready() {
        return Err(Status::unavailable("the frontend has not listed all objects yet: try again later"));
    }
    let patience = Duration::from_millis((*wait_millis).into()).min(MAX_WAIT);
    let waited = Duration::from_millis((*waited_millis).into()).min(MAX_WAITED);
    let report = Drain::new(context, addresses, waited).wait(patience, shutdown).await;
    let DrainReport { state, services, behind, stalled, connected, cluster, left } = report;
    let is_drained = state == DrainState::Drained;
    Ok(v1::DrainedResponse {
        state: v1::DrainState::from(state).into(),
        services: first_services(&services),
        behind: behind.first.iter().map(ToString::to_string).collect(),
        behind_count: behind.count as u64,
        programmed: is_drained.then(|| connected.into()),
        cluster: Some(cluster.into()),
        left: left as u64,
        stalled: stalled.first.iter().map(ToString::to_string).collect(),
    })
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

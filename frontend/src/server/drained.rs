//! The call `Drained`: whether the nodes that are connected here still send new connections to a pod that ends.

use std::time::Duration;

use proto::{convert::unpack_address, v1};
use runtime::Shutdown;
use tonic::Status;

use crate::{
    context::FrontendContext,
    drain::{Drain, DrainReport, DrainState},
};

/// The longest that a response is delayed.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// A pod has an address of each family.
const MAX_ADDRESSES: usize = 2;
/// How many Services a response names.
const MAX_SERVICES: usize = 8;

/// Answers the call.
pub(crate) async fn drained(
    context: &FrontendContext,
    request: &v1::DrainedRequest,
    shutdown: Shutdown,
) -> Result<v1::DrainedResponse, Status> {
    let v1::DrainedRequest { addresses, wait_millis } = request;
    if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
        return Err(Status::invalid_argument("addresses: a pod has one, or one of each IP family"));
    }
    let addresses = addresses.iter().map(|bytes| unpack_address(bytes, "addresses"));
    let addresses = addresses.collect::<Result<_, _>>().map_err(|error| Status::invalid_argument(error.to_string()))?;
    if !context.cluster.is_ready() {
        return Err(Status::unavailable("the frontend has not listed all objects yet: try again later"));
    }
    let patience = Duration::from_millis((*wait_millis).into()).min(MAX_WAIT);
    let report = Drain::new(context, addresses).wait(patience, shutdown).await;
    let DrainReport { state, mut services, behind: (behind, behind_count), connected, cluster, left } = report;
    services.truncate(MAX_SERVICES);
    let is_drained = state == DrainState::Drained;
    let state = match state {
        DrainState::Unknown => v1::DrainState::Unknown,
        DrainState::InUse => v1::DrainState::InUse,
        DrainState::Behind(_) => v1::DrainState::Behind,
        DrainState::Drained => v1::DrainState::Drained,
    };
    Ok(v1::DrainedResponse {
        state: state.into(),
        services,
        behind: behind.iter().map(ToString::to_string).collect(),
        behind_count: behind_count as u64,
        programmed: is_drained.then(|| connected.into()),
        cluster: Some(cluster.into()),
        left: left as u64,
    })
}

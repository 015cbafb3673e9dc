//! Scenarios about the start of a stream.

use proto::model::Hello;

use crate::{
    frontend::{Outcome, QUIET_PERIOD, ScriptedFrontend, violation},
    samples,
};

pub(super) async fn hello(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let Hello { backend, backend_version, digests, .. } = frontend.expect_hello().await?;
    // A frontend that has not listed all objects sends no Welcome yet.
    frontend.expect_quiet(QUIET_PERIOD, "before the Welcome").await?;
    let digests = if digests.is_some() { "with digests" } else { "without digests" };
    Ok(format!("sent Hello as {backend:?}, version {backend_version:?}, {digests}"))
}

pub(super) async fn snapshot(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let ack = frontend.sync_samples().await?;
    frontend.expect_quiet(QUIET_PERIOD, "without a commit or bookmark").await?;
    let digest = if ack.digest.is_some() { "the correct digest" } else { "no digest" };
    Ok(format!("acked with {digest} and {} failures after {:.1?}", ack.failures.len(), ack.apply_time))
}

pub(super) async fn empty_snapshot(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.start_new_epoch();
    frontend.end_stream().await;
    let hello = frontend.expect_hello().await?;
    let ack = frontend.sync(&hello, samples::state(&frontend.node, &[])).await?;
    if let Some(failure) = ack.failures.first() {
        return violation(format!("reported a failure of {} in an empty state", failure.key));
    }
    frontend.pass_if_compared("acked")
}

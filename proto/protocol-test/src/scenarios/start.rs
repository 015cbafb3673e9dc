//! Scenarios about the start of a stream.

use proto::model::{Batch, Hello, Revision};

use crate::{
    frontend::{Outcome, QUIET_PERIOD, ScriptedFrontend, batch, sync_mode, violation},
    samples, state,
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

/// As a frontend that sends snapshots to other clients first, while its revisions advance.
pub(super) async fn waiting(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let hello = frontend.expect_hello().await?;
    let target = samples::state(&frontend.node, &samples::initial_operations());
    let entries = state::differing(&target, hello.digests.as_deref());

    frontend.send_welcome(sync_mode(&hello)).await;
    send_empty_batch(frontend, Revision(0)).await?;
    send_empty_batch(frontend, Revision(0)).await?;
    frontend.repair(Revision(0), &entries, target).await?;

    // A repair on the open stream waits in the same way. Its base is the committed revision.
    let base = frontend.revision;
    let target = frontend.state.clone();
    send_empty_batch(frontend, base).await?;
    frontend.repair(base, &state::differing(&target, None), target).await?;
    Ok("acked none of three empty batches, and the snapshots after them".to_owned())
}

/// Sends a batch that tells a waiting client that the frontend is alive; then the next revision is current.
async fn send_empty_batch(frontend: &mut ScriptedFrontend<'_>, base: Revision) -> Outcome<()> {
    frontend.send_batch(Batch { commit: false, ..batch(base, frontend.revision, &[]) }).await;
    frontend.expect_quiet(QUIET_PERIOD, "after a batch without operations and without commit").await?;
    frontend.advance(&[]);
    Ok(())
}

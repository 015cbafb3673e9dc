//! Scenarios about how far pods are drained.

use std::time::Duration;

use proto::{
    convert::pack_address,
    node_set::NodeSet,
    v1::{DrainLevel, DrainLevels, DrainState},
};
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::{
    drains::DrainsStream,
    frontend::{Outcome, QUIET_PERIOD, ScriptedFrontend, unsupported, violation},
    samples,
};

/// How long to wait for a client that may follow no levels.
const FIRST_STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long each stream ends as soon as it is opened.
const ERRORS_PERIOD: Duration = Duration::from_secs(3);
/// How many streams a client may open at once, and per second after that (rule 12).
const STREAMS: u64 = 8;
const STREAMS_PER_SECOND: u64 = 1;
/// A state of a later version of the protocol.
const UNKNOWN_STATE: i32 = 99;

pub(super) async fn levels(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let Some(stream) = frontend.expect_drains(FIRST_STREAM_TIMEOUT).await? else {
        return unsupported(
            "called no Drains: nothing waits for a pod, or it does not follow how far pods are drained",
        );
    };
    for state in [DrainState::InUse.into(), DrainState::Behind.into(), UNKNOWN_STATE, DrainState::Drained.into()] {
        stays_open(frontend, &stream, state).await?;
    }

    // As an older frontend does, which does not have this call.
    stream.fail(Status::unimplemented("the scenario ends this stream of Drains")).await;
    let count = fail_streams(frontend).await?;
    let Some(stream) = frontend.expect_drains(frontend.patience).await? else {
        return violation(format!("did not call Drains again within {:?} after an error", frontend.patience));
    };
    stays_open(frontend, &stream, DrainState::Drained.into()).await?;
    frontend.commit(&[samples::remove("api")]).await?;
    Ok(format!("followed four levels, and called Drains {count} times within {ERRORS_PERIOD:?} while that failed"))
}

/// Sends the level of a pod, and expects neither the end of the stream nor another one, nor a message in the session.
async fn stays_open(frontend: &mut ScriptedFrontend<'_>, stream: &DrainsStream, state: i32) -> Outcome<()> {
    stream.send(message(frontend, state)).await;
    if timeout(QUIET_PERIOD, stream.closed()).await.is_ok() {
        return violation(format!("ended the stream of Drains after a level with state {state}"));
    }
    if frontend.expect_drains(Duration::ZERO).await?.is_some() {
        return violation("called Drains a second time while the first stream was open");
    }
    frontend.expect_quiet(Duration::ZERO, "after a level of a pod").await
}

/// Ends each stream as soon as it is opened, for [`ERRORS_PERIOD`]. Returns how many there were.
async fn fail_streams(frontend: &mut ScriptedFrontend<'_>) -> Outcome<u64> {
    let begun = Instant::now();
    let mut count = 0;
    while let Some(left) = ERRORS_PERIOD.checked_sub(begun.elapsed())
        && let Some(stream) = frontend.expect_drains(left).await?
    {
        count += 1;
        let elapsed = stream.opened.saturating_duration_since(begun);
        if count > STREAMS + STREAMS_PER_SECOND * (elapsed.as_secs() + 1) {
            return violation(format!(
                "called Drains {count} times within {elapsed:.1?}: the limit is {STREAMS} at once, then \
                 {STREAMS_PER_SECOND} per second"
            ));
        }
        stream.fail(Status::unavailable("the scenario ends this stream of Drains")).await;
    }
    Ok(count)
}

/// What a frontend tells the node of one of its pods.
fn message(frontend: &ScriptedFrontend<'_>, state: i32) -> DrainLevels {
    let mut nodes = NodeSet::default();
    nodes.insert(&frontend.node);
    let level = DrainLevel {
        address: pack_address(&samples::endpoint(proto::model::IpFamily::V4, 1).address),
        pod_uid: "0f0e0d0c-0000-0000-0000-000000000001".to_owned(),
        state,
        slices_version: frontend.source_version().0,
        services: vec!["protocol-test/web".to_owned()],
        ..DrainLevel::default()
    };
    DrainLevels {
        levels: vec![level],
        slices_version: frontend.source_version().0,
        programmed: Some(nodes),
        cluster: Some(nodes),
        nodes_left: false,
        epoch: 1,
    }
}

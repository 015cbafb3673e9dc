//! Scenarios about bookmarks, base revisions and digests.

use proto::{
    digest::KeyHash,
    model::{IpFamily, PoolClass, Protocol, Revision},
};

use crate::{
    frontend::{Outcome, ScriptedFrontend, batch, unsupported, violation},
    samples, state,
};

pub(super) async fn bookmark(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.bookmark().await?;
    frontend.bookmark().await?;
    frontend.commit(&[samples::remove("api")]).await?;
    Ok("acked two bookmarks and a difference from the second".to_owned())
}

/// Sends a bookmark, and a commit with the same revision, on two streams.
pub(super) async fn numbers(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.bookmark().await?;
    frontend.send_snapshot().await?;
    frontend.end_stream().await;

    let hello = frontend.expect_hello().await?;
    frontend.resync(&hello).await?;
    frontend.send_snapshot().await?;
    Ok("acked numbers 1 to 3, then 1 and 2 on another stream".to_owned())
}

pub(super) async fn wrong_base(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let ack = frontend.sync_samples().await?;
    let committed = frontend.revision;

    let remove = samples::remove("web");
    let target = Revision(committed.0 + 2);
    frontend.send_batch(batch(Revision(committed.0 + 1), target, &[remove])).await;
    frontend.expect_end(frontend.patience, "after a difference from another revision than its own").await?;
    frontend.expect_hello().await?;
    frontend.check_programmed(&ack).await?;
    Ok("ended the stream, and reconnected with its committed state".to_owned())
}

pub(super) async fn digest_request(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    require_digests(frontend)?;

    let digests = frontend.request_digests().await?;
    match state::differing(&frontend.state, Some(&digests)).first() {
        None => Ok("sent 129 correct entries".to_owned()),
        Some(entry) => violation(format!("sent digests whose entry {entry} is not that of the committed state")),
    }
}

pub(super) async fn repair(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    require_digests(frontend)?;
    frontend.request_digests().await?;

    let web = samples::key("web", Protocol::Tcp);
    let endpoint = samples::endpoint(IpFamily::V6, 9);
    let pool = samples::replace_pool(&web, PoolClass::Cluster, IpFamily::V6, &[endpoint]);
    let mut target = frontend.state.clone();
    target.apply([pool]);
    let buckets = [KeyHash::of(&web).bucket()].into();

    // A repair without other changes has equal base and target revisions.
    frontend.repair(frontend.revision, &buckets, target).await?;
    frontend.commit(&[samples::remove("web")]).await?;
    Ok("acked the repair and a difference from it".to_owned())
}

fn require_digests(frontend: &ScriptedFrontend<'_>) -> Outcome<()> {
    if frontend.has_digests { Ok(()) } else { unsupported("does not compute digests") }
}

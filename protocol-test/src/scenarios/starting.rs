//! How a stream starts.

use proto::model::Hello;

use crate::{
    script::{Played, QUIET, Script},
    state::State,
};

/// While the frontend does not know everything yet, the client waits.
pub(super) async fn hello(script: &mut Script<'_>) -> Played {
    let Hello { backend, backend_version, digests, .. } = script.connect().await?;
    script.quiet(QUIET, "before the Welcome").await?;
    let digests = if digests.is_some() { "with digests" } else { "without digests" };
    Ok(format!("backend {backend:?}, version {backend_version:?}, {digests}"))
}

pub(super) async fn snapshot(script: &mut Script<'_>) -> Played {
    let ack = script.begin().await?;
    script.quiet(QUIET, "though there was nothing to say").await?;
    let digest = if ack.digest.is_some() { "the right digest" } else { "no digest" };
    Ok(format!("acked with {digest}, failures: {}, after {:.1?}", ack.failures.len(), ack.apply_time))
}

pub(super) async fn empty_snapshot(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.become_another();
    script.end().await;
    let hello = script.connect().await?;
    let ack = script.rebuild(&hello, State::new(&script.node)).await?;
    if let Some(failure) = ack.failures.first() {
        return crate::script::broken(format!("reports a failure of {} where there is nothing", failure.key));
    }
    Ok("acked".to_owned())
}

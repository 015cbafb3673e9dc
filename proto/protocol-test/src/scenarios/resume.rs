//! Scenarios about what a client sends when it reconnects.

use proto::model::{Hello, SourceVersion, SyncMode};

use crate::{
    frontend::{Outcome, ScriptedFrontend, batch, unsupported, violation},
    samples,
};

pub(super) async fn resume(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.bookmark().await?;
    frontend.end_stream().await;

    let hello = frontend.expect_hello().await?;
    if !frontend.resumes(&hello) {
        return unsupported("does not resume");
    }
    frontend.send_welcome(SyncMode::Resume).await;

    // One difference covers two revisions.
    let remove = vec![samples::remove("web")];
    let put = samples::put_late();
    let base = frontend.advance(&remove);
    frontend.advance(&put);
    let operations = [remove, put].concat();
    frontend.send_batch(batch(base, frontend.revision, &operations)).await;
    frontend.expect_ack().await?;
    frontend.end_stream().await;

    let hello = frontend.expect_hello().await?;
    if !frontend.resumes(&hello) {
        return violation("resumed once, but not again");
    }
    frontend.send_welcome(SyncMode::Resume).await;
    frontend.bookmark().await?;
    Ok("resumed with a difference, and with a bookmark".to_owned())
}

pub(super) async fn another_frontend(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.end_stream().await;
    frontend.start_new_epoch();
    let hello = frontend.expect_hello().await?;
    frontend.sync(&hello, frontend.state.clone()).await?;

    frontend.end_stream().await;
    frontend.start_new_epoch();
    let hello = frontend.expect_hello().await?;
    let mut changed = frontend.state.clone();
    changed.apply([samples::remove("web")]);
    frontend.sync(&hello, changed).await?;

    let mode = if hello.digests.is_some() { "repairs" } else { "snapshots" };
    Ok(format!("accepted the state of two other frontends with {mode}"))
}

pub(super) async fn source_version(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    frontend.commit(&[samples::remove("web")]).await?;
    let expected = frontend.source_version();
    frontend.end_stream().await;

    let Hello { source_version, .. } = frontend.expect_hello().await?;
    if source_version == SourceVersion::default() {
        unsupported("does not store source versions")
    } else if source_version == expected {
        Ok(format!("sent source version {source_version}"))
    } else {
        violation(format!("sent source version {source_version}, but that of the last commit is {expected}"))
    }
}

pub(super) async fn restart(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    if !frontend.backend.has_command() {
        return unsupported("cannot be restarted without a COMMAND");
    }

    frontend.sync_samples().await?;
    frontend.drop_stream();
    frontend.backend.stop().await;
    frontend.backend.start().or_else(|error| violation(format!("cannot be restarted: {error:#}")))?;

    let hello = frontend.expect_hello().await?;
    frontend.resync(&hello).await?;
    let how = if frontend.resumes(&hello) { "resumed with its" } else { "restarted without a" };
    Ok(format!("{how} committed state"))
}

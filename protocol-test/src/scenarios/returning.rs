//! Streams after the first one.

use proto::model::{Hello, Operation, Protocol, SourceVersion, SyncMode};

use crate::{
    samples,
    script::{Played, Script, broken, missing},
};

pub(super) async fn resume(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.bookmark().await?;
    script.end().await;
    let hello = script.connect().await?;
    if !script.resumes(&hello) {
        return missing("says that it holds nothing, and so is sent everything");
    }
    script.welcome(SyncMode::Resume).await;
    // Two things have happened meanwhile, and are told in one.
    let web = samples::key("web", Protocol::Tcp);
    let base = script.advance(&[Operation::RemoveServicePort(web.clone())]);
    let late = samples::service(&samples::key("late", Protocol::Tcp), 4);
    script.advance(&late);
    let operations = [&[Operation::RemoveServicePort(web)], &late[..]].concat();
    script.say_batch(crate::script::batch(base, script.revision, &operations)).await;
    script.ack().await?;
    script.end().await;
    let hello = script.connect().await?;
    if !script.resumes(&hello) {
        return broken("resumes once, but not again");
    }
    script.welcome(SyncMode::Resume).await;
    script.bookmark().await?;
    Ok("resumed with a difference, and with nothing new".to_owned())
}

pub(super) async fn another_frontend(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.end().await;
    script.become_another();
    let hello = script.connect().await?;
    let same = script.state.clone();
    script.rebuild(&hello, same).await?;
    script.end().await;
    script.become_another();
    let hello = script.connect().await?;
    let other = script.state.clone().with(&[Operation::RemoveServicePort(samples::key("web", Protocol::Tcp))]);
    script.rebuild(&hello, other).await?;
    let how = if hello.digests.is_some() { "by digests" } else { "by snapshots" };
    Ok(format!("followed two others, {how}"))
}

pub(super) async fn source_version(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.commit(&[Operation::RemoveServicePort(samples::key("web", Protocol::Tcp))]).await?;
    let expected = script.source_version();
    script.end().await;
    let Hello { source_version, .. } = script.connect().await?;
    match source_version {
        said if said == SourceVersion::default() => missing("the client does not keep the source version"),
        said if said == expected => Ok(format!("says {said}")),
        said => broken(format!("says source version {said}, but that of the last commit was {expected}")),
    }
}

pub(super) async fn restart(script: &mut Script<'_>) -> Played {
    if !script.subject.is_ours() {
        return missing("somebody else starts the backend");
    }
    script.begin().await?;
    script.forget_stream();
    script.subject.stop().await;
    script.subject.start().or_else(|error| broken(format!("cannot be started again: {error:#}")))?;
    let hello = script.connect().await?;
    let how = if script.resumes(&hello) {
        script.welcome(SyncMode::Resume).await;
        script.bookmark().await?;
        "came back with what it held"
    } else {
        let same = script.state.clone();
        script.rebuild(&hello, same).await?;
        "came back with nothing, and took everything in"
    };
    Ok(how.to_owned())
}

//! Bookmarks, digests, and what a client must check.

use proto::{
    digest::KeyHash,
    model::{IpFamily, Operation, PoolClass, Protocol, Revision},
};

use crate::{
    samples,
    script::{Played, Script, batch, broken, missing},
};

pub(super) async fn bookmark(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    script.bookmark().await?;
    script.bookmark().await?;
    script.commit(&[Operation::RemoveServicePort(samples::key("api", Protocol::Tcp))]).await?;
    Ok("two bookmarks and a difference from there were acked".to_owned())
}

pub(super) async fn wrong_base(script: &mut Script<'_>) -> Played {
    let before = script.begin().await?;
    let held = script.revision;
    let remove = Operation::RemoveServicePort(samples::key("web", Protocol::Tcp));
    let target = Revision(held.0 + 2);
    script.say_batch(batch(Revision(held.0 + 1), target, &[remove])).await;
    script.ended(script.patience, "after a difference from a revision that it does not hold").await?;
    script.connect().await?;
    script.compare(&before).await?;
    Ok("ended the stream, and came again with what it held".to_owned())
}

pub(super) async fn digest_request(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    needs_digests(script)?;
    let digests = script.ask_digests().await?;
    let differing = script.state.differing(Some(&digests));
    match differing.first() {
        None => Ok("129 entries, all right".to_owned()),
        Some(entry) => broken(format!("entry {entry} is not that of what was committed")),
    }
}

pub(super) async fn repair(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    needs_digests(script)?;
    script.ask_digests().await?;
    let web = samples::key("web", Protocol::Tcp);
    let pool = samples::replace(&web, PoolClass::Cluster, IpFamily::V6, &[samples::endpoint(IpFamily::V6, 9)]);
    let target = script.state.clone().with(&[pool]);
    let buckets = [KeyHash::of(&web).bucket()].into();
    // At the revision that is held: there is only something to repair.
    script.rebuild_entries(script.revision, &buckets, target).await?;
    script.commit(&[Operation::RemoveServicePort(web)]).await?;
    Ok("the bucket was taken in, and the next difference too".to_owned())
}

fn needs_digests(script: &Script<'_>) -> Played<()> {
    if script.digests { Ok(()) } else { missing("the client sends no digests") }
}

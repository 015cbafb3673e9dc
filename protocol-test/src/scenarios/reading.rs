//! What a client must be able to read, and what it must not accept.

use proto::{
    MAX_MESSAGE_BYTES,
    encoded::EncodedMessage,
    model::{Operation, Protocol, Revision, ServerMessage, SyncMode},
};
use tokio::time::Instant;

use crate::{
    samples,
    script::{Digested, Played, Script, batch, broken},
    state::State,
    wire::{self, part},
};

/// How long an unknown field is, in bytes: longer than a length of one byte can say.
const UNKNOWN: usize = 300;

pub(super) async fn unknown_fields(script: &mut Script<'_>) -> Played {
    let extra = wire::unknown_field(UNKNOWN);
    let hello = script.connect().await?;
    let target = State::new(&script.node).with(&samples::services());
    let entries = target.differing(hello.digests.as_deref());
    let mode = if hello.digests.is_some() { SyncMode::Repair } else { SyncMode::Snapshot };
    let welcome = ServerMessage::Welcome(script.present(mode));
    script.say_with(welcome, part::WELCOME, &extra).await?;
    script.rebuild_entries(Revision(0), &entries, target).await?;
    let remove = [Operation::RemoveServicePort(samples::key("web", Protocol::Tcp))];
    let service = samples::service(&samples::key("web", Protocol::Tcp), 1);
    for (operations, path) in [
        (&remove[..], part::MESSAGE),
        (&service[..], part::BATCH),
        (&remove[..], part::OPERATION),
        (&service[..], part::POOL),
    ] {
        script.commit_with(operations, path, &extra).await?;
        script.ack().await?;
    }
    // What is unknown may be hashed with the rest, or not.
    script.commit_with(&service, part::SERVICE_PORT, &extra).await?;
    script.ack_with(Digested::Anyhow).await?;
    script.commit(&service).await?;
    script.revision.0 += 1;
    let bookmark = ServerMessage::Bookmark(script.revision, script.digest());
    script.say_with(bookmark, part::BOOKMARK, &extra).await?;
    script.ack().await?;
    Ok("ignored in seven kinds of messages".to_owned())
}

pub(super) async fn unknown_operation(script: &mut Script<'_>) -> Played {
    let before = script.begin().await?;
    let held = script.revision;
    let target = Revision(held.0 + 1);
    let remove = Operation::RemoveServicePort(samples::key("web", Protocol::Tcp));
    let change = ServerMessage::Batch(batch(held, target, &[remove]));
    let begun = Instant::now();
    script.say_with(change, part::BATCH, &wire::unknown_operation()).await?;
    script.ended(script.patience, "after an operation that it cannot know").await?;
    let took = begun.elapsed();
    script.compare(&before).await?;
    // It says that it holds what it held, or nothing.
    script.connect().await?;
    Ok(format!("ended the stream after {took:.1?}, and kept what it held"))
}

pub(super) async fn large_message(script: &mut Script<'_>) -> Played {
    script.begin().await?;
    let operations = samples::service(&samples::key("late", Protocol::Tcp), 4);
    let mut padding = MAX_MESSAGE_BYTES;
    // As large as may be, byte for byte: the lengths before it grow with it.
    let extra = loop {
        let extra = wire::unknown_field(padding);
        let change = ServerMessage::Batch(batch(script.revision, script.revision, &operations));
        let size =
            wire::append(&EncodedMessage::new(&change).to_bytes(), part::BATCH, &extra).map_or(0, |bytes| bytes.len());
        match size.checked_sub(MAX_MESSAGE_BYTES) {
            None | Some(0) => break extra,
            Some(over) => padding -= over,
        }
    };
    script.commit_with(&operations, part::BATCH, &extra).await?;
    match script.ack().await {
        Ok(_) => Ok(format!("a message of {MAX_MESSAGE_BYTES} bytes was acked")),
        Err(crate::script::Stop::Broken(what)) => broken(format!("{what} after a message of 1 MiB")),
        Err(other) => Err(other),
    }
}

//! Scenarios about messages of newer frontends, and about the largest message.

use proto::{
    MAX_MESSAGE_BYTES,
    encoded::EncodedMessage,
    model::{Bookmark, Protocol, Revision, ServerMessage},
};
use tokio::time::Instant;

use crate::{
    frontend::{Outcome, ScriptedFrontend, batch, sync_mode},
    samples, state,
    wire::{self, path},
};

/// The size of an unknown field in bytes: its length does not fit into one byte.
const UNKNOWN_FIELD_BYTES: usize = 300;

pub(super) async fn fields(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let extra = wire::unknown_field(UNKNOWN_FIELD_BYTES);
    let hello = frontend.expect_hello().await?;
    let target = samples::state(&frontend.node, &samples::initial_operations());
    let entries = state::differing(&target, hello.digests.as_deref());

    let welcome = ServerMessage::Welcome(frontend.welcome(sync_mode(&hello)));
    frontend.send_with(welcome, path::WELCOME, &extra).await?;
    frontend.repair(Revision(0), &entries, target).await?;

    let remove = [samples::remove("web")];
    let put = samples::put_with_pools(&samples::key("web", Protocol::Tcp), 1);
    for (operations, path) in
        [(&remove[..], path::MESSAGE), (&put[..], path::BATCH), (&remove[..], path::OPERATION), (&put[..], path::POOL)]
    {
        frontend.send_commit_with(operations, path, &extra).await?;
        frontend.expect_ack().await?;
    }

    // A client may hash the bytes as received, with the unknown field.
    frontend.send_commit_with(&put, path::SERVICE_PORT, &extra).await?;
    frontend.expect_ack_with(None).await?;
    frontend.commit(&put).await?;

    frontend.revision.0 += 1;
    let bookmark = ServerMessage::Bookmark(Bookmark::new(frontend.revision, frontend.digest()));
    frontend.send_with(bookmark, path::BOOKMARK, &extra).await?;
    frontend.expect_ack().await?;
    Ok("ignored unknown fields in seven messages".to_owned())
}

pub(super) async fn operation(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    let ack = frontend.sync_samples().await?;
    let committed = frontend.revision;
    let remove = samples::remove("web");
    let change = ServerMessage::Batch(batch(committed, Revision(committed.0 + 1), &[remove]));

    let sent = Instant::now();
    frontend.send_with(change, path::BATCH, &wire::unknown_operation()).await?;
    frontend.expect_end(frontend.patience, "after an unknown operation").await?;
    let elapsed = sent.elapsed();

    frontend.check_programmed(&ack).await?;
    // The Hello has the revision before the operation, or none.
    frontend.expect_hello().await?;
    Ok(format!("ended the stream after {elapsed:.1?}, and kept its committed state"))
}

pub(super) async fn large_message(frontend: &mut ScriptedFrontend<'_>) -> Outcome {
    frontend.sync_samples().await?;
    let operations = samples::put_late();
    let change = ServerMessage::Batch(batch(frontend.revision, frontend.revision, &operations));
    let message = EncodedMessage::new(&change).to_bytes();

    // Reduce the padding until the message, with the lengths of its fields, has exactly the maximum size.
    let mut padding = MAX_MESSAGE_BYTES;
    let extra = loop {
        let extra = wire::unknown_field(padding);
        let size = wire::append(&message, path::BATCH, &extra).map_or(0, |bytes| bytes.len());
        match size.checked_sub(MAX_MESSAGE_BYTES) {
            None | Some(0) => break extra,
            Some(excess) => padding -= excess,
        }
    };

    frontend.send_commit_with(&operations, path::BATCH, &extra).await?;
    frontend.expect_ack().await.map_err(|deviation| deviation.append(" after a message of 1 MiB"))?;
    Ok(format!("acked a message of {MAX_MESSAGE_BYTES} bytes"))
}

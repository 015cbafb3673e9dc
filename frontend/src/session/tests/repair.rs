//! Digest mismatches, and clients whose revision is older than the history.

use std::{sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{ClientMessage, Hello, Operation, Revision, Role, ServerMessage, SourceVersion, SyncMode},
};

use tokio::time::Instant;

use crate::{
    Config,
    config::HistoryLimits,
    object::{ObjectKind, ObjectName, SourceUpdate, VersionProgress},
    testing::{Warnings, hello, node, put},
};

use super::{Client, Fixture, large, small, web};

/// An Ack with a wrong digest.
fn wrong(client: &Client) -> ClientMessage {
    ClientMessage::Ack(client.ack_of(Some(Digest(1)), Vec::new()))
}

/// Lets the frontend repair the first mismatches of a stream, as many as it does in a row.
async fn repair_a_burst(client: &mut Client, after_each: impl AsyncFn(&Client)) {
    for _ in 0..6 {
        client.bookmark().await;
        client.send(wrong(client)).await;
        answer_digest_request(client).await;
        client.commit().await;
        after_each(client).await;
    }
}

async fn answer_digest_request(client: &mut Client) {
    let message = client.message().await;
    assert_eq!(message, ServerMessage::DigestRequest);
    let digests = Box::new(client.replica.state.digests());
    client.send(ClientMessage::DigestResponse(client.replica.revision, digests)).await;
}

#[tokio::test(start_paused = true)]
async fn lost_state_is_repaired_after_the_next_ack() {
    let fixture = Fixture::of(large()).await;
    let mut client = fixture.joined("node-0").await;
    let key = client.replica.state.services.keys().nth(50).unwrap().clone();
    client.replica.state.services.remove(&key);
    client.bookmark().await;
    client.ack().await;
    answer_digest_request(&mut client).await;
    let batches = client.batches().await;
    let resets = batches.iter().flat_map(|batch| &batch.operations);
    assert_eq!(resets.filter(|operation| matches!(operation, Operation::ResetBucket(_))).count(), 1);
    assert!(client.replica.state.services.contains_key(&key));
    client.ack().await;
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().repairs, 1);
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_repair_are_included() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    client.replica.state.cluster = None;
    client.bookmark().await;
    client.ack().await;
    fixture.update(put(web(1..=7))).await;
    fixture.committed().await;
    answer_digest_request(&mut client).await;
    client.commit().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn client_with_other_digests_is_sent_one_snapshot_and_no_longer_checked() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    client.bookmark().await;
    client.send(wrong(&client)).await;
    answer_digest_request(&mut client).await;
    assert!(client.batches().await[0].operations.is_empty());
    client.send(wrong(&client)).await;
    assert!(client.batches().await[0].operations.len() > 128);
    client.send(wrong(&client)).await;
    fixture.update(put(web(1..=6))).await;
    assert_eq!(client.batches().await[0].operations.len(), 1);
    client.send(wrong(&client)).await;
    client.bookmark().await;
    client.send(wrong(&client)).await;
    client.receives_nothing(Duration::from_secs(9)).await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().repairs, 3);
}

/// A node may lie in its Acks and in its Hello.
#[tokio::test(start_paused = true)]
async fn node_that_claims_anything_counts_once() {
    let mut objects = small();
    objects.push(node("node-1", "zone-a").into());
    let fixture = Fixture::of(objects).await;
    let confirmed = VersionProgress::Confirmed(SourceVersion(100));
    fixture.update(SourceUpdate::Progress(ObjectKind::Node, confirmed)).await;
    fixture.committed().await;
    let counts = || {
        let fleet = fixture.frontend.context.streams.fleet();
        (fleet.differed(), fleet.rolled_back())
    };
    let lie = async |role, name| {
        let newer = Hello { role, source_version: SourceVersion(500), ..hello(name) };
        let mut client = fixture.connect(newer).await;
        assert_eq!(client.welcome().await, SyncMode::Snapshot);
        client.batches().await;
        client.send(wrong(&client)).await;
        client.message().await;
    };
    for (role, name, expected) in [
        (Role::Backend, "node-0", 1),
        (Role::Backend, "node-0", 1),
        (Role::Shadow, "node-1", 1),
        (Role::Backend, "node-9", 1),
        (Role::Backend, "node-1", 2),
    ] {
        lie(role, name).await;
        assert_eq!(counts(), (expected, expected), "{name} {role:?}");
    }
    assert_eq!(fixture.frontend.context.metrics.rollbacks.get(), 5);
    fixture.update(SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", "node-1"))).await;
    fixture.committed().await;
    assert_eq!(counts(), (1, 1), "a node without Node object");
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(counts(), (0, 0));
}

/// A client repeats its last Ack when its failures change, also while the frontend prepares a repair that has the same
/// revision.
#[tokio::test(start_paused = true)]
async fn repeated_ack_is_not_that_of_a_repair() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    client.replica.state.cluster = None;
    client.bookmark().await;
    let digest = client.replica.state.digests().total();
    let repeated = ClientMessage::Ack(client.ack_of(Some(digest), Vec::new()));
    client.send(repeated.clone()).await;
    answer_digest_request(&mut client).await;
    client.send(repeated.clone()).await;
    client.send(repeated).await;
    assert_eq!(fixture.programmed().await, Revision(0));
    client.commit().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().repairs, 1);
}

/// The snapshot after a repair that did not help may have the same revision, too.
#[tokio::test(start_paused = true)]
async fn repeated_ack_is_not_that_of_a_snapshot() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let begun = Instant::now();
    client.bookmark().await;
    let asked = begun.elapsed();
    client.send(wrong(&client)).await;
    answer_digest_request(&mut client).await;
    client.batches().await;
    client.send(wrong(&client)).await;
    client.send(wrong(&client)).await;
    assert!(client.batches().await[0].operations.len() > 128);
    assert_eq!(begun.elapsed(), asked, "the Ack of the repair counts at once");

    client.ack().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().repairs, 2);
}

/// As of a backend that ignores an endpoint which comes and goes, and that the frontend sends.
#[tokio::test(start_paused = true)]
async fn repairs_of_a_client_whose_digests_differ_now_and_then_are_bounded() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let mut repairs = 0;
    for _ in 0..30 {
        client.bookmark().await;
        client.send(wrong(&client)).await;
        if let Ok(message) = tokio::time::timeout(Duration::from_secs(2), client.message()).await {
            assert_eq!(message, ServerMessage::DigestRequest);
            let digests = Box::new(client.replica.state.digests());
            client.send(ClientMessage::DigestResponse(client.replica.revision, digests)).await;
            client.batches().await;
            client.ack().await;
            repairs += 1;
        }
    }
    assert_eq!(repairs, 6, "those of a burst");
    client.is_up_to_date().await;
}

/// Its state is wrong, and nothing has been sent since that makes it right.
#[tokio::test(start_paused = true)]
async fn node_whose_mismatch_is_not_repaired_is_not_programmed() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    repair_a_burst(&mut client, async |client| {
        assert_eq!(fixture.programmed().await, client.replica.revision);
    })
    .await;
    client.bookmark().await;
    client.send(wrong(&client)).await;
    assert_eq!(fixture.programmed().await, Revision(0));
    client.send(wrong(&client)).await;
    assert_eq!(fixture.programmed().await, Revision(0), "after a repeated Ack");
    fixture.update(put(node("node-7", "zone-b"))).await;
    fixture.committed().await;
    assert_eq!(fixture.programmed().await, Revision(0), "after a commit that does not concern the node");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let fleet = fixture.frontend.context.streams.fleet();
    let backend = fleet.backends().next().unwrap();
    assert!(backend.lag() >= Duration::from_secs(5) && backend.unanswered_since.is_none(), "{backend:?}");
    client.is_up_to_date().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
}

/// Right digests in between keep a frontend from no longer checking them.
#[tokio::test(start_paused = true)]
async fn wrong_digests_take_few_log_lines() {
    let config = Config { bookmark_interval: Duration::from_millis(10), ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    let mut client = fixture.joined("node-0").await;
    repair_a_burst(&mut client, async |_| ()).await;
    let (warnings, _guard) = Warnings::capture();
    for _ in 0..1_000 {
        client.bookmark().await;
        client.send(wrong(&client)).await;
    }
    client.is_up_to_date().await;
    assert!((1..=3).contains(&warnings.count()), "{} lines", warnings.count());
    assert_eq!(fixture.frontend.context.metrics.mismatches.get(), 1_006, "all are counted");
}

/// A node reconnects in one role after the other, and its streams are served.
#[tokio::test(start_paused = true)]
async fn newer_source_versions_take_few_log_lines() {
    let fixture = Fixture::of(small()).await;
    let confirmed = VersionProgress::Confirmed(SourceVersion(100));
    fixture.update(SourceUpdate::Progress(ObjectKind::Node, confirmed)).await;
    fixture.committed().await;
    let (warnings, _guard) = Warnings::capture();
    for _ in 0..50 {
        for role in [Role::Backend, Role::Observer] {
            let hello = Hello { role, source_version: SourceVersion(1 << 62), ..hello("node-0") };
            let mut client = fixture.connect(hello).await;
            client.welcome().await;
            client.disconnects().await.unwrap();
        }
    }
    assert_eq!(fixture.frontend.context.metrics.rollbacks.get(), 100, "all are counted");
    assert!((1..=8).contains(&warnings.count()), "{} lines", warnings.count());
}

#[tokio::test(start_paused = true)]
async fn client_without_digests_is_sent_a_snapshot() {
    let config = Config { history: HistoryLimits { entries: 1, bytes: 1 << 20 }, ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    let mut client = fixture.connect(hello("node-0")).await;
    client.welcome().await;
    client.batches().await;
    for last in 6..=9 {
        fixture.update(put(web(1..=last))).await;
        fixture.committed().await;
    }
    client.send(ClientMessage::Ack(client.ack_of(None, Vec::new()))).await;
    assert!(client.batches().await[0].operations.len() > 128, "a snapshot");
}

#[tokio::test(start_paused = true)]
async fn node_older_than_the_history_is_compared() {
    let config = Config { history: HistoryLimits { entries: 1, bytes: 1 << 20 }, ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.update(put(web(1..=6))).await;
    client.batches().await;
    for last in 7..=9 {
        fixture.update(put(web(1..=last))).await;
        fixture.committed().await;
    }
    client.ack().await;
    answer_digest_request(&mut client).await;
    client.commit().await;
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().repairs, 0, "no mismatch");

    let resume = client.resume();
    for last in 1..=3 {
        fixture.update(put(web(1..=last))).await;
        fixture.committed().await;
    }
    let mut client = fixture.connect(resume).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Repair);
    client.commit().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn node_that_changes_its_zone_is_compared() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.update(put(node("node-0", "zone-b"))).await;
    answer_digest_request(&mut client).await;
    let batches = client.batches().await;
    assert!(matches!(&batches[0].operations[..], [Operation::PutNode(_), Operation::PutCluster(_)]));
    client.ack().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn streams_at_one_revision_share_chunks() {
    let fixture = Fixture::of(small()).await;
    let mut first = fixture.joined("node-0").await;
    let mut second = fixture.joined("node-1").await;
    fixture.update(put(web(1..=6))).await;
    let (first, second) = (first.outgoing().await, second.outgoing().await);
    let (first, second) = (Client::shared_chunk(&first).unwrap(), Client::shared_chunk(&second).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
}

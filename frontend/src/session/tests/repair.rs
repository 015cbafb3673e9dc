//! What happens when a node does not hold what it should, or nobody knows how to get there from where it stands.

use std::{sync::Arc, time::Duration};

use proto::{
    digest::Digest,
    model::{ClientMessage, Operation, ServerMessage, SyncMode},
};

use crate::{
    Config,
    log::HistoryLimits,
    testing::{node, put},
};

use super::{Client, Fixture, hello, large, small, web};

async fn answer_digest_request(client: &mut Client) {
    let event = client.event().await;
    assert_eq!(event, ServerMessage::DigestRequest);
    let digests = Box::new(client.mirror.digests());
    client.say(ClientMessage::DigestResponse(client.mirror.revision, digests)).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_node_lost_is_noticed_at_the_next_ack_and_sent_again() {
    let fixture = Fixture::of(large()).await;
    let mut client = fixture.joined("node-0").await;
    let key = client.mirror.services.keys().nth(50).unwrap().clone();
    client.mirror.services.remove(&key);
    client.bookmark().await;
    client.ack().await;
    answer_digest_request(&mut client).await;
    let batches = client.batches().await;
    let resets = batches.iter().flat_map(|batch| &batch.operations);
    assert_eq!(resets.filter(|operation| matches!(operation, Operation::ResetBucket(_))).count(), 1);
    assert!(client.mirror.services.contains_key(&key));
    client.ack().await;
    client.settles().await;
    assert_eq!(fixture.frontend.sessions.streams.fleet().backends[0].repairs, 1);
}

#[tokio::test(start_paused = true)]
async fn changes_that_come_during_a_repair_are_in_it() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    client.mirror.cluster = None;
    client.bookmark().await;
    client.ack().await;
    fixture.update(put(web(1..=7))).await;
    fixture.committed().await;
    answer_digest_request(&mut client).await;
    client.commit().await;
    client.settles().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_computes_otherwise_is_sent_everything_once_and_then_left_alone() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let wrong = |client: &Client| ClientMessage::Ack(client.ack_of(Some(Digest(1)), Vec::new()));
    client.bookmark().await;
    client.say(wrong(&client)).await;
    answer_digest_request(&mut client).await;
    assert!(client.batches().await[0].operations.is_empty());
    client.say(wrong(&client)).await;
    assert!(client.batches().await[0].operations.len() > 128);
    client.say(wrong(&client)).await;
    fixture.update(put(web(1..=6))).await;
    assert_eq!(client.batches().await[0].operations.len(), 1);
    client.say(wrong(&client)).await;
    client.bookmark().await;
    client.say(wrong(&client)).await;
    client.hears_nothing(Duration::from_secs(9)).await;
    assert_eq!(fixture.frontend.sessions.streams.fleet().backends[0].repairs, 3);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_digests_is_not_asked() {
    let config = Config { history: HistoryLimits { entries: 1, bytes: 1 << 20 }, ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    let mut client = fixture.connect(hello("node-0")).await;
    client.welcome().await;
    client.batches().await;
    for last in 6..=9 {
        fixture.update(put(web(1..=last))).await;
        fixture.committed().await;
    }
    client.say(ClientMessage::Ack(client.ack_of(None, Vec::new()))).await;
    assert!(client.batches().await[0].operations.len() > 128, "a snapshot");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fell_behind_the_past_is_compared() {
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
    client.settles().await;
    assert_eq!(fixture.frontend.sessions.streams.fleet().backends[0].repairs, 0, "nobody has lost anything");

    let resume = client.resume();
    for last in 1..=3 {
        fixture.update(put(web(1..=last))).await;
        fixture.committed().await;
    }
    let mut client = fixture.connect(resume).await.holding(client.mirror);
    assert_eq!(client.welcome().await, SyncMode::Repair);
    client.commit().await;
    client.settles().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_moves_to_another_zone_is_compared() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.update(put(node("node-0", "zone-b"))).await;
    answer_digest_request(&mut client).await;
    let batches = client.batches().await;
    assert!(matches!(&batches[0].operations[..], [Operation::PutNode(_), Operation::PutCluster(_)]));
    client.ack().await;
    client.settles().await;
}

#[tokio::test(start_paused = true)]
async fn streams_at_one_cursor_share_what_they_send() {
    let fixture = Fixture::of(small()).await;
    let mut first = fixture.joined("node-0").await;
    let mut second = fixture.joined("node-1").await;
    fixture.update(put(web(1..=6))).await;
    let (first, second) = (first.frame().await, second.frame().await);
    let (first, second) = (Client::shared_chunk(&first).unwrap(), Client::shared_chunk(&second).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
}

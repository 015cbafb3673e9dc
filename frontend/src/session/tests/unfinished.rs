//! Backends that program a large change in several transactions, and acknowledge it before the last one.

use super::{client::Client, *};

/// A node that has acknowledged a change which it has programmed in part.
async fn unfinished() -> (Fixture, Client) {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.update(put(web(1..=6))).await;
    client.batches().await;
    client.ack_unfinished(3).await;
    (fixture, client)
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_ack_releases_the_next_difference_but_is_not_programmed() {
    let (fixture, mut client) = unfinished().await;
    let before = fixture.programmed().await;
    assert!(before < client.replica.revision);

    fixture.update(put(web(1..=7))).await;
    client.batches().await;
    client.ack_unfinished(2).await;
    assert_eq!(fixture.programmed().await, before);
    client.ack().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
}

/// There is one of them for each commit, so that they are not limited as repeated acks are.
#[tokio::test(start_paused = true)]
async fn acks_that_finish_a_commit_are_not_counted_as_repeated() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    for round in 0..100u8 {
        fixture.update(put(web(1..=6 + round % 2))).await;
        client.batches().await;
        client.ack_unfinished(1).await;
        client.ack().await;
        assert_eq!(fixture.programmed().await, client.replica.revision);
    }
    client.is_up_to_date().await;
}

/// The ack of a difference that was sent meanwhile is still expected.
#[tokio::test(start_paused = true)]
async fn an_ack_that_finishes_the_previous_commit_may_cross_the_next_one() {
    let (fixture, mut client) = unfinished().await;
    let finishing = client.ack_of(Some(client.replica.state.digests().total()), Vec::new());
    fixture.update(put(web(1..=7))).await;
    client.batches().await;
    client.send(ClientMessage::Ack(finishing)).await;
    assert!(fixture.programmed().await < client.replica.revision);
    client.ack().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
    client.is_up_to_date().await;
}

/// A change of another node does not end the lag of this one.
#[tokio::test(start_paused = true)]
async fn a_commit_without_changes_for_the_node_does_not_finish_it() {
    let (fixture, client) = unfinished().await;
    let before = fixture.programmed().await;
    fixture.update(put(node("node-7", "zone-b"))).await;
    let now = fixture.committed().await;
    assert!(now > client.replica.revision);
    assert_eq!(fixture.programmed().await, before);
    client.ack().await;
    assert_eq!(fixture.programmed().await, now);
}

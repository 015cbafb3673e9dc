//! Backends that acknowledge a large change before they have programmed it.

use super::{client::Client, *};

/// A node that has acknowledged a change which it has programmed in part, and the revision before.
async fn unfinished() -> (Fixture, Client, Revision) {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    fixture.update(put(web(1..=6))).await;
    client.batches().await;
    client.ack_programmed(before).await;
    (fixture, client, before)
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_ack_releases_the_next_difference_but_is_not_programmed() {
    let (fixture, mut client, before) = unfinished().await;
    let first = client.replica.revision;
    assert_eq!(fixture.programmed().await, before);

    fixture.update(put(web(1..=7))).await;
    client.batches().await;
    client.ack_programmed(before).await;
    assert_eq!(fixture.programmed().await, before);
    client.ack_programmed(first).await;
    assert_eq!(fixture.programmed().await, first);
    client.ack().await;
    assert_eq!(fixture.programmed().await, client.replica.revision);
}

/// A backend that starts while changes keep coming may never have all of them.
#[tokio::test(start_paused = true)]
async fn a_new_node_that_is_always_one_change_behind_has_programmed_what_it_was_sent_first() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.connect(hello("node-0")).await;
    client.welcome().await;
    client.batches().await;
    client.ack_programmed(Revision(0)).await;
    let backend = || fixture.frontend.context.streams.fleet().backends().next().unwrap().clone();
    for last in 6..10 {
        let before = client.replica.revision;
        fixture.update(put(web(1..=last))).await;
        client.batches().await;
        client.ack_programmed(before).await;
        assert_eq!(fixture.programmed().await, before);
        assert!(backend().lag() < Duration::from_secs(1));
    }
}

/// The lag is that of the oldest change that is not programmed.
#[tokio::test(start_paused = true)]
async fn the_lag_ends_with_the_oldest_change() {
    let (fixture, mut client, before) = unfinished().await;
    let first = client.replica.revision;
    let lag = || fixture.frontend.context.streams.fleet().backends().next().unwrap().lag().as_secs();
    tokio::time::sleep(Duration::from_secs(5)).await;
    fixture.update(put(web(1..=7))).await;
    client.batches().await;
    client.ack_programmed(before).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(lag(), 7);
    client.ack_programmed(first).await;
    fixture.programmed().await;
    assert_eq!(lag(), 2);
    client.ack().await;
    fixture.programmed().await;
    assert_eq!(lag(), 0);
}

/// There is one of them for each commit, so that they are not limited as repeated acks are.
#[tokio::test(start_paused = true)]
async fn acks_that_finish_a_commit_are_not_counted_as_repeated() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    for round in 0..100u8 {
        let before = client.replica.revision;
        fixture.update(put(web(1..=6 + round % 2))).await;
        client.batches().await;
        client.ack_programmed(before).await;
        client.ack().await;
        assert_eq!(fixture.programmed().await, client.replica.revision);
    }
    client.is_up_to_date().await;
}

/// What is kept of a node that is far behind is bounded. It counts as less then, never as more.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_many_commits_behind_counts_as_less() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let first = client.replica.revision;
    let mut revisions = Vec::new();
    for round in 0..100u8 {
        fixture.update(put(web(1..=6 + round % 2))).await;
        client.batches().await;
        client.ack_programmed(first).await;
        revisions.push(client.replica.revision);
    }
    assert_eq!(fixture.programmed().await, first);
    for (programmed, counted) in [(9, 9), (40, 40), (80, 61), (98, 61), (99, 99)] {
        client.ack_programmed(revisions[programmed]).await;
        assert_eq!(fixture.programmed().await, revisions[counted], "{programmed}");
    }
    client.is_up_to_date().await;
}

/// The ack of a difference that was sent meanwhile is still expected.
#[tokio::test(start_paused = true)]
async fn an_ack_that_finishes_the_previous_commit_may_cross_the_next_one() {
    let (fixture, mut client, _) = unfinished().await;
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
    let (fixture, client, before) = unfinished().await;
    assert_eq!(fixture.programmed().await, before);
    fixture.update(put(node("node-7", "zone-b"))).await;
    let now = fixture.committed().await;
    assert!(now > client.replica.revision);
    assert_eq!(fixture.programmed().await, before);
    client.ack().await;
    assert_eq!(fixture.programmed().await, now);
}

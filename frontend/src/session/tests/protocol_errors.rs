//! Clients that break the rules.

use std::time::Duration;

use proto::model::{ClientMessage, Revision};

use crate::{
    Config,
    session::SessionError,
    testing::{put, service},
};

use super::{Client, Fixture, hello, small};

async fn ends_with(client: Client, expected: &str) {
    assert_eq!(client.ends().await.unwrap_err().to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn saying_nothing() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.connect_silently("node-0");
    let start = tokio::time::Instant::now();
    ends_with(client, "no Hello within 10s: send Hello as soon as the stream is open").await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn saying_something_else_first() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.connect_silently("node-0");
    client.ack().await;
    ends_with(client, "the first message must be a Hello").await;
}

#[tokio::test(start_paused = true)]
async fn saying_hello_twice() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    client.say(ClientMessage::Hello(hello("node-0"))).await;
    ends_with(client, "a second Hello on one stream: open another stream instead").await;
}

#[tokio::test(start_paused = true)]
async fn speaking_before_the_welcome() {
    let fixture = Fixture::new(Config::default());
    let client = fixture.connect(hello("node-0")).await;
    client.ack().await;
    ends_with(client, "a message before the Welcome: after Hello, wait for Welcome").await;
}

#[tokio::test(start_paused = true)]
async fn acknowledging_what_was_never_sent() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let sent = client.mirror.revision;
    client.mirror.revision = Revision(77);
    client.ack().await;
    ends_with(client, &format!("ack.revision: is 77, but the last revision sent on this stream is {sent}")).await;
}

#[tokio::test(start_paused = true)]
async fn an_ack_may_be_repeated_also_when_something_is_under_way() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let repeated = client.ack_of(None, Vec::new());
    fixture.update(put(service("extra", "10.96.0.77"))).await;
    fixture.committed().await;
    client.say(ClientMessage::Ack(repeated)).await;
    client.commit().await;
    client.settles().await;
    assert_eq!(fixture.frontend.sessions.streams.fleet().backends[0].acked, client.mirror.revision);
    client.leaves().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn digests_that_nobody_wanted() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    client.say(ClientMessage::DigestResponse(Revision(2), Box::new(client.mirror.digests()))).await;
    ends_with(client, "unexpected DigestResponse: send it only in answer to a DigestRequest").await;
}

#[tokio::test(start_paused = true)]
async fn something_unreadable() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    let invalid = proto::InvalidMessage { field: "ack.failures[0].key".to_owned(), reason: "is missing".to_owned() };
    client.say_unreadable(SessionError::from(invalid)).await;
    ends_with(client, "ack.failures[0].key: is missing").await;
}

#[tokio::test(start_paused = true)]
async fn leaving_is_no_error() {
    let fixture = Fixture::of(small()).await;
    fixture.connect_silently("node-0").leaves().await.unwrap();
    fixture.joined("node-0").await.leaves().await.unwrap();
    let waiting = Fixture::new(Config::default()).connect(hello("node-0")).await;
    waiting.leaves().await.unwrap();
}

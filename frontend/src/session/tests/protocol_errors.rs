//! Clients that break the protocol.

use std::time::Duration;

use proto::model::{Ack, ClientMessage, Hello, Revision, Role};

use crate::{
    Config,
    identity::Identity,
    session::SessionError,
    testing::{hello, put, service},
};

use super::{Client, Fixture, small};

async fn ends_with(client: Client, expected: &str) {
    assert_eq!(client.ends().await.unwrap_err().to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn no_hello_ends_the_stream() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.connect_without_hello("node-0");
    let start = tokio::time::Instant::now();
    ends_with(client, "no Hello within 10s: send Hello as soon as the stream is open").await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn first_message_must_be_hello() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.connect_without_hello("node-0");
    client.ack().await;
    ends_with(client, "the first message must be a Hello").await;
}

#[tokio::test(start_paused = true)]
async fn second_hello_ends_the_stream() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    client.send(ClientMessage::Hello(hello("node-0"))).await;
    ends_with(client, "a second Hello on one stream: open another stream instead").await;
}

/// It would be part of log lines.
#[tokio::test(start_paused = true)]
async fn hello_must_have_the_name_of_a_node() {
    let fixture = Fixture::of(small()).await;
    for name in ["a\nERROR x", "a\u{1b}[31m", "A", ""] {
        let ended = fixture.connect(hello(name)).await.ends().await;
        assert!(
            matches!(&ended, Err(SessionError::Invalid(error)) if error.field == "hello.node"),
            "{name:?}: {ended:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn local_process_serves_its_node_only() {
    let config = Config { only_node: Some("node-0".into()), ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    drop(fixture.joined("node-0").await);
    let expected = "hello.node: this process serves node node-0 only, as `fairlead local` does: \
                    connect to a `fairlead frontend`";
    ends_with(fixture.connect(hello("node-1")).await, expected).await;
}

/// A half-upgraded cluster: the node is without a stream, and the status says why. Another client cannot write that.
#[tokio::test(start_paused = true)]
async fn status_has_the_reason_of_a_stream_rejected_before_welcome() {
    let fixture = Fixture::of(small()).await;
    let last_error = || fixture.frontend.context.streams.fleet().last_error("node-0").map(str::to_owned);
    let other_version = |role| Hello { version: 99, role, ..hello("node-0") };

    let other = fixture.connect_as(Identity::Node("node-1".into()), "node-0");
    other.send(ClientMessage::Hello(other_version(Role::Backend))).await;
    let denied = other.ends().await;
    assert!(matches!(denied, Err(SessionError::Denied(_))), "{denied:?}");
    fixture.connect(other_version(Role::Observer)).await.ends().await.unwrap_err();
    assert_eq!(last_error(), None);

    let own = fixture.connect_as(Identity::Node("node-0".into()), "node-0");
    own.send(ClientMessage::Hello(other_version(Role::Backend))).await;
    let error = own.ends().await.unwrap_err().to_string();
    assert!(error.starts_with("no common protocol version"), "{error}");
    assert_eq!(last_error(), Some(error));
    let _upgraded = fixture.joined("node-0").await;
    fixture.programmed().await;
    assert_eq!(last_error(), None);
}

#[tokio::test(start_paused = true)]
async fn message_before_welcome_ends_the_stream() {
    let fixture = Fixture::new(Config::default());
    let client = fixture.connect(hello("node-0")).await;
    client.ack().await;
    ends_with(client, "a message before the Welcome: after Hello, wait for Welcome").await;
}

#[tokio::test(start_paused = true)]
async fn ack_of_an_unsent_message_ends_the_stream() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    client.send(ClientMessage::Ack(Ack::complete(77, None))).await;
    let expected = "ack.received_number: is 77, but was 1 in the last Ack: count each commit and bookmark exactly once";
    ends_with(client, expected).await;
}

/// Each answers a message of its own, also if their revisions are equal.
#[tokio::test(start_paused = true)]
async fn ack_of_an_earlier_message_than_the_last_ends_the_stream() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    client.is_up_to_date().await;
    client.send(ClientMessage::Ack(Ack::complete(1, None))).await;
    let ended = client.ends().await;
    assert!(matches!(ended, Err(SessionError::UnexpectedAck { number: 1, acked: 2 })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn last_ack_may_be_repeated_while_another_is_awaited() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let repeated = client.ack_of(None, Vec::new());
    fixture.update(put(service("extra", "10.96.0.77"))).await;
    fixture.committed().await;
    client.send(ClientMessage::Ack(repeated)).await;
    client.commit().await;
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().acked, client.replica.revision);
    client.disconnects().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unexpected_digests_end_the_stream() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    client.send(ClientMessage::DigestResponse(Revision(2), Box::new(client.replica.state.digests()))).await;
    ends_with(client, "unexpected DigestResponse: send it only in answer to a DigestRequest").await;
}

#[tokio::test(start_paused = true)]
async fn invalid_message_ends_the_stream() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    let invalid = proto::InvalidMessage { field: "ack.failures[0].key".to_owned(), reason: "is missing".to_owned() };
    client.send_invalid(SessionError::from(invalid)).await;
    ends_with(client, "ack.failures[0].key: is missing").await;
}

#[tokio::test(start_paused = true)]
async fn disconnect_is_not_an_error() {
    let fixture = Fixture::of(small()).await;
    fixture.connect_without_hello("node-0").disconnects().await.unwrap();
    fixture.joined("node-0").await.disconnects().await.unwrap();
    let waiting = Fixture::new(Config::default()).connect(hello("node-0")).await;
    waiting.disconnects().await.unwrap();
}

//! Streams that reach their maximum age.

use std::time::Duration;

use fairlead_frontend::Config;
use proto::model::SyncMode;
use tonic::Code;

use super::{
    client::Client,
    fixture::{Server, Stream, hello},
};

fn config() -> Config {
    Config {
        // The client receives its snapshot before, also on a busy machine.
        max_stream_age: Some(Duration::from_secs(2)),
        drain_grace: Duration::from_millis(100),
        ..Config::default()
    }
}

#[tokio::test]
async fn old_stream_is_drained_and_resumed() {
    let server = Server::start(config(), 20).await;
    let mut good = Client::join(&server, "node").await;
    for _ in 0..3 {
        assert_eq!(good.drained().await, 0);
        let before = good.state.clone();
        good = good.reconnect_to(&server).await;
        assert_eq!((good.mode, &good.state), (SyncMode::Resume, &before));
    }
    assert_eq!(server.frontend.stream_stats().rebuilds, 1, "no further snapshot");
}

#[tokio::test]
async fn old_stream_ends_although_the_client_ignores_drain() {
    let server = Server::start(config(), 20).await;
    let mut good = Client::join(&server, "node").await;
    good.drained().await;
    let status = good.stream.rejected().await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("the stream is too old"), "{status}");
    server.until_streams(0).await;
}

#[tokio::test]
async fn old_stream_ends_although_the_client_does_not_read() {
    let server = Server::start(config(), 200).await;
    let channel = server.endpoint().initial_stream_window_size(1).connect().await.unwrap();
    let stream = tokio::spawn(Stream::hello(channel, hello("node")));
    server.until(|stats| stats.rebuilds == 1).await;
    server.until_streams(0).await;
    // The status of the call, if the client reads it before its connection is closed.
    let mut stream = stream.await.unwrap().unwrap();
    stream.rejected().await;
}

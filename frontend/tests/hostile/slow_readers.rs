//! Clients that ask for everything and do not read it: neither their stream, nor their socket, or only a byte a second.

use std::time::Duration;

use fairlead_frontend::{Config, ConnectionLimits};

use crate::{
    BAD,
    client::Client,
    fixture::{Alone, CHANGES, Server, Stream, hello},
    transport::{self, Pace},
};

/// A snapshot of 1.2 MB: more than a stuck client's socket and window take.
const SERVICES: u8 = 200;

/// Fewer places than bad clients, each for a short time.
fn config() -> Config {
    let bookmark_interval = Duration::from_millis(50);
    Config {
        max_concurrent_rebuilds: 4,
        rebuild_timeout: Duration::from_millis(100),
        bookmark_interval,
        ..Config::default()
    }
}

fn impatient() -> Config {
    let connections = ConnectionLimits {
        keepalive: Duration::from_millis(200),
        keepalive_timeout: Duration::from_secs(2),
        ..ConnectionLimits::default()
    };
    Config { connections, ..config() }
}

/// All were given a place, gave it back, and cost nothing since but what is `under_way` to them: so many chunks of messages.
async fn are_harmless(server: &Server, good: &mut Client, alone: &Alone, under_way: u64) {
    let before = server.until(|stats| stats.rebuilds_waiting == 0 && stats.rebuilds_running == 0).await;
    assert_eq!(before.rebuilds, 1 + BAD as u64);
    server.beside(good, alone).await;
    let after = server.frontend.stream_stats();
    assert_eq!((after.rebuilds, after.rebuilds_waiting, after.rebuilds_running), (before.rebuilds, 0, 0));
    let sent = after.chunks_sent - before.chunks_sent;
    // All changes are the good client's.
    let changes = u64::from(CHANGES);
    assert!((changes..=changes + under_way).contains(&sent), "{before:?} {after:?}");
    Client::join(server, "late").await;
}

#[tokio::test]
async fn streams_that_are_not_read() {
    let server = Server::start(config(), SERVICES).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD {
        // Not even the Welcome passes, while the connection is as lively as any.
        let channel = server.endpoint().initial_stream_window_size(1).connect().await.unwrap();
        let stream = Stream::hello(channel, hello(&format!("bad-{number}")));
        bad.push(tokio::spawn(stream));
    }
    server.until(|stats| stats.rebuilds == 1 + BAD as u64).await;
    are_harmless(&server, &mut good, &alone, 0).await;
}

#[tokio::test]
async fn sockets_that_are_not_read() {
    sockets(Pace::Until(20_000)).await;
}

#[tokio::test]
async fn sockets_that_are_read_a_byte_a_second() {
    sockets(Pace::Trickle(20_000)).await;
}

/// Pings are not answered by these, so that they go.
async fn sockets(pace: Pace) {
    let server = Server::start(impatient(), SERVICES).await;
    let mut good = Client::join(&server, "good").await;
    let snapshot = server.frontend.stream_stats().chunks_sent;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD {
        let (channel, _) = transport::channel(server.endpoint(), server.address, pace).await;
        bad.push(Stream::hello(channel, hello(&format!("bad-{number}"))).await.unwrap());
    }
    server.until(|stats| stats.rebuilds == 1 + BAD as u64).await;
    are_harmless(&server, &mut good, &alone, BAD as u64 * snapshot).await;
    server.until_streams(1).await;
}

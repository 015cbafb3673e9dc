//! Clients that need a snapshot and do not read their stream, or only a byte per second of their socket.

use std::time::Duration;

use fairlead_frontend::{Config, ConnectionLimits};

use super::{
    BAD_CLIENTS,
    client::Client,
    fixture::{Baseline, CHANGES, Server, Stream, hello},
    transport::ReadRate,
};

/// Makes a snapshot of 1.2 MB: more than the socket buffers and the flow-control window of a stuck client.
const SERVICES: u8 = 200;

/// Fewer permits than misbehaving clients, which expire soon.
fn config() -> Config {
    let bookmark_interval = Duration::from_millis(50);
    Config {
        max_concurrent_rebuilds: 4,
        rebuild_timeout: Duration::from_millis(100),
        bookmark_interval,
        ..Config::default()
    }
}

fn short_keepalive() -> Config {
    let connections = ConnectionLimits {
        keepalive: Duration::from_millis(200),
        keepalive_timeout: Duration::from_secs(5),
        ..ConnectionLimits::default()
    };
    Config { connections, ..config() }
}

/// Checks that all got a permit, lost it again, and are sent nothing since but the `in_transit` chunks.
async fn check_harmless(server: &Server, good: &mut Client, baseline: &Baseline, in_transit: u64) {
    let before = server.until(|stats| stats.rebuilds_waiting == 0 && stats.rebuilds_running == 0).await;
    assert_eq!(before.rebuilds, 1 + BAD_CLIENTS as u64);
    server.check_round(good, baseline).await;
    let after = server.frontend.stream_stats();
    assert_eq!((after.rebuilds, after.rebuilds_waiting, after.rebuilds_running), (before.rebuilds, 0, 0));
    let sent = after.chunks_sent - before.chunks_sent;
    // Only the well-behaved client is sent changes.
    let changes = u64::from(CHANGES);
    assert!((changes..=changes + in_transit).contains(&sent), "{before:?} {after:?}");
    Client::join(server, "late").await;
}

#[tokio::test]
async fn unread_streams_do_not_delay_others() {
    let server = Server::start(config(), SERVICES).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD_CLIENTS {
        // Not even Welcome fits into this window, while the connection itself works.
        let channel = server.endpoint().initial_stream_window_size(1).connect().await.unwrap();
        let stream = Stream::hello(channel, hello(&format!("bad-{number}")));
        bad.push(tokio::spawn(stream));
    }
    server.until(|stats| stats.rebuilds == 1 + BAD_CLIENTS as u64).await;
    check_harmless(&server, &mut good, &baseline, 0).await;
}

/// These clients do not answer pings, so their connections are closed.
#[tokio::test]
async fn slowly_read_sockets_do_not_delay_others() {
    let server = Server::start(short_keepalive(), SERVICES).await;
    let mut good = Client::join(&server, "good").await;
    let snapshot = server.frontend.stream_stats().chunks_sent;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD_CLIENTS {
        let (channel, _) = server.throttled_channel(ReadRate::Trickle(20_000)).await;
        bad.push(Stream::hello(channel, hello(&format!("bad-{number}"))).await.unwrap());
    }
    server.until(|stats| stats.rebuilds == 1 + BAD_CLIENTS as u64).await;
    check_harmless(&server, &mut good, &baseline, BAD_CLIENTS as u64 * snapshot).await;
    server.until_streams(1).await;
}

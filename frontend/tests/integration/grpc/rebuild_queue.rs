//! The limit on concurrent snapshots: nothing is built for clients in the queue, and no client holds its permit
//! forever.

use std::time::Duration;

use fairlead_frontend::{Config, StreamStats, object::SourceUpdate};
use proto::v1::{self, server_message};
use tokio::time::{sleep, timeout};

use super::{Server, Stream, TIMEOUT, Transport, change, cluster, hello, slice, unix_channel};

/// More than the flow-control window of a client that does not read, which is 2 MiB.
const SERVICES: u8 = 200;

/// Limits concurrent snapshots, without a timeout that matters.
fn config(max_concurrent_rebuilds: usize) -> Config {
    let (rebuild_timeout, bookmark_interval) = (Duration::from_secs(600), Duration::from_millis(50));
    Config { max_concurrent_rebuilds, rebuild_timeout, bookmark_interval, ..Config::default() }
}

/// A client that needs a snapshot and does not read.
async fn stuck(server: &Server) -> Stream {
    stuck_on(server, "node-1").await
}

async fn stuck_on(server: &Server, node: &str) -> Stream {
    Stream::hello(unix_channel(server.socket()).await, hello(node)).await.unwrap()
}

async fn until(server: &Server, wanted: impl Fn(StreamStats) -> bool) -> StreamStats {
    let reached = async {
        while !wanted(server.frontend.stream_stats()) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let reached = timeout(TIMEOUT, reached).await;
    reached.unwrap_or_else(|_| panic!("{:?}", server.frontend.stream_stats()));
    server.frontend.stream_stats()
}

#[tokio::test]
async fn only_running_snapshots_are_built() {
    let server = Server::start(Transport::Unix, config(2), cluster(SERVICES)).await;
    let mut streams = Vec::new();
    for number in 0..6 {
        streams.push(stuck_on(&server, &format!("node-{}", 11 + number)).await);
    }
    let stats = until(&server, |stats| stats.rebuilds_waiting == 4).await;
    assert_eq!((stats.rebuilds_running, stats.rebuilds), (2, 2));
    let status = server.status().await;
    assert_eq!(status.nodes.len(), 6, "waiting clients are connected");
    // Disconnecting leaves the queue or releases the permit.
    streams.truncate(3);
    until(&server, |stats| stats.rebuilds_waiting == 1).await;
    streams.remove(0);
    let stats = until(&server, |stats| stats.rebuilds_waiting == 0).await;
    assert_eq!((stats.rebuilds_running, stats.rebuilds), (2, 3));
}

#[tokio::test]
async fn streams_of_one_node_take_one_permit() {
    let server = Server::start(Transport::Unix, config(2), cluster(SERVICES)).await;
    let mut streams = Vec::new();
    for role in [v1::Role::Backend, v1::Role::Observer, v1::Role::Shadow] {
        let hello = v1::Hello { role: role.into(), ..hello("node-1") };
        streams.push(Stream::hello(unix_channel(server.socket()).await, hello).await.unwrap());
    }
    let stats = until(&server, |stats| stats.rebuilds == 3).await;
    assert_eq!((stats.rebuilds_running, stats.rebuilds_waiting), (1, 0));
    let mut other = server.hello(hello("node-2")).await;
    assert!(other.commit().await.last().is_some_and(|batch| batch.commit));
}

#[tokio::test]
async fn permit_of_a_client_that_does_not_read_expires() {
    let config = Config { rebuild_timeout: Duration::from_millis(200), ..config(1) };
    let server = Server::start(Transport::Unix, config, cluster(SERVICES)).await;
    let _stuck = stuck(&server).await;
    until(&server, |stats| stats.rebuilds == 1).await;
    let mut stream = server.hello(hello("node-2")).await;
    let batches = stream.commit().await;
    assert!(batches.last().is_some_and(|batch| batch.commit));
    assert_eq!(until(&server, |stats| stats.rebuilds_running == 0).await.rebuilds, 2);
}

#[tokio::test]
async fn waiting_client_is_sent_keepalives_and_drained() {
    let config =
        Config { max_drain_delay: Duration::from_millis(100), drain_grace: Duration::from_millis(100), ..config(1) };
    let server = Server::start(Transport::Unix, config, cluster(SERVICES)).await;
    let _stuck = stuck(&server).await;
    until(&server, |stats| stats.rebuilds_running == 1).await;
    let mut waits = server.hello(hello("node-2")).await;
    let Some(server_message::Message::Welcome(_)) = waits.next().await.unwrap() else { panic!("no welcome") };
    for _ in 0..3 {
        let Some(server_message::Message::Batch(batch)) = waits.next().await.unwrap() else { panic!("no batch") };
        assert!(!batch.commit && batch.operations.is_empty(), "{batch:?}");
    }
    server.trigger.fire();
    let drain = loop {
        match waits.next().await.unwrap() {
            Some(server_message::Message::Drain(drain)) => break drain,
            // Its snapshot begins if the other client is drained first, which releases the permit.
            Some(server_message::Message::Batch(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(drain.max_delay_millis, 0);
}

#[tokio::test]
async fn resume_and_changes_do_not_wait() {
    let server = Server::start(Transport::Unix, config(1), cluster(SERVICES)).await;
    let mut stream = server.hello(hello("node-2")).await;
    let revision = stream.commit().await.last().unwrap().target_revision;
    drop(stream);
    let epoch = server.status().await.epoch;
    let _stuck = stuck(&server).await;
    until(&server, |stats| stats.rebuilds_running == 1).await;
    let mut again = server.hello(v1::Hello { epoch, revision, ..hello("node-2") }).await;
    let Some(server_message::Message::Welcome(welcome)) = again.next().await.unwrap() else { panic!("no welcome") };
    assert_eq!(welcome.mode(), v1::SyncMode::Resume);
    let bookmark = again.next().await.unwrap();
    assert!(matches!(bookmark, Some(server_message::Message::Bookmark(_))), "{bookmark:?}");
    again.ack().await;
    server.updates.send(SourceUpdate::Apply(slice(7, 900))).await.unwrap();
    assert_eq!(change(&mut again).await.operations.len(), 1);
}

#[tokio::test]
async fn chunks_for_all_nodes_are_encoded_once() {
    let server = Server::start(Transport::Unix, Config::default(), cluster(20)).await;
    let mut streams = vec![server.hello(hello("node-2")).await];
    streams[0].commit().await;
    let first = server.frontend.stream_stats();
    for number in 3..7 {
        let mut stream = server.hello(hello(&format!("node-{number}"))).await;
        stream.commit().await;
        streams.push(stream);
    }
    let all = server.frontend.stream_stats();
    assert_eq!(all.chunks_sent, 5 * first.chunks_sent);
    assert_eq!(all.chunks_encoded, first.chunks_encoded + 4, "only the facts about each node");
    server.updates.send(SourceUpdate::Apply(slice(7, 900))).await.unwrap();
    for stream in &mut streams {
        assert_eq!(change(stream).await.operations.len(), 1);
    }
    let changed = server.frontend.stream_stats();
    assert_eq!((changed.chunks_encoded - all.chunks_encoded, changed.chunks_sent - all.chunks_sent), (1, 5));
}

//! Nodes that start too many streams or calls.

use std::time::{Duration, Instant};

use fairlead_frontend::{Config, Rate};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::{
    BAD_CLIENTS, TIMEOUT,
    client::Client,
    fixture::{Server, Stream, hello},
};

#[tokio::test]
async fn stream_starts_of_a_node_are_limited() {
    let every = Duration::from_millis(500);
    let syncs_per_node = Rate { burst: 3, every };
    let server = Server::start(Config { streams_per_node: 4, syncs_per_node, ..Config::default() }, 20).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let (before, begun) = (server.frontend.stream_stats(), Instant::now());
    let mut bad = Vec::new();
    for _ in 0..BAD_CLIENTS {
        let endpoint = server.endpoint();
        bad.push(tokio::spawn(async move {
            loop {
                let Ok(channel) = endpoint.connect().await else { continue };
                // All clients claim to be one node.
                if let Ok(mut stream) = Stream::hello(channel, hello("bad")).await {
                    let _ = timeout(Duration::from_millis(50), stream.receive()).await;
                }
                sleep(Duration::from_millis(1)).await;
            }
        }));
    }
    server.check_round(&mut good, &baseline).await;
    server.until(|stats| stats.rebuilds > before.rebuilds + 4).await;
    let (rebuilds, took) = (server.frontend.stream_stats().rebuilds - before.rebuilds, begun.elapsed());
    let most = 3 + u64::try_from(took.as_millis() / every.as_millis()).unwrap() + 1;
    assert!(rebuilds <= most, "{rebuilds} in {took:?}");
    bad.iter().for_each(tokio::task::JoinHandle::abort);
    drop(bad);
    server.until_streams(1).await;
}

#[tokio::test]
async fn streams_of_a_node_are_limited() {
    let syncs_per_node = Rate { burst: 100, every: Duration::from_secs(1) };
    let server = Server::start(Config { streams_per_node: 4, syncs_per_node, ..Config::default() }, 5).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = server.hello(hello("node")).await;
        stream.receive().await.unwrap();
        streams.push(stream);
    }
    let status = server.hello(hello("node")).await.rejected().await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::ResourceExhausted, "this node already has 4 streams in this role, which is the limit: close one first")
    );
    server.hello(hello("other")).await.receive().await.unwrap();
    streams.pop();
    server.until_streams(3).await;
    server.hello(hello("node")).await.receive().await.unwrap();
}

#[tokio::test]
async fn calls_of_a_connection_are_limited() {
    let server = Server::start(Config::default(), 5).await;
    let channel = server.channel().await;
    let mut streams = Vec::new();
    for number in 0..16 {
        let stream = Stream::hello(channel.clone(), hello(&format!("node-{number}")));
        let mut stream = timeout(TIMEOUT, stream).await.unwrap().unwrap();
        stream.receive().await.unwrap();
        streams.push(stream);
    }
    let mut next = Box::pin(Stream::hello(channel, hello("node-16")));
    assert!(timeout(Duration::from_millis(200), &mut next).await.is_err());
    streams.clear();
    timeout(TIMEOUT, next).await.unwrap().unwrap().receive().await.unwrap();
}

//! Clients that ask for a view again and again.

use std::time::{Duration, Instant};

use fairlead_frontend::{Config, NodeLimits, Rate};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::{
    BAD, PATIENCE,
    client::Client,
    fixture::{Server, Stream, hello},
};

#[tokio::test]
async fn a_view_every_millisecond() {
    let every = Duration::from_millis(500);
    let node_limits = NodeLimits { streams: 4, syncs: Rate { burst: 3, every } };
    let server = Server::start(Config { node_limits, ..Config::default() }, 20).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let (before, begun) = (server.frontend.stream_stats(), Instant::now());
    let mut bad = Vec::new();
    for _ in 0..BAD {
        let endpoint = server.endpoint();
        bad.push(tokio::spawn(async move {
            loop {
                let Ok(channel) = endpoint.connect().await else { continue };
                // One node, however many clients and connections say that they are it.
                if let Ok(mut stream) = Stream::hello(channel, hello("bad")).await {
                    let _ = timeout(Duration::from_millis(50), stream.commit()).await;
                }
                sleep(Duration::from_millis(1)).await;
            }
        }));
    }
    server.beside(&mut good, &alone).await;
    server.until(|stats| stats.rebuilds > before.rebuilds + 4).await;
    let (given, took) = (server.frontend.stream_stats().rebuilds - before.rebuilds, begun.elapsed());
    let most = 3 + u64::try_from(took.as_millis() / every.as_millis()).unwrap() + 1;
    assert!(given <= most, "{given} in {took:?}");
    bad.iter().for_each(tokio::task::JoinHandle::abort);
    drop(bad);
    server.until_streams(1).await;
}

#[tokio::test]
async fn so_many_streams_of_one_node_and_no_more() {
    let rate = Rate { burst: 100, every: Duration::from_secs(1) };
    let node_limits = NodeLimits { streams: 4, syncs: rate };
    let server = Server::start(Config { node_limits, ..Config::default() }, 5).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = server.hello(hello("node")).await;
        stream.commit().await.unwrap();
        streams.push(stream);
    }
    let status = server.hello(hello("node")).await.ends().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::ResourceExhausted, "this node already has 4 streams in this role, which is the limit: close one first")
    );
    server.hello(hello("other")).await.commit().await.unwrap();
    streams.pop();
    server.until_streams(3).await;
    server.hello(hello("node")).await.commit().await.unwrap();
}

#[tokio::test]
async fn so_many_calls_of_one_connection_and_the_next_waits() {
    let server = Server::start(Config::default(), 5).await;
    let channel = server.channel().await;
    let mut streams = Vec::new();
    for number in 0..16 {
        let stream = Stream::hello(channel.clone(), hello(&format!("node-{number}")));
        let mut stream = timeout(PATIENCE, stream).await.unwrap().unwrap();
        stream.commit().await.unwrap();
        streams.push(stream);
    }
    let mut next = Box::pin(Stream::hello(channel, hello("node-16")));
    assert!(timeout(Duration::from_millis(200), &mut next).await.is_err());
    streams.clear();
    timeout(PATIENCE, next).await.unwrap().unwrap().commit().await.unwrap();
}

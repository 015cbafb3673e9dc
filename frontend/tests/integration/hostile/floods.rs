//! Clients that send too much, or invalid messages.

use fairlead_frontend::{Config, object::SourceUpdate};
use proto::v1;
use tonic::Code;

use super::{
    BAD_CLIENTS,
    client::Client,
    fixture::{Server, Stream, hello, slice},
};

#[tokio::test]
async fn too_many_repeated_acks_end_the_stream() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD_CLIENTS {
        let mut stream = server.hello(hello(&format!("bad-{number}"))).await;
        bad.push(tokio::spawn(async move {
            stream.receive().await.unwrap();
            let mut sent = 0;
            while stream.ack().await {
                sent += 1;
            }
            (sent, stream.rejected().await)
        }));
    }
    server.check_round(&mut good, &baseline).await;
    for client in bad {
        let (sent, status) = client.await.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().starts_with("the last Ack was repeated too often: the limit is 64 "), "{status}");
        assert!(sent > 64, "a few repetitions are allowed: {sent}");
    }
    server.until_streams(1).await;
}

#[tokio::test]
async fn few_repeated_acks_are_allowed() {
    let server = Server::start(Config::default(), 5).await;
    let mut stream = server.hello(hello("node")).await;
    let before = stream.receive().await.unwrap();
    for _ in 0..60 {
        assert!(stream.ack().await);
    }
    server.updates.send(SourceUpdate::Apply(slice(1, 7))).await.unwrap();
    let after = stream.receive().await.unwrap();
    assert!(after[0].target_revision > before[0].target_revision);
}

#[tokio::test]
async fn acks_of_unsent_messages_end_the_stream() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD_CLIENTS {
        let mut stream = server.hello(hello(&format!("bad-{number}"))).await;
        stream.commit().await;
        stream.number += 1000;
        assert!(stream.ack().await);
        bad.push(stream);
    }
    server.check_round(&mut good, &baseline).await;
    for mut stream in bad {
        let status = stream.rejected().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    server.until_streams(1).await;
}

#[tokio::test]
async fn calls_reset_at_once_do_not_delay_others() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let baseline = server.measure_baseline(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD_CLIENTS {
        let (endpoint, hello) = (server.endpoint(), hello(&format!("bad-{number}")));
        bad.push(tokio::spawn(async move {
            loop {
                // The server closes such connections.
                let Ok(channel) = endpoint.connect().await else { continue };
                while Stream::hello(channel.clone(), hello.clone()).await.is_ok() {}
            }
        }));
    }
    server.check_round(&mut good, &baseline).await;
    bad.iter().for_each(tokio::task::JoinHandle::abort);
    drop(bad);
    server.until_streams(1).await;
}

#[tokio::test]
async fn long_names_are_rejected_or_truncated() {
    let server = Server::start(Config::default(), 5).await;
    let status = server.hello(hello(&"n".repeat(300))).await.rejected().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let backend = "b".repeat(100_000);
    let mut stream = server.hello(v1::Hello { backend, ..hello("node") }).await;
    stream.receive().await.unwrap();
    assert_eq!(server.status().await.nodes[0].backend.len(), 64);
}

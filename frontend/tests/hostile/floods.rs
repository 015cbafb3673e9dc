//! Clients that say too much, or what they must not.

use fairlead_frontend::Config;
use proto::v1;
use tonic::Code;

use crate::{
    BAD,
    client::Client,
    fixture::{Server, Stream, hello},
};

#[tokio::test]
async fn repeated_acks_come_to_an_end() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD {
        let mut stream = server.hello(hello(&format!("bad-{number}"))).await;
        bad.push(tokio::spawn(async move {
            let revision = stream.commit().await.unwrap();
            let mut said = 0;
            while stream.ack(revision).await {
                said += 1;
            }
            (said, stream.ends().await.unwrap_err())
        }));
    }
    server.beside(&mut good, &alone).await;
    for client in bad {
        let (said, status) = client.await.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().starts_with("the last Ack was repeated too often: the limit is 64 "), "{status}");
        assert!(said > 64, "a few repetitions are everyone's right: {said}");
    }
    server.until_streams(1).await;
}

#[tokio::test]
async fn a_few_repeated_acks_are_welcome() {
    let server = Server::start(Config::default(), 5).await;
    let mut stream = server.hello(hello("node")).await;
    let revision = stream.commit().await.unwrap();
    for _ in 0..60 {
        assert!(stream.ack(revision).await);
    }
    server.updates.send(fairlead_frontend::object::SourceUpdate::Apply(crate::cluster::slice(1, 7))).await.unwrap();
    assert!(stream.commit().await.unwrap() > revision);
}

#[tokio::test]
async fn acks_of_anything_end_the_stream() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD {
        let mut stream = server.hello(hello(&format!("bad-{number}"))).await;
        let revision = stream.commit().await.unwrap();
        assert!(stream.ack(revision + 1000).await);
        bad.push(stream);
    }
    server.beside(&mut good, &alone).await;
    for mut stream in bad {
        let status = stream.ends().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    server.until_streams(1).await;
}

#[tokio::test]
async fn calls_that_are_given_up_at_once() {
    let server = Server::start(Config::default(), 5).await;
    let mut good = Client::join(&server, "good").await;
    let alone = server.alone(&mut good).await;
    let mut bad = Vec::new();
    for number in 0..BAD {
        let (endpoint, hello) = (server.endpoint(), hello(&format!("bad-{number}")));
        bad.push(tokio::spawn(async move {
            loop {
                // A connection that is ended for it is made anew.
                let Ok(channel) = endpoint.connect().await else { continue };
                while Stream::hello(channel.clone(), hello.clone()).await.is_ok() {}
            }
        }));
    }
    server.beside(&mut good, &alone).await;
    bad.iter().for_each(tokio::task::JoinHandle::abort);
    drop(bad);
    server.until_streams(1).await;
}

#[tokio::test]
async fn long_names_are_refused_or_cut() {
    let server = Server::start(Config::default(), 5).await;
    let status = server.hello(hello(&"n".repeat(300))).await.ends().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let backend = "b".repeat(100_000);
    let mut stream = server.hello(v1::Hello { backend, ..hello("node") }).await;
    stream.commit().await.unwrap();
    assert_eq!(server.status().await.nodes[0].backend.len(), 64);
}

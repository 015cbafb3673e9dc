//! Clients that come from a replica which knows more of the cluster: they wait for it, or are told that they are set back.

use std::time::Duration;

use fairlead_frontend::{
    Config,
    object::{ObjectKind, SourceUpdate, VersionProgress},
};
use proto::{
    model::SourceVersion,
    v1::{self, server_message},
};

use super::{Server, Stream, Transport, cluster, hello, service};

/// A frontend that knows the cluster up to version 100, of which objects reflect 90.
async fn serve(catch_up_timeout: Duration) -> Server {
    let mut updates = cluster(2);
    updates.push(SourceUpdate::Apply(service(1)));
    updates.push(SourceUpdate::Progress(ObjectKind::Service, VersionProgress::Changed(SourceVersion(90))));
    updates.push(SourceUpdate::Progress(ObjectKind::Node, VersionProgress::Confirmed(SourceVersion(100))));
    let config = Config { catch_up_timeout, ..Config::default() };
    let server = Server::start(Transport::Unix, config, updates).await;
    // When one that holds nothing of this has been served, all of it was taken in.
    let mut first = server.hello(hello("node-9")).await;
    while welcome(&mut first).await.source_version < 100 {
        first = server.hello(hello("node-9")).await;
    }
    server
}

/// One that holds what reflects this version.
async fn come(server: &Server, source_version: u64) -> Stream {
    server.hello(v1::Hello { source_version, ..hello("node-1") }).await
}

async fn welcome(stream: &mut Stream) -> v1::Welcome {
    match stream.next().await.unwrap() {
        Some(server_message::Message::Welcome(welcome)) => welcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_holds_no_more_is_served_at_once_and_told_what_it_gets() {
    let server = serve(Duration::from_secs(600)).await;
    let mut stream = come(&server, 100).await;
    assert_eq!(welcome(&mut stream).await.source_version, 100);
    let batches = stream.commit().await;
    assert_eq!(batches.last().unwrap().source_version, 90, "what the objects reflect at least");
    assert_eq!(server.frontend.stream_stats().rollbacks, 0);
}

#[tokio::test]
async fn who_holds_more_waits_until_that_is_known_here() {
    let server = serve(Duration::from_secs(600)).await;
    let mut stream = come(&server, 101).await;
    // Served at once although it came later: it holds less.
    let mut other = come(&server, 99).await;
    assert_eq!(welcome(&mut other).await.source_version, 100);
    server
        .updates
        .send(SourceUpdate::Progress(ObjectKind::Node, VersionProgress::Confirmed(SourceVersion(105))))
        .await
        .unwrap();
    assert_eq!(welcome(&mut stream).await.source_version, 105);
    assert_eq!(server.frontend.stream_stats().rollbacks, 0);
}

#[tokio::test]
async fn who_waits_in_vain_is_set_back_and_counted() {
    let server = serve(Duration::from_millis(1)).await;
    let mut stream = come(&server, 500).await;
    assert_eq!(welcome(&mut stream).await.source_version, 100);
    assert_eq!(stream.commit().await.last().unwrap().source_version, 90);
    assert_eq!(server.frontend.stream_stats().rollbacks, 1);
}

//! Clients with a newer source version than the frontend: they wait until it has caught up, or are rolled back.

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

/// A frontend at source version 100, whose newest object has version 90.
async fn serve(catch_up_timeout: Duration) -> Server {
    let mut updates = cluster(2);
    updates.push(SourceUpdate::Apply(service(1)));
    updates.push(SourceUpdate::Progress(ObjectKind::Service, VersionProgress::Changed(SourceVersion(90))));
    updates.push(SourceUpdate::Progress(ObjectKind::Node, VersionProgress::Confirmed(SourceVersion(100))));
    let config = Config { catch_up_timeout, ..Config::default() };
    let server = Server::start(Transport::Unix, config, updates).await;
    // All updates have been applied when a new client is sent version 100.
    let mut first = server.hello(hello("node-9")).await;
    while welcome(&mut first).await.source_version < 100 {
        first = server.hello(hello("node-9")).await;
    }
    server
}

/// A client with this source version.
async fn connect(server: &Server, source_version: u64) -> Stream {
    server.hello(v1::Hello { source_version, ..hello("node-1") }).await
}

async fn welcome(stream: &mut Stream) -> v1::Welcome {
    match stream.next().await.unwrap() {
        Some(server_message::Message::Welcome(welcome)) => welcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn client_at_the_same_version_is_served_at_once() {
    let server = serve(Duration::from_secs(600)).await;
    let mut stream = connect(&server, 100).await;
    assert_eq!(welcome(&mut stream).await.source_version, 100);
    let batches = stream.commit().await;
    assert_eq!(batches.last().unwrap().source_version, 90, "the version of the newest object");
    assert_eq!(server.frontend.stream_stats().rollbacks, 0);
}

#[tokio::test]
async fn client_at_a_newer_version_waits() {
    let server = serve(Duration::from_secs(600)).await;
    let mut stream = connect(&server, 101).await;
    // Served at once although it connected later: its version is older.
    let mut other = connect(&server, 99).await;
    assert_eq!(welcome(&mut other).await.source_version, 100);
    server
        .updates
        .send(SourceUpdate::Progress(ObjectKind::Node, VersionProgress::Confirmed(SourceVersion(105))))
        .await
        .unwrap();
    assert_eq!(welcome(&mut stream).await.source_version, 105);
    assert_eq!(server.frontend.stream_stats().rollbacks, 0);
}

/// The watch of one kind hangs, while the others make the frontend look up to date.
#[tokio::test]
async fn client_with_newer_objects_of_one_kind_waits() {
    let server = serve(Duration::from_secs(600)).await;
    let with_services = |services| {
        let kind_versions = Some(v1::KindVersions { services, ..Default::default() });
        v1::Hello { source_version: 100, kind_versions, ..hello("node-1") }
    };
    let mut stream = server.hello(with_services(95)).await;
    let mut other = server.hello(with_services(90)).await;
    let versions = welcome(&mut other).await.kind_versions.unwrap();
    assert_eq!((versions.services, versions.nodes), (90, 100));
    server
        .updates
        .send(SourceUpdate::Progress(ObjectKind::Service, VersionProgress::Confirmed(SourceVersion(95))))
        .await
        .unwrap();
    assert_eq!(welcome(&mut stream).await.kind_versions.unwrap().services, 95);
    assert_eq!(server.frontend.stream_stats().rollbacks, 0);
}

#[tokio::test]
async fn client_is_rolled_back_after_the_timeout() {
    let server = serve(Duration::from_millis(1)).await;
    let mut stream = connect(&server, 500).await;
    assert_eq!(welcome(&mut stream).await.source_version, 100);
    assert_eq!(stream.commit().await.last().unwrap().source_version, 90);
    assert_eq!(server.frontend.stream_stats().rollbacks, 1);
}

//! What `Freshness` reports, and that no backend is served before each kind has been listed.

use std::time::Instant;

use runtime::Ready;

use super::*;
use crate::{Config as FrontendConfig, Frontend, source::CONFIRMATION_TIMEOUT};

#[tokio::test]
async fn each_kind_has_a_row_from_the_start() {
    let (fixture, _watch) = Fixture::on_nodes(deadlines(), &[]).await;
    let rows = fixture.freshness.snapshot();
    assert_eq!(rows.len(), ObjectKind::ALL.len());
    for row in rows {
        let expected = if row.kind == ObjectKind::Node { (WatchPhase::Watching, 1) } else { (WatchPhase::Listing, 0) };
        assert_eq!((row.phase, row.lists), expected, "{}", row.kind);
        assert_eq!(row.age().is_some(), row.kind == ObjectKind::Node);
    }
}

/// Bookmarks confirm; accepted requests and errors do not.
#[tokio::test]
async fn age_is_that_of_the_last_confirmation() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    let listed = Instant::now();
    watch.error(500).await;
    let watch = fixture.server.watch(ObjectKind::Node, "10").await;
    drop(watch);
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    let row = fixture.row(ObjectKind::Node);
    assert!(row.age().unwrap() >= listed.elapsed(), "{row:?}");
    assert_eq!(row.failures, 2);
    assert_eq!(row.lists, 1);

    let before = Instant::now();
    watch.bookmark(ObjectKind::Node, "20").await;
    drop(watch);
    let mut watch = fixture.server.watch(ObjectKind::Node, "20").await;
    let row = fixture.row(ObjectKind::Node);
    assert!(row.age().unwrap() <= before.elapsed(), "{row:?}");
    // The early end of the watch.
    assert_eq!(row.failures, 1);

    let before = Instant::now();
    watch.send("ADDED", &node("n1", "x", "21")).await;
    fixture.next().await;
    let row = fixture.row(ObjectKind::Node);
    assert!(row.age().unwrap() <= before.elapsed(), "{row:?}");
    assert_eq!(row.failures, 0);
    assert!(row.last_error.unwrap().contains("the watch ended"));
}

#[tokio::test]
async fn failures_before_the_first_list_are_counted_and_named() {
    let mut fixture = Fixture::new(deadlines()).await;
    for _ in 0..2 {
        fixture.server.call(ObjectKind::Node).await.reject(500);
    }
    let call = fixture.server.call(ObjectKind::Node).await;
    let row = fixture.row(ObjectKind::Node);
    assert_eq!((row.phase, row.age(), row.lists, row.failures), (WatchPhase::Listing, None, 0, 2));
    assert_eq!(row.last_error.as_deref(), Some("code 500 (500)"));
    drop(call);
}

#[tokio::test]
async fn no_backend_is_served_before_each_kind_has_been_listed() {
    let mut fixture = Fixture::new(deadlines()).await;
    let (sender, receiver) = mpsc::channel(8);
    let frontend = Frontend::new(FrontendConfig::default());
    let ready = Ready::default();
    let (_trigger, shutdown) = Shutdown::channel();
    let (engine, listed) = (frontend.clone(), ready.guard("list"));
    tokio::spawn(async move { engine.run(receiver, listed, shutdown).await });
    let mut revisions = frontend.context.cluster.revisions();
    let mut watches = Vec::new();
    for kind in [ObjectKind::Service, ObjectKind::Node, ObjectKind::ServiceCidr, ObjectKind::EndpointSlice] {
        assert_eq!(*revisions.borrow(), None);
        watches.push(fixture.server.stream(kind, "10", &[]).await);
        sender.send(fixture.next().await).await.unwrap();
    }
    timeout(PATIENCE, revisions.wait_for(Option::is_some)).await.unwrap().unwrap();
    // From then on the deletion of an unknown object, or the end of the API server, changes nothing.
    let served = *revisions.borrow_and_update();
    watches[1].send("DELETED", &node("never-seen", "x", "11")).await;
    sender.send(fixture.next().await).await.unwrap();
    drop((watches, fixture));
    sender.send(SourceUpdate::Apply(parsed_node())).await.unwrap();
    timeout(PATIENCE, revisions.changed()).await.unwrap().unwrap();
    assert_eq!(revisions.borrow().map(|revision| revision.0), served.map(|revision| revision.0 + 1));
}

fn parsed_node() -> ParsedObject {
    crate::testing::parsed(crate::testing::node("n1", "x"))
}

/// Each watch of a kind that does not change fails where the API server sends no bookmarks.
#[test]
fn silent_watch_is_verified_before_it_counts_as_outdated() {
    let Deadlines { silence, grace, .. } = Deadlines::default();
    assert!(silence + 4 * grace < CONFIRMATION_TIMEOUT);
}

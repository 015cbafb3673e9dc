//! Watches that end, are cut off, time out, expire, or repeat events.

use super::*;

#[tokio::test]
async fn changes_are_delivered() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    watch.send("ADDED", &node("n2", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n2 in x");
    watch.send("MODIFIED", &node("n2", "y", "12")).await;
    assert_eq!(fixture.next_summary().await, "n2 in y");
    watch.send("DELETED", &node("n1", "x", "13")).await;
    assert_eq!(fixture.next_summary().await, "Node n1 deleted");
}

#[tokio::test]
async fn ended_watch_is_resumed() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
    // In order.
    drop(watch);
    let mut watch = fixture.server.watch(ObjectKind::Node, "11").await;
    watch.bookmark(ObjectKind::Node, "20").await;
    drop(watch);
    // In the middle of an event.
    fixture.server.watch(ObjectKind::Node, "20").await.cut().await;
    // With the connection.
    fixture.server.watch(ObjectKind::Node, "20").await.break_off();
    let mut watch = fixture.server.watch(ObjectKind::Node, "20").await;
    watch.send("MODIFIED", &node("n1", "y", "21")).await;
    assert_eq!(fixture.next_summary().await, "n1 in y");
}

/// RBAC may allow `watch` but not `list`.
#[tokio::test]
async fn watch_is_resumed_where_lists_are_not_allowed() {
    let (mut fixture, watch) = Fixture::on_nodes(deadlines(), &[]).await;
    fixture.server.set_current_version(Err(403));
    drop(watch);
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
}

#[tokio::test]
async fn event_in_pieces_is_one_event() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    let line = json!({"type": "ADDED", "object": node("n1", "x", "11")}).to_string() + "\n";
    let (start, end) = line.split_at(20);
    watch.bytes(start).await;
    watch.bytes(end).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
}

/// The event is requested again instead of being lost.
#[tokio::test]
async fn undecodable_event_is_not_skipped() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    for nonsense in [
        "no json\n".to_owned(),
        "\n".to_owned(),
        "{\"type\": \"RENAMED\", \"object\": {}}\n".to_owned(),
        json!({"type": "ADDED", "object": {"metadata": {"resourceVersion": "11"}}}).to_string() + "\n",
        json!({"type": "ADDED", "object": {"metadata": {"name": "n1"}}}).to_string() + "\n",
        json!({"type": "DELETED", "object": null}).to_string() + "\n",
    ] {
        watch.bytes(&nonsense).await;
        watch = fixture.server.watch(ObjectKind::Node, "10").await;
    }
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
}

#[tokio::test]
async fn expired_version_within_a_watch_lists_again() {
    for code in [410, 504] {
        let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
        watch.error(code).await;
        fixture.server.stream(ObjectKind::Node, "50", &[node("n2", "y", "40")]).await;
        assert_eq!(fixture.next_summary().await, "all Node: n2 in y");
    }
}

/// Expired, not parseable by the server, of its future.
#[tokio::test]
async fn rejected_version_lists_again() {
    for code in [400, 410, 504] {
        let (mut fixture, watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
        drop(watch);
        fixture.server.call(ObjectKind::Node).await.reject(code);
        fixture.server.list(ObjectKind::Node, "5", &[node("n1", "y", "3")]).await;
        assert_eq!(fixture.next_summary().await, "all Node: n1 in y");
        // A lower version than before is valid.
        let mut watch = fixture.server.watch(ObjectKind::Node, "5").await;
        watch.send("MODIFIED", &node("n1", "z", "6")).await;
        assert_eq!(fixture.next_summary().await, "n1 in z");
    }
}

#[tokio::test]
async fn failed_watches_remove_nothing() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    // An ERROR event.
    watch.error(500).await;
    for code in [500, 503, 429, 401, 403] {
        let call = fixture.server.call(ObjectKind::Node).await;
        call.assert(&["watch=true", "resourceVersion=10"]);
        call.reject(code);
    }
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    fixture.assert_no_update();
    watch.send("MODIFIED", &node("n1", "y", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in y");
}

#[tokio::test]
async fn duplicate_events_are_harmless() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    for _ in 0..2 {
        watch.send("ADDED", &node("n1", "x", "11")).await;
        assert_eq!(fixture.next_summary().await, "n1 in x");
    }
    for _ in 0..2 {
        watch.send("DELETED", &node("n1", "x", "12")).await;
        assert_eq!(fixture.next_summary().await, "Node n1 deleted");
    }
}

#[tokio::test]
async fn deletion_of_an_unknown_object_is_delivered() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    watch.send("DELETED", &node("never-seen", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "Node never-seen deleted");
}

/// The order is unknown, so the event is neither applied nor skipped: it may be another API server.
#[tokio::test]
async fn lower_version_within_a_watch_lists_again() {
    for (event, version) in [("MODIFIED", "11"), ("DELETED", "9"), ("ADDED", "3")] {
        let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
        watch.send("MODIFIED", &node("n1", "y", "12")).await;
        assert_eq!(fixture.next_summary().await, "n1 in y");
        watch.send(event, &node("n1", "old", version)).await;
        fixture.server.stream(ObjectKind::Node, "5", &[node("n1", "z", "4")]).await;
        assert_eq!(fixture.next_summary().await, "all Node: n1 in z");
    }
}

/// Kubernetes does not guarantee numbers before 1.35.
#[tokio::test]
async fn versions_that_are_no_numbers_are_not_compared() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    for version in ["b7", "a3", "1"] {
        watch.send("ADDED", &node("n1", version, version)).await;
        assert_eq!(fixture.next_summary().await, format!("n1 in {version}"));
    }
    drop(watch);
    fixture.server.watch(ObjectKind::Node, "1").await;
}

#[tokio::test(start_paused = true)]
async fn silent_watch_times_out() {
    let short = Deadlines { event: SHORT, ..deadlines() };
    let (mut fixture, mut silent) = Fixture::on_nodes(short, &[]).await;
    silent.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
    // Within an event.
    let mut half = fixture.server.watch(ObjectKind::Node, "11").await;
    half.bytes("{\"type\": \"ADDED\", \"obj").await;
    let mut watch = fixture.server.watch(ObjectKind::Node, "11").await;
    watch.send("ADDED", &node("n2", "x", "12")).await;
    assert_eq!(fixture.next_summary().await, "n2 in x");
    drop((silent, half));
}

#[tokio::test(start_paused = true)]
async fn watch_without_response_times_out() {
    let short = Deadlines { response: SHORT, ..deadlines() };
    let (mut fixture, watch) = Fixture::on_nodes(short, &[]).await;
    drop(watch);
    fixture.server.call(ObjectKind::Node).await.hang();
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
}

/// RBAC may allow `list` but not `watch`.
#[tokio::test(start_paused = true)]
async fn changes_are_listed_where_watches_are_rejected() {
    let short = Deadlines { silence: SHORT, ..deadlines() };
    let (mut fixture, mut watch) = Fixture::on_pages(short, &[node("n1", "x", "1")]).await;
    watch.error(403).await;
    loop {
        let call = fixture.server.call(ObjectKind::Node).await;
        if call.query.contains("watch=true") {
            call.reject(403);
            continue;
        }
        let compared = call.metadata_only;
        call.list("15", &[node("n1", "y", "15")], None);
        if !compared {
            break;
        }
    }
    assert_eq!(fixture.next_summary().await, "all Node: n1 in y");
}

/// With each object, with bookmarks, and after a list, with its newest object.
#[tokio::test]
async fn progress_is_delivered() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("a", "z1", "7")]).await;
    watch.send("MODIFIED", &node("a", "z2", "15")).await;
    fixture.next().await;
    watch.bookmark(ObjectKind::Node, "20").await;
    watch.send("DELETED", &node("a", "z2", "25")).await;
    fixture.next().await;
    watch.send("ADDED", &node("b", "z2", "26")).await;
    fixture.next().await;
    let [confirmed, object] = [VersionProgress::Confirmed, VersionProgress::Changed]
        .map(|progress| move |version| (ObjectKind::Node, progress(SourceVersion(version))));
    assert_eq!(fixture.progress, [object(7), confirmed(10), object(15), confirmed(20), object(25)]);
}

#[tokio::test]
async fn event_that_is_too_large_is_a_failure() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    watch.bytes(&"x".repeat(MAX_RESPONSE_BYTES + 1)).await;
    let mut resumed = fixture.server.watch(ObjectKind::Node, "10").await;
    let error = fixture.row(ObjectKind::Node).last_error.unwrap();
    assert_eq!(error, "a page or an event has more than 1 MiB");
    resumed.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in x");
}

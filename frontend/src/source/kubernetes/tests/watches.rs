//! Watches: they end, are cut, fall silent, lose their place, repeat themselves.

use super::*;

#[tokio::test]
async fn follows_changes() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    watch.send("ADDED", &node("n2", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in x");
    watch.send("MODIFIED", &node("n2", "y", "12")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in y");
    watch.send("DELETED", &node("n1", "x", "13")).await;
    assert_eq!(fixture.next_in_short().await, "Node n1 gone");
}

#[tokio::test]
async fn watch_that_ends_is_taken_up_where_it_ended() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
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
    assert_eq!(fixture.next_in_short().await, "n1 in y");
}

/// A server accepts a watch behind a version of its future, and is silent until it gets there.
#[tokio::test]
async fn api_from_a_backup_is_listed_anew() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    watch.send("ADDED", &node("n2", "x", "12")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in x");
    fixture.server.has_reached(Ok("11"));
    drop(watch);
    fixture.server.stream(ObjectKind::Node, "11", &[node("n1", "x", "1")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x");
}

#[tokio::test]
async fn watch_waits_until_the_api_has_said_where_it_is() {
    let (mut fixture, watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    fixture.server.has_reached(Err(503));
    drop(watch);
    fixture.failed("code 503").await;
    fixture.server.has_reached(Ok("9"));
    fixture.server.stream(ObjectKind::Node, "9", &[]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: ");
}

/// Whoever may watch but not list learns all the same what changes.
#[tokio::test]
async fn watch_goes_on_where_lists_are_not_allowed() {
    let (mut fixture, watch) = Fixture::on_nodes(deadlines(), &[]).await;
    fixture.server.has_reached(Err(403));
    drop(watch);
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
}

#[tokio::test]
async fn event_in_pieces_is_one_event() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    let line = json!({"type": "ADDED", "object": node("n1", "x", "11")}).to_string() + "\n";
    let (start, end) = line.split_at(20);
    watch.bytes(start).await;
    watch.bytes(end).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
}

/// Whatever that event was, it is asked for again instead of being missed.
#[tokio::test]
async fn event_that_makes_no_sense_is_not_passed_over() {
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
    assert_eq!(fixture.next_in_short().await, "n1 in x");
}

#[tokio::test]
async fn gone_within_a_watch_lists_anew() {
    for code in [410, 504] {
        let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
        watch.error(code).await;
        fixture.server.stream(ObjectKind::Node, "50", &[node("n2", "y", "40")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n2 in y");
    }
}

/// Gone, a version that the server cannot read, one of its future.
#[tokio::test]
async fn watch_that_the_server_refuses_to_begin_lists_anew() {
    for code in [400, 410, 504] {
        let (mut fixture, watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
        drop(watch);
        fixture.server.call(ObjectKind::Node).await.refuse(code);
        fixture.server.list(ObjectKind::Node, "5", &[node("n1", "y", "3")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
        // A version below the earlier one is as good as any.
        let mut watch = fixture.server.watch(ObjectKind::Node, "5").await;
        watch.send("MODIFIED", &node("n1", "z", "6")).await;
        assert_eq!(fixture.next_in_short().await, "n1 in z");
    }
}

#[tokio::test]
async fn watches_that_fail_empty_nothing() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
    // An error of the server's own, within the watch.
    watch.error(500).await;
    for code in [500, 503, 429, 401, 403] {
        let call = fixture.server.call(ObjectKind::Node).await;
        call.assert(&["watch=true", "resourceVersion=10"]);
        call.refuse(code);
    }
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    fixture.assert_silent();
    watch.send("MODIFIED", &node("n1", "y", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in y");
}

#[tokio::test]
async fn duplicate_events_are_harmless() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    for _ in 0..2 {
        watch.send("ADDED", &node("n1", "x", "11")).await;
        assert_eq!(fixture.next_in_short().await, "n1 in x");
    }
    for _ in 0..2 {
        watch.send("DELETED", &node("n1", "x", "12")).await;
        assert_eq!(fixture.next_in_short().await, "Node n1 gone");
    }
}

#[tokio::test]
async fn tombstone_of_something_unknown_is_passed_on() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    watch.send("DELETED", &node("never-seen", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "Node never-seen gone");
}

/// Two orders cannot both be right, so it is neither applied nor skipped: the API may be another one since.
#[tokio::test]
async fn event_that_goes_back_lists_anew() {
    for (event, version) in [("MODIFIED", "11"), ("DELETED", "9"), ("ADDED", "3")] {
        let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1")]).await;
        watch.send("MODIFIED", &node("n1", "y", "12")).await;
        assert_eq!(fixture.next_in_short().await, "n1 in y");
        watch.send(event, &node("n1", "old", version)).await;
        fixture.server.stream(ObjectKind::Node, "5", &[node("n1", "z", "4")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n1 in z");
    }
}

/// Before Kubernetes 1.35 nothing is promised about them.
#[tokio::test]
async fn versions_that_are_no_numbers_are_not_compared() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[]).await;
    for version in ["b7", "a3", "1"] {
        watch.send("ADDED", &node("n1", version, version)).await;
        assert_eq!(fixture.next_in_short().await, format!("n1 in {version}"));
    }
    drop(watch);
    fixture.server.watch(ObjectKind::Node, "1").await;
}

#[tokio::test]
async fn watch_that_has_died_without_a_word_is_noticed() {
    let short = Deadlines { event: SHORT, ..deadlines() };
    let (mut fixture, mut silent) = Fixture::on_nodes(short, &[]).await;
    silent.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
    // Once within an event.
    let mut half = fixture.server.watch(ObjectKind::Node, "11").await;
    half.bytes("{\"type\": \"ADDED\", \"obj").await;
    let mut watch = fixture.server.watch(ObjectKind::Node, "11").await;
    watch.send("ADDED", &node("n2", "x", "12")).await;
    assert_eq!(fixture.next_in_short().await, "n2 in x");
    drop((silent, half));
}

#[tokio::test]
async fn watch_that_the_server_does_not_even_begin_is_noticed() {
    let short = Deadlines { answer: SHORT, ..deadlines() };
    let (mut fixture, watch) = Fixture::on_nodes(short, &[]).await;
    drop(watch);
    fixture.server.call(ObjectKind::Node).await.hang();
    let mut watch = fixture.server.watch(ObjectKind::Node, "10").await;
    watch.send("ADDED", &node("n1", "x", "11")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in x");
}

/// The server accepts each watch, ends it in time, and has stopped to tell of changes.
#[tokio::test]
async fn watches_that_confirm_nothing_for_too_long_list_anew() {
    let short = Deadlines { watch_seconds: 0, confirmation: SHORT, ..deadlines() };
    let (mut fixture, mut watch) = Fixture::on_nodes(short, &[node("n1", "x", "1")]).await;
    loop {
        drop(watch);
        let call = fixture.server.call(ObjectKind::Node).await;
        if call.query.contains("sendInitialEvents") {
            let mut watch = call.stream();
            watch.send("ADDED", &node("n1", "y", "15")).await;
            watch.initial_end(ObjectKind::Node, "15").await;
            break;
        }
        watch = call.watch();
    }
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
}

/// Watching may be forbidden, where listing is not.
#[tokio::test]
async fn watches_that_are_refused_for_too_long_list_anew() {
    let short = Deadlines { confirmation: SHORT, ..deadlines() };
    let (mut fixture, mut watch) = Fixture::on_pages(short, &[node("n1", "x", "1")]).await;
    watch.error(403).await;
    loop {
        let call = fixture.server.call(ObjectKind::Node).await;
        if !call.query.contains("watch=true") {
            call.list("15", &[node("n1", "y", "15")], None);
            break;
        }
        call.refuse(403);
    }
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
}

/// With each object, with bookmarks, and after a list.
#[tokio::test]
async fn how_far_a_kind_has_come_is_said() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("a", "z1", "7")]).await;
    watch.send("MODIFIED", &node("a", "z2", "15")).await;
    fixture.next().await;
    watch.bookmark(ObjectKind::Node, "20").await;
    watch.send("DELETED", &node("a", "z2", "25")).await;
    fixture.next().await;
    watch.send("ADDED", &node("b", "z2", "26")).await;
    fixture.next().await;
    let [confirmed, object] = [VersionProgress::Confirmed, VersionProgress::Changed]
        .map(|seen| move |version| (ObjectKind::Node, seen(SourceVersion(version))));
    assert_eq!(fixture.seen, [confirmed(10), object(15), confirmed(20), object(25)]);
}

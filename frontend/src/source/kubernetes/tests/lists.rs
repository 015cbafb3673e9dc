//! Lists: streamed where the server can, in pages where it cannot, and never less than everything.

use super::*;

/// The list that is expected after a failed one.
async fn next_list(fixture: &mut Fixture, items: &[Value]) {
    let call = fixture.server.call(ObjectKind::Node).await;
    if call.query.contains("sendInitialEvents") {
        let mut watch = call.stream();
        for item in items {
            watch.send("ADDED", item).await;
        }
        watch.initial_end(ObjectKind::Node, "90").await;
    } else {
        call.list("90", items, None);
    }
}

#[tokio::test]
async fn streaming_list_is_nothing_before_its_last_event() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "9")).await;
    watch.send("ADDED", &node("n2", "x", "3")).await;
    watch.bookmark(ObjectKind::Node, "10").await;
    watch.cut().await;
    next_list(&mut fixture, &[node("n3", "x", "1")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n3 in x");
}

/// A server whose cache lags behind sends what it has, and then what it learns until the list is as new as was asked for.
#[tokio::test]
async fn changes_within_a_streaming_list_are_in_it() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "9")).await;
    watch.send("ADDED", &node("n2", "x", "3")).await;
    watch.bookmark(ObjectKind::Node, "10").await;
    watch.send("MODIFIED", &node("n1", "y", "11")).await;
    watch.send("DELETED", &node("n2", "x", "12")).await;
    watch.send("DELETED", &node("never-seen", "x", "13")).await;
    watch.initial_end(ObjectKind::Node, "13").await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
    watch.send("MODIFIED", &node("n1", "z", "14")).await;
    assert_eq!(fixture.next_in_short().await, "n1 in z");
}

#[tokio::test]
async fn server_that_refuses_to_stream_is_asked_for_pages() {
    for code in [400, 422] {
        let mut fixture = Fixture::new(deadlines()).await;
        fixture.server.call(ObjectKind::Node).await.refuse(code);
        fixture.server.list(ObjectKind::Node, "10", &[node("n1", "x", "1")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n1 in x");
        // It is not asked again, not even for another kind.
        let watch = fixture.server.watch(ObjectKind::Node, "10").await;
        fixture.server.call(ObjectKind::Service).await.refuse(422);
        fixture.server.list(ObjectKind::Service, "10", &[]).await;
        fixture.next().await;
        let mut watch = { watch };
        watch.error(410).await;
        fixture.server.list(ObjectKind::Node, "20", &[node("n2", "x", "1")]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: n2 in x");
    }
}

/// As a proxy does that drops parameters: everything comes, but never the last event.
#[tokio::test]
async fn server_that_takes_a_streaming_list_for_a_watch_is_asked_for_pages() {
    let mut fixture = Fixture::new(Deadlines { initial_event: SHORT, ..deadlines() }).await;
    let mut silent = fixture.server.call(ObjectKind::Node).await.stream();
    silent.send("ADDED", &node("n1", "x", "1")).await;
    fixture.server.list(ObjectKind::Node, "10", &[node("n1", "y", "2")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in y");
    fixture.server.watch(ObjectKind::Node, "10").await.error(410).await;
    fixture.server.list(ObjectKind::Node, "20", &[]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: ");
}

#[tokio::test]
async fn streaming_list_that_ends_without_its_last_event_is_none() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "1")).await;
    drop(watch);
    fixture.server.list(ObjectKind::Node, "10", &[node("n1", "x", "1"), node("n2", "x", "2")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x, n2 in x");
}

/// Watching may be forbidden, and an overloaded server may still have pages.
#[tokio::test]
async fn pages_are_tried_when_streaming_fails_for_any_reason() {
    for code in [403, 429, 500, 503] {
        let mut fixture = Fixture::new(deadlines()).await;
        fixture.server.call(ObjectKind::Node).await.refuse(code);
        fixture.server.call(ObjectKind::Node).await.refuse(500);
        fixture.server.call(ObjectKind::Node).await.stream().cut().await;
        fixture.server.list(ObjectKind::Node, "10", &[]).await;
        assert_eq!(fixture.next_in_short().await, "all Node: ", "{code}");
    }
}

#[tokio::test]
async fn pages_make_one_replace() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.refuse_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("10", &[node("n1", "x", "1")], Some("second"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=second"]);
    fixture.assert_silent();
    call.list("10", &[node("n2", "x", "2")], None);
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x, n2 in x");
}

#[tokio::test]
async fn token_that_has_expired_begins_the_list_anew() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.refuse_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("10", &[node("gone-since", "x", "1")], Some("second"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=second"]);
    call.refuse(410);
    fixture.server.call(ObjectKind::Node).await.list("30", &[node("n1", "x", "1")], Some("other"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=other"]);
    call.list("30", &[node("n2", "x", "21")], None);
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x, n2 in x");
    fixture.server.watch(ObjectKind::Node, "30").await;
}

#[tokio::test]
async fn objects_that_vanished_unseen_are_not_in_the_next_list() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1"), node("n2", "x", "2")]).await;
    watch.error(410).await;
    let _watch = fixture.server.stream(ObjectKind::Node, "50", &[node("n2", "y", "40")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n2 in y");
}

#[tokio::test]
async fn list_that_is_empty_and_valid_is_taken_as_it_is() {
    let (mut fixture, mut watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
    watch.error(410).await;
    fixture.server.list(ObjectKind::Node, "50", &[]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: ");
    // As it writes an empty list in some versions.
    fixture.server.watch(ObjectKind::Node, "50").await.error(410).await;
    let empty = json!({"kind": "NodeList", "metadata": {"resourceVersion": "60"}, "items": null});
    fixture.server.call(ObjectKind::Node).await.answer(200, &empty);
    assert_eq!(fixture.next_in_short().await, "all Node: ");
}

#[tokio::test]
async fn answer_that_is_no_list_is_a_failure() {
    let nameless = json!({"metadata": {"resourceVersion": "1"}});
    let list = |kind: &str, metadata: Value, items: Value| json!({"kind": kind, "metadata": metadata, "items": items});
    let version = || json!({"resourceVersion": "50"});
    let (mut fixture, mut watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
    watch.error(410).await;
    for nonsense in [
        json!({}),
        json!(null),
        json!([]),
        json!("<html>welcome</html>"),
        json!({"kind": "Status", "status": "Success", "metadata": {}}),
        json!({"kind": "NodeList", "metadata": version()}),
        list("PodList", version(), json!([])),
        list("NodeList", json!({}), json!([])),
        list("NodeList", json!({"resourceVersion": ""}), json!([])),
        list("NodeList", version(), json!({})),
        list("NodeList", version(), json!([node("n1", "x", "1"), nameless])),
        list("NodeList", version(), json!([node("n1", "x", "1"), null])),
    ] {
        fixture.server.call(ObjectKind::Node).await.answer(200, &nonsense);
    }
    let call = fixture.server.call(ObjectKind::Node).await;
    fixture.assert_silent();
    call.list("60", &[node("n2", "x", "1")], None);
    assert_eq!(fixture.next_in_short().await, "all Node: n2 in x");
}

#[tokio::test]
async fn lists_that_fail_empty_nothing() {
    let (mut fixture, mut watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
    watch.error(410).await;
    for code in [500, 503, 429, 401, 403, 404] {
        fixture.server.call(ObjectKind::Node).await.refuse(code);
    }
    // Once behind a page.
    fixture.server.call(ObjectKind::Node).await.list("50", &[node("half", "x", "2")], Some("second"));
    fixture.server.call(ObjectKind::Node).await.refuse(500);
    // And within one.
    let mut page = fixture.server.call(ObjectKind::Node).await.begin();
    page.bytes(r#"{"kind": "NodeList", "metadata": {"resourceVersion": "55"}, "items": ["#).await;
    page.cut().await;
    fixture.server.call(ObjectKind::Node).await.begin().break_off();
    let call = fixture.server.call(ObjectKind::Node).await;
    fixture.assert_silent();
    call.list("60", &[node("n1", "x", "1")], None);
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x");
}

#[tokio::test]
async fn list_that_hangs_half_way_is_asked_for_again() {
    let mut fixture = Fixture::new(Deadlines { answer: 2 * SHORT, ..deadlines() }).await;
    // Before anything comes, within a page, behind a page.
    fixture.server.call(ObjectKind::Node).await.hang();
    let mut page = fixture.server.call(ObjectKind::Node).await.begin();
    page.bytes(r#"{"kind": "NodeList", "metadata": {"resourceVersion": "5"}, "items": ["#).await;
    fixture.server.refuse_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("7", &[node("half", "x", "2")], Some("second"));
    fixture.server.call(ObjectKind::Node).await.hang();
    next_list(&mut fixture, &[node("n1", "x", "1")]).await;
    assert_eq!(fixture.next_in_short().await, "all Node: n1 in x");
    drop(page);
}

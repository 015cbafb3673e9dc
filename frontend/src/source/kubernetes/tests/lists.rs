//! Lists: streamed if the server supports it, else in pages, and always complete.

use tokio::time::sleep;

use super::*;

/// The next list, by either method, after a failed one.
async fn next_list(fixture: &mut Fixture, items: &[Value]) {
    let call = fixture.server.call(ObjectKind::Node).await;
    if call.query.contains("sendInitialEvents") {
        let mut watch = call.stream();
        for item in items {
            watch.send("ADDED", item).await;
        }
        watch.initial_events_end(ObjectKind::Node, "90").await;
    } else {
        call.list("90", items, None);
    }
}

#[tokio::test]
async fn streaming_list_is_delivered_after_its_final_bookmark_only() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "9")).await;
    watch.send("ADDED", &node("n2", "x", "3")).await;
    watch.bookmark(ObjectKind::Node, "10").await;
    watch.cut().await;
    next_list(&mut fixture, &[node("n3", "x", "1")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n3 in x");
}

/// A server whose cache lags sends its objects, and then changes until the list is as new as requested.
#[tokio::test]
async fn changes_during_a_streaming_list_are_part_of_it() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "9")).await;
    watch.send("ADDED", &node("n2", "x", "3")).await;
    watch.bookmark(ObjectKind::Node, "10").await;
    watch.send("MODIFIED", &node("n1", "y", "11")).await;
    watch.send("DELETED", &node("n2", "x", "12")).await;
    watch.send("DELETED", &node("never-seen", "x", "13")).await;
    watch.initial_events_end(ObjectKind::Node, "13").await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in y");
    watch.send("MODIFIED", &node("n1", "z", "14")).await;
    assert_eq!(fixture.next_summary().await, "n1 in z");
}

#[tokio::test]
async fn server_that_rejects_streaming_gets_requests_for_pages() {
    for code in [400, 422] {
        let mut fixture = Fixture::new(deadlines()).await;
        fixture.server.call(ObjectKind::Node).await.reject(code);
        fixture.server.list(ObjectKind::Node, "10", &[node("n1", "x", "1")]).await;
        assert_eq!(fixture.next_summary().await, "all Node: n1 in x");
        // No further streaming list, for other kinds either.
        let watch = fixture.server.watch(ObjectKind::Node, "10").await;
        fixture.server.call(ObjectKind::Service).await.reject(422);
        fixture.server.list(ObjectKind::Service, "10", &[]).await;
        fixture.next().await;
        let mut watch = { watch };
        watch.error(410).await;
        fixture.server.list(ObjectKind::Node, "20", &[node("n2", "x", "1")]).await;
        assert_eq!(fixture.next_summary().await, "all Node: n2 in x");
    }
}

/// A proxy that drops parameters: all objects arrive, but never the final bookmark.
#[tokio::test(start_paused = true)]
async fn server_that_ignores_send_initial_events_gets_requests_for_pages() {
    let mut fixture = Fixture::new(Deadlines { initial_event: SHORT, ..deadlines() }).await;
    let mut silent = fixture.server.call(ObjectKind::Node).await.stream();
    silent.send("ADDED", &node("n1", "x", "1")).await;
    fixture.server.list(ObjectKind::Node, "10", &[node("n1", "y", "2")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in y");
    fixture.server.watch(ObjectKind::Node, "10").await.error(410).await;
    fixture.server.list(ObjectKind::Node, "20", &[]).await;
    assert_eq!(fixture.next_summary().await, "all Node: ");
}

#[tokio::test]
async fn streaming_list_without_final_bookmark_is_discarded() {
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.call(ObjectKind::Node).await.stream();
    watch.send("ADDED", &node("n1", "x", "1")).await;
    drop(watch);
    fixture.server.list(ObjectKind::Node, "10", &[node("n1", "x", "1"), node("n2", "x", "2")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
}

/// The verb `watch` may not be allowed, and an overloaded server may still serve pages.
#[tokio::test]
async fn pages_are_tried_when_streaming_fails_for_any_reason() {
    for code in [403, 429, 500, 503] {
        let mut fixture = Fixture::new(deadlines()).await;
        fixture.server.call(ObjectKind::Node).await.reject(code);
        fixture.server.call(ObjectKind::Node).await.reject(500);
        fixture.server.call(ObjectKind::Node).await.stream().cut().await;
        fixture.server.list(ObjectKind::Node, "10", &[]).await;
        assert_eq!(fixture.next_summary().await, "all Node: ", "{code}");
    }
}

#[tokio::test]
async fn pages_are_delivered_as_one_replace() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("10", &[node("n1", "x", "1")], Some("second"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=second"]);
    fixture.assert_no_update();
    call.list("10", &[node("n2", "x", "2")], None);
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
}

/// Users may write them to their Services and EndpointSlices.
#[tokio::test]
async fn deep_managed_fields_of_one_object_do_not_delay_others() {
    let deep = |zone: &str, version: &str| {
        let mut node = node("n1", zone, version);
        node["metadata"]["managedFields"][0]["fieldsV1"] = (0..200).fold(json!({}), |inner, _| json!({"f:a": inner}));
        node
    };
    let nodes = [deep("x", "1"), node("n2", "x", "2")];
    let mut fixture = Fixture::new(deadlines()).await;
    let mut watch = fixture.server.stream(ObjectKind::Node, "10", &nodes).await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
    watch.send("MODIFIED", &deep("y", "11")).await;
    assert_eq!(fixture.next_summary().await, "n1 in y");
    watch.send("DELETED", &deep("y", "12")).await;
    assert_eq!(fixture.next_summary().await, "Node n1 deleted");
    watch.send("MODIFIED", &node("n2", "y", "13")).await;
    assert_eq!(fixture.next_summary().await, "n2 in y");

    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    fixture.server.list(ObjectKind::Node, "10", &nodes).await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
}

#[tokio::test]
async fn expired_continue_token_restarts_the_list() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("10", &[node("deleted-since", "x", "1")], Some("second"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=second"]);
    call.reject(410);
    fixture.server.call(ObjectKind::Node).await.list("30", &[node("n1", "x", "1")], Some("other"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=other"]);
    call.list("30", &[node("n2", "x", "21")], None);
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
    fixture.server.watch(ObjectKind::Node, "30").await;
}

#[tokio::test]
async fn objects_deleted_unobserved_are_not_in_the_next_list() {
    let (mut fixture, mut watch) = Fixture::on_nodes(deadlines(), &[node("n1", "x", "1"), node("n2", "x", "2")]).await;
    watch.error(410).await;
    let _watch = fixture.server.stream(ObjectKind::Node, "50", &[node("n2", "y", "40")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n2 in y");
}

#[tokio::test]
async fn empty_valid_list_is_delivered() {
    let (mut fixture, mut watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
    watch.error(410).await;
    fixture.server.list(ObjectKind::Node, "50", &[]).await;
    assert_eq!(fixture.next_summary().await, "all Node: ");
    // Some versions send an empty list like this.
    fixture.server.watch(ObjectKind::Node, "50").await.error(410).await;
    let empty = json!({"kind": "NodeList", "metadata": {"resourceVersion": "60"}, "items": null});
    fixture.server.call(ObjectKind::Node).await.respond(200, &empty);
    assert_eq!(fixture.next_summary().await, "all Node: ");
}

#[tokio::test]
async fn response_that_is_no_list_is_a_failure() {
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
        fixture.server.call(ObjectKind::Node).await.respond(200, &nonsense);
    }
    let call = fixture.server.call(ObjectKind::Node).await;
    fixture.assert_no_update();
    call.list("60", &[node("n2", "x", "1")], None);
    assert_eq!(fixture.next_summary().await, "all Node: n2 in x");
}

#[tokio::test]
async fn failed_lists_remove_nothing() {
    let (mut fixture, mut watch) = Fixture::on_pages(deadlines(), &[node("n1", "x", "1")]).await;
    watch.error(410).await;
    for code in [500, 503, 429, 401, 403, 404] {
        fixture.server.call(ObjectKind::Node).await.reject(code);
    }
    // After the first page.
    fixture.server.call(ObjectKind::Node).await.list("50", &[node("half", "x", "2")], Some("second"));
    fixture.server.call(ObjectKind::Node).await.reject(500);
    // Within a page.
    let mut page = fixture.server.call(ObjectKind::Node).await.start();
    page.bytes(r#"{"kind": "NodeList", "metadata": {"resourceVersion": "55"}, "items": ["#).await;
    page.cut().await;
    fixture.server.call(ObjectKind::Node).await.start().break_off();
    let call = fixture.server.call(ObjectKind::Node).await;
    fixture.assert_no_update();
    call.list("60", &[node("n1", "x", "1")], None);
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x");
}

#[tokio::test(start_paused = true)]
async fn list_that_stops_half_way_is_requested_again() {
    let mut fixture = Fixture::new(Deadlines { response: SHORT, ..deadlines() }).await;
    // Before the response, within a page, after a page.
    fixture.server.call(ObjectKind::Node).await.hang();
    let mut page = fixture.server.call(ObjectKind::Node).await.start();
    page.bytes(r#"{"kind": "NodeList", "metadata": {"resourceVersion": "5"}, "items": ["#).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    fixture.server.call(ObjectKind::Node).await.list("7", &[node("half", "x", "2")], Some("second"));
    fixture.server.call(ObjectKind::Node).await.hang();
    next_list(&mut fixture, &[node("n1", "x", "1")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x");
    drop(page);
}

#[tokio::test]
async fn page_that_is_too_large_is_requested_with_fewer_objects() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    for limit in ["limit=500", "limit=62"] {
        let call = fixture.server.call(ObjectKind::Node).await;
        call.assert(&[limit]);
        call.start().bytes(&" ".repeat(MAX_RESPONSE_BYTES + 1)).await;
    }
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["limit=7"]);
    call.list("10", &[node("n1", "x", "1")], Some("second"));
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["limit=7", "continue=second"]);
    call.list("10", &[node("n2", "x", "2")], None);
    assert_eq!(fixture.next_summary().await, "all Node: n1 in x, n2 in x");
}

#[tokio::test(start_paused = true)]
async fn list_without_a_last_page_is_a_failure() {
    let mut fixture = Fixture::new(Deadlines { list: SHORT, ..deadlines() }).await;
    fixture.server.reject_stream(ObjectKind::Node).await;
    for _ in 0..2 {
        let call = fixture.server.call(ObjectKind::Node).await;
        sleep(SHORT / 3).await;
        call.list("10", &[node("n1", "x", "1")], Some("another"));
    }
    let call = fixture.server.call(ObjectKind::Node).await;
    call.assert(&["continue=another"]);
    call.hang();
    fixture.server.list(ObjectKind::Node, "20", &[node("n2", "x", "1")]).await;
    assert_eq!(fixture.next_summary().await, "all Node: n2 in x");
    let error = fixture.row(ObjectKind::Node).last_error.unwrap();
    assert_eq!(error, "no complete list within 10s");
}

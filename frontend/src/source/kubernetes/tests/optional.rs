//! ServiceCIDR objects: an older API server does not serve them, and RBAC may not allow them.

use super::*;

fn cidr() -> Value {
    json!({"metadata": {"name": "kubernetes", "resourceVersion": "1"}, "spec": {"cidrs": ["10.96.0.0/16"]}})
}

/// Rejects a streaming list and a page.
async fn reject(fixture: &mut Fixture, code: u16) {
    for _ in 0..2 {
        fixture.server.call(ObjectKind::ServiceCidr).await.reject(code);
    }
}

#[tokio::test]
async fn service_cidrs_that_are_not_served_are_none_until_they_are() {
    for code in [404, 403] {
        let short = Deadlines { watch: Duration::from_secs(1), ..deadlines() };
        let mut fixture = Fixture::new(short).await;
        // For a required kind this is a failure.
        fixture.server.call(ObjectKind::Node).await.reject(code);
        fixture.server.call(ObjectKind::Node).await.reject(code);
        reject(&mut fixture, code).await;
        assert_eq!(fixture.next_summary().await, "all ServiceCIDR: ", "{code}");
        let row = fixture.row(ObjectKind::ServiceCidr);
        assert_eq!((row.phase, row.age(), row.failures), (WatchPhase::NotOffered, None, 0));
        // It is requested again, without a log line.
        reject(&mut fixture, code).await;
        fixture.server.stream(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
        let SourceUpdate::Replace(ObjectKind::ServiceCidr, objects) = fixture.next().await else {
            panic!("no Replace")
        };
        assert!(matches!(&objects[0].object, Some(ClusterObject::ServiceCidr(found)) if found.cidrs.len() == 1));
    }
}

#[tokio::test]
async fn service_cidrs_are_listed_if_only_watches_are_not_allowed() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.call(ObjectKind::ServiceCidr).await.reject(403);
    fixture.server.list(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.len() == 1));
}

/// The server may be about to be restored from a backup.
#[tokio::test]
async fn service_cidrs_that_are_no_longer_served_stay() {
    let mut fixture = Fixture::new(Deadlines { watch: Duration::from_secs(1), ..deadlines() }).await;
    let mut watch = fixture.server.stream(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.len() == 1));
    watch.error(410).await;
    reject(&mut fixture, 404).await;
    let call = fixture.server.call(ObjectKind::ServiceCidr).await;
    fixture.assert_no_update();
    call.stream().initial_events_end(ObjectKind::ServiceCidr, "20").await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.is_empty()));
}

/// The cluster is not complete before the server has responded.
#[tokio::test]
async fn failed_list_of_service_cidrs_is_retried() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.call(ObjectKind::ServiceCidr).await.reject(503);
    fixture.server.call(ObjectKind::ServiceCidr).await.reject(500);
    let call = fixture.server.call(ObjectKind::ServiceCidr).await;
    fixture.assert_no_update();
    call.stream().initial_events_end(ObjectKind::ServiceCidr, "10").await;
    assert_eq!(fixture.next_summary().await, "all ServiceCIDR: ");
}

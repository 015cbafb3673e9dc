//! ServiceCIDR objects: an older cluster has none, and reading them is a permission of its own.

use super::*;

fn cidr() -> Value {
    json!({"metadata": {"name": "kubernetes", "resourceVersion": "1"}, "spec": {"cidrs": ["10.96.0.0/16"]}})
}

/// Refuses to stream and to list.
async fn refuse(fixture: &mut Fixture, code: u16) {
    for _ in 0..2 {
        fixture.server.call(ObjectKind::ServiceCidr).await.refuse(code);
    }
}

#[tokio::test]
async fn service_cidrs_that_are_not_offered_are_none_until_they_are() {
    for code in [404, 403] {
        let short = Deadlines { watch_seconds: 1, ..deadlines() };
        let mut fixture = Fixture::new(short).await;
        // Of a kind that must be there that would be trouble.
        fixture.server.call(ObjectKind::Node).await.refuse(code);
        fixture.server.call(ObjectKind::Node).await.refuse(code);
        refuse(&mut fixture, code).await;
        assert_eq!(fixture.next_in_short().await, "all ServiceCIDR: ", "{code}");
        let row = fixture.row(ObjectKind::ServiceCidr);
        assert_eq!((row.phase, row.age, row.failures), (WatchPhase::NotOffered, None, 0));
        // It is looked for again, in silence.
        refuse(&mut fixture, code).await;
        fixture.server.stream(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
        let SourceUpdate::Replace(ObjectKind::ServiceCidr, objects) = fixture.next().await else {
            panic!("no Replace")
        };
        assert!(matches!(&objects[0].object, Some(ClusterObject::ServiceCidr(found)) if found.cidrs.len() == 1));
    }
}

#[tokio::test]
async fn service_cidrs_that_may_be_listed_but_not_watched_are_listed() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.call(ObjectKind::ServiceCidr).await.refuse(403);
    fixture.server.list(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.len() == 1));
}

/// What is known stays: the server may be on its way back from a backup.
#[tokio::test]
async fn service_cidrs_that_are_offered_no_more_stay() {
    let mut fixture = Fixture::new(Deadlines { watch_seconds: 1, ..deadlines() }).await;
    let mut watch = fixture.server.stream(ObjectKind::ServiceCidr, "10", &[cidr()]).await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.len() == 1));
    watch.error(410).await;
    refuse(&mut fixture, 404).await;
    let call = fixture.server.call(ObjectKind::ServiceCidr).await;
    fixture.assert_silent();
    call.stream().initial_end(ObjectKind::ServiceCidr, "20").await;
    assert!(matches!(fixture.next().await, SourceUpdate::Replace(ObjectKind::ServiceCidr, found) if found.is_empty()));
}

/// A failure is no answer: the cluster is not complete before there is one.
#[tokio::test]
async fn service_cidrs_that_cannot_be_listed_are_waited_for() {
    let mut fixture = Fixture::new(deadlines()).await;
    fixture.server.call(ObjectKind::ServiceCidr).await.refuse(503);
    fixture.server.call(ObjectKind::ServiceCidr).await.refuse(500);
    let call = fixture.server.call(ObjectKind::ServiceCidr).await;
    fixture.assert_silent();
    call.stream().initial_end(ObjectKind::ServiceCidr, "10").await;
    assert_eq!(fixture.next_in_short().await, "all ServiceCIDR: ");
}

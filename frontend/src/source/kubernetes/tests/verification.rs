//! Requests beside a watch, on a server with a store, in simulated time.

use fake_api_server::{ApiServer, Fault, RequestKind};
use tokio::time::{Instant, sleep};

use crate::testing::Warnings;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);
/// Far longer than a request, far shorter than any delay of a fault.
const MOMENT: Duration = Duration::from_secs(2);

impl Fixture<ApiServer> {
    /// Starts on a server with one node, and waits until all kinds are listed.
    async fn listed() -> Self {
        let server = ApiServer::start().unwrap();
        let _ = server.put(Resource::Node, node("n1", "x", ""));
        let mut fixture = Self::on(server.address(), server, Deadlines::default());
        for _ in ObjectKind::ALL {
            assert!(matches!(fixture.next().await, SourceUpdate::Replace(..)));
        }
        fixture
    }

    fn put_node(&self, name: &str, zone: &str) {
        let _ = self.server.put(Resource::Node, node(name, zone, ""));
    }

    /// Changes Services, as in a cluster where something always changes, and discards updates.
    async fn busy(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let (_, service, _) = samples().into_iter().next().unwrap();
            let _ = self.server.put(Resource::Service, service);
            sleep(Duration::from_secs(20)).await;
            while self.updates.try_recv().is_ok() {}
        }
    }

    fn requests(&self, kind: RequestKind) -> u64 {
        self.server.requests(Resource::Node, kind)
    }

    fn lists(&self) -> u64 {
        self.requests(RequestKind::List) + self.requests(RequestKind::StreamedList)
    }
}

/// An API server whose etcd sends no progress notifications.
#[tokio::test(start_paused = true)]
async fn quiet_kind_without_bookmarks_is_compared_and_not_listed() {
    let (warnings, _guard) = Warnings::capture();
    let mut fixture = Fixture::listed().await;
    fixture.server.set_faults(Resource::Node, |faults| faults.bookmarks = false);
    fixture.busy(6 * HOUR).await;
    assert_eq!(fixture.lists(), 1, "full lists");
    // Every 150 s.
    let comparisons = fixture.requests(RequestKind::MetadataList);
    assert!((130..=144).contains(&comparisons), "{comparisons} comparisons");
    // An event needs no list.
    fixture.put_node("n1", "y");
    assert_eq!(fixture.next_summary().await, "n1 in y");
    fixture.busy(HOUR).await;
    assert!(fixture.requests(RequestKind::MetadataList) <= comparisons + 24);
    assert_eq!((fixture.lists(), warnings.count()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn kind_with_bookmarks_is_never_compared() {
    let (warnings, _guard) = Warnings::capture();
    let mut fixture = Fixture::listed().await;
    fixture.busy(HOUR).await;
    assert_eq!((fixture.lists(), fixture.requests(RequestKind::MetadataList), warnings.count()), (1, 0, 0));
}

/// The server accepts watches, but does not deliver.
#[tokio::test(start_paused = true)]
async fn missed_changes_are_listed() {
    let mut fixture = Fixture::listed().await;
    fixture.server.set_faults(Resource::Node, |faults| faults.events = false);
    fixture.server.set_faults(Resource::Node, |faults| faults.streaming = false);
    for (zone, lists) in [("y", 2), ("z", 3), ("x", 4)] {
        fixture.put_node("n1", zone);
        let changed = Instant::now();
        assert_eq!(fixture.next_within(HOUR).await, format!("all Node: n1 in {zone}"));
        assert!(changed.elapsed() < Duration::from_secs(200), "{:?}", changed.elapsed());
        assert_eq!(fixture.requests(RequestKind::List) + 1, lists);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_is_resumed_at_once_while_lists_fail() {
    for fault in [Fault::Refuse(503), Fault::Throttle(30), Fault::Delay(HOUR), Fault::Hang] {
        let (warnings, _guard) = Warnings::capture();
        let mut fixture = Fixture::listed().await;
        fixture.server.set_faults(Resource::Node, |faults| faults.lists = Some(fault));
        for zone in ["y", "z"] {
            fixture.server.cut_watches();
            fixture.put_node("n1", zone);
            let changed = Instant::now();
            assert_eq!(fixture.next_within(HOUR).await, format!("n1 in {zone}"), "{fault:?}");
            assert!(changed.elapsed() < MOMENT, "{fault:?}: {:?}", changed.elapsed());
        }
        // Events arrive for as long as lists fail.
        fixture.busy(HOUR).await;
        fixture.put_node("n1", "x");
        let changed = Instant::now();
        assert_eq!(fixture.next_within(HOUR).await, "n1 in x", "{fault:?}");
        assert!(changed.elapsed() < MOMENT, "{fault:?}: {:?}", changed.elapsed());
        assert_eq!(fixture.lists(), 1, "{fault:?}");
        // The cut of each kind's watch may be a warning, too.
        assert!(warnings.count() <= 10, "{fault:?}: {} warnings", warnings.count());
    }
}

/// `Retry-After` of 30 s.
#[tokio::test(start_paused = true)]
async fn throttled_requests_are_repeated_as_rarely_as_the_server_asks() {
    let mut fixture = Fixture::listed().await;
    fixture.server.set_faults(Resource::Node, |faults| faults.lists = Some(Fault::Throttle(30)));
    fixture.busy(HOUR).await;
    let requests = fixture.requests(RequestKind::Version);
    assert!((60..=130).contains(&requests), "{requests} requests in an hour");
}

#[tokio::test(start_paused = true)]
async fn restore_from_a_backup_is_detected() {
    for fault in [None, Some(Fault::Refuse(503)), Some(Fault::Throttle(5))] {
        let mut fixture = Fixture::listed().await;
        let backup = fixture.server.backup();
        fixture.put_node("n2", "x");
        assert_eq!(fixture.next_within(HOUR).await, "n2 in x");
        fixture.server.set_faults(Resource::Node, |faults| faults.lists = fault);
        fixture.server.restore(backup);
        sleep(MOMENT).await;
        fixture.server.set_faults(Resource::Node, |faults| faults.lists = None);
        assert_eq!(fixture.next_within(HOUR).await, "all Node: n1 in x", "{fault:?}");
        assert_eq!(fixture.lists(), 2);
        fixture.put_node("n3", "x");
        assert_eq!(fixture.next_within(HOUR).await, "n3 in x");
    }
}

/// The API server writes so much after the restore that it reaches the version of the watch at once.
#[tokio::test(start_paused = true)]
async fn restore_is_detected_when_the_version_has_caught_up() {
    let mut fixture = Fixture::listed().await;
    let backup = fixture.server.backup();
    fixture.put_node("n2", "x");
    assert_eq!(fixture.next_within(HOUR).await, "n2 in x");
    fixture.server.restore(backup);
    for _ in 0..10 {
        let lease = json!({"metadata": {"namespace": "shop", "name": "leader"}});
        let _ = fixture.server.put(Resource::ConfigMap, lease);
    }
    assert_eq!(fixture.next_within(HOUR).await, "all Node: n1 in x");
}

#[tokio::test(start_paused = true)]
async fn failing_watches_cause_a_limited_number_of_comparisons() {
    let mut fixture = Fixture::listed().await;
    for _ in 0..60 {
        fixture.server.cut_watches();
        fixture.busy(Duration::from_secs(60)).await;
    }
    let comparisons = fixture.requests(RequestKind::MetadataList);
    assert!((10..=25).contains(&comparisons), "{comparisons} comparisons in an hour");
    assert_eq!(fixture.lists(), 1);
}

impl Fixture<ApiServer> {
    /// The next update of nodes, in simulated time.
    async fn next_within(&mut self, limit: Duration) -> String {
        let next = async {
            loop {
                match self.updates.recv().await.expect("the source runs") {
                    SourceUpdate::Progress(..) | SourceUpdate::Replace(ObjectKind::Service, _) => {}
                    SourceUpdate::Replace(ObjectKind::EndpointSlice | ObjectKind::ServiceCidr, _) => {}
                    update => return summary(&update),
                }
            }
        };
        timeout(limit, next).await.expect("an update of nodes")
    }
}

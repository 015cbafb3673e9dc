//! An API server that is gone for some time, in simulated time: how soon after its return the frontend has changes.

use fake_api_server::{ApiServer, Fault};
use tokio::time::{Instant, sleep};

use super::*;

/// How long outages are, in seconds.
const OUTAGES: [u64; 3] = [1, 15, 120];
/// The longest time from the end of an outage until changes are delivered.
const BACK: Duration = Duration::from_secs(3);
/// How long after its start a server refuses requests: it has loaded neither roles nor objects. Its `/readyz` fails.
const STARTING: Duration = Duration::from_millis(2_500);

impl Fixture<ApiServer> {
    async fn next_of(&mut self, kind: ObjectKind) -> SourceUpdate {
        loop {
            let update = self.updates.recv().await.expect("the source runs");
            match &update {
                SourceUpdate::Replace(found, _) | SourceUpdate::Delete(found, _) if *found == kind => return update,
                SourceUpdate::Apply(parsed) if matches!(parsed.object, Some(ClusterObject::Node(_))) => return update,
                _ => {}
            }
        }
    }
}

fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    let _ = server.put(Resource::Node, node("n1", "x", ""));
    server
}

fn refuse(server: &ApiServer, fault: Option<Fault>) {
    for kind in ObjectKind::ALL {
        server.set_faults(kind.into(), |faults| (faults.lists, faults.watches) = (fault, fault));
    }
}

/// With a new cache, in which all versions have expired, and without, as another server of the same cluster answers.
#[tokio::test(start_paused = true)]
async fn changes_arrive_soon_after_an_outage() {
    for (streaming, new_cache) in [(true, true), (false, true), (true, false)] {
        for outage in OUTAGES {
            let server = server();
            server.set_faults(Resource::Node, |faults| faults.streaming = streaming);
            let mut fixture = Fixture::on(server.address(), server, Deadlines::default());
            fixture.next_of(ObjectKind::Node).await;
            // Fewer delays are due than the longest ones between lists.
            sleep(Duration::from_secs(30)).await;
            fixture.server.stop().await;
            let _ = fixture.server.put(Resource::Node, node("n1", "y", ""));
            sleep(Duration::from_secs(outage)).await;
            if new_cache {
                fixture.server.compact();
            }
            fixture.server.restart().unwrap();
            let returned = Instant::now();
            let update = fixture.next_of(ObjectKind::Node).await;
            assert!(summary(&update).ends_with("n1 in y"), "{}", summary(&update));
            assert!(returned.elapsed() <= BACK, "{:?} after {outage} s, {new_cache}", returned.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changes_arrive_soon_after_the_start_of_a_server_that_refuses_requests_first() {
    for fault in [Fault::Refuse(403), Fault::Refuse(503), Fault::Throttle(1)] {
        for outage in OUTAGES {
            let server = server();
            let mut fixture = Fixture::on(server.address(), server, Deadlines::default());
            fixture.next_of(ObjectKind::Node).await;
            fixture.server.stop().await;
            sleep(Duration::from_secs(outage)).await;
            fixture.server.compact();
            refuse(&fixture.server, Some(fault));
            fixture.server.restart().unwrap();
            sleep(STARTING).await;
            refuse(&fixture.server, None);
            let _ = fixture.server.put(Resource::Node, node("n1", "y", ""));
            let ready = Instant::now();
            let update = fixture.next_of(ObjectKind::Node).await;
            assert!(summary(&update).ends_with("n1 in y"), "{}", summary(&update));
            assert!(ready.elapsed() <= BACK, "{:?} after {outage} s, {fault:?}", ready.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn frontend_that_starts_during_an_outage_lists_soon_after_it() {
    for outage in OUTAGES {
        let server = server();
        server.stop().await;
        let mut fixture = Fixture::on(server.address(), server, Deadlines::default());
        sleep(Duration::from_secs(outage)).await;
        fixture.server.restart().unwrap();
        let returned = Instant::now();
        for _ in ObjectKind::ALL {
            assert!(matches!(fixture.next().await, SourceUpdate::Replace(..)));
        }
        assert!(returned.elapsed() <= BACK, "{:?} after {outage} s", returned.elapsed());
    }
}

//! What clients of a frontend are told that does not follow the API.

use proto::model::Welcome;
use tokio::time::timeout;

use super::*;
use crate::source::UNCONFIRMED;

/// Also a client that is sent changes all the time: other kinds of objects are followed.
#[tokio::test(start_paused = true)]
async fn clients_are_told_within_a_minute() {
    for changes in [false, true] {
        let fixture = Fixture::of(small()).await;
        let freshness = fixture.frontend.freshness();
        freshness.listed(ObjectKind::Node);
        freshness.failed(ObjectKind::Node, "no route to host");
        let mut client = fixture.joined("node-0").await;
        let began = Instant::now();
        for last in 1.. {
            if let Ok(bookmark) = timeout(Duration::from_secs(7), client.bookmark()).await {
                client.ack().await;
                if bookmark.is_outdated {
                    break;
                }
            }
            assert!(began.elapsed() < 2 * UNCONFIRMED, "{changes}");
            if changes {
                fixture.update(put(web([last % 5 + 1]))).await;
                client.commit().await;
            }
        }
        let latest = UNCONFIRMED + Duration::from_secs(if changes { 70 } else { 15 });
        assert!((UNCONFIRMED..latest).contains(&began.elapsed()), "{changes}: {:?}", began.elapsed());
        let mut next = fixture.connect(hello("node-1")).await;
        let welcome = next.message().await;
        assert!(matches!(welcome, ServerMessage::Welcome(Welcome { is_outdated: true, .. })), "{welcome:?}");
    }
}

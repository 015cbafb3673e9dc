//! What clients of a frontend are told that does not follow the API.

use proto::model::Welcome;

use super::*;
use crate::source::CONFIRMATION_TIMEOUT;

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
        let mut owes_ack = false;
        for last in 1.. {
            if changes {
                // The next change is committed before the last one is acknowledged.
                fixture.update(put(web([last % 5 + 1]))).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            if owes_ack {
                client.ack().await;
            }
            owes_ack = true;
            if client.commit_or_bookmark().await.is_some_and(|bookmark| bookmark.is_outdated) {
                break;
            }
            assert!(began.elapsed() < 2 * CONFIRMATION_TIMEOUT, "{changes}");
        }
        let latest = CONFIRMATION_TIMEOUT + Duration::from_secs(if changes { 70 } else { 15 });
        assert!((CONFIRMATION_TIMEOUT..latest).contains(&began.elapsed()), "{changes}: {:?}", began.elapsed());
        let mut next = fixture.connect(hello("node-1")).await;
        let welcome = next.message().await;
        assert!(matches!(welcome, ServerMessage::Welcome(Welcome { is_outdated: true, .. })), "{welcome:?}");
    }
}

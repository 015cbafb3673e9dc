//! Clients of a frontend that does not follow the API.

use tokio::time::timeout;

use super::*;
use crate::source::UNCONFIRMED;

#[tokio::test(start_paused = true)]
async fn client_is_asked_to_leave_now_and_then_and_served_on() {
    for max_stream_age in [None, Some(Duration::from_secs(36_000))] {
        let config = Config { max_stream_age, ..Config::default() };
        let fixture = Fixture::with(config, small()).await;
        let freshness = fixture.frontend.freshness();
        freshness.listed(ObjectKind::Service);
        freshness.failed(ObjectKind::Service, "no route to host");
        let mut client = fixture.joined("node-0").await;
        let began = Instant::now();
        let mut drains = Vec::new();
        while began.elapsed() < Duration::from_secs(1_000) {
            match timeout(UNCONFIRMED, client.message()).await.expect("a bookmark") {
                ServerMessage::Drain(_) => drains.push(began.elapsed().as_secs()),
                ServerMessage::Bookmark(..) => client.ack().await,
                message => panic!("{message:?}"),
            }
        }
        assert_eq!(drains.len(), if max_stream_age.is_some() { 3 } else { 0 }, "{drains:?}");
        assert!(drains.iter().all(|at| *at >= 300), "{drains:?}");
    }
}

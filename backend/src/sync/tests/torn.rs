//! Calls that leave half of a service port in the kernel.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A Service with these endpoints.
fn web(endpoints: &[&str]) -> NodeState {
    let web = |web: crate::testing::ServiceBuilder| web.cluster_ip("10.96.0.1").endpoints(endpoints.iter().copied());
    mk_state().service("default/web", web).build()
}

/// Receives acks until this revision is programmed. Until then it is revision 1, and the kernel lacks the state.
async fn acks_until_programmed(fixture: &Fixture, peer: &mut Peer, revision: Revision, state: &NodeState) {
    let mut ack = peer.ack().await;
    while ack.programmed != revision {
        assert_eq!(ack.programmed, Revision(1), "{ack:?}");
        assert_ne!(fixture.kernel.service_ports(), *state.service_ports());
        ack = peer.ack().await;
    }
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
}

/// The newest state is the one that was programmed before, and the kernel has half of another one.
#[tokio::test(start_paused = true)]
async fn state_that_returns_is_not_programmed_before_its_call() {
    let old = web(&["10.244.1.1:80", "10.244.1.2:80"]);
    let other = web(&["10.244.1.3:80", "10.244.1.4:80"]);
    for torn in [TornWrite::Unfinished, TornWrite::Failed] {
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&old).await;
        fixture.kernel.slow(SECOND);
        let calls = fixture.kernel.calls().len();

        fixture.kernel.tear(torn);
        peer.commit(1, 2, operations_between(&old, &other)).await;
        tokio::time::sleep(SECOND / 2).await;
        peer.commit(2, 3, operations_between(&other, &old)).await;
        fixture.kernel.calls_reach(calls + 1).await;
        fixture.kernel.tear(TornWrite::Unfinished);

        acks_until_programmed(&fixture, &mut peer, Revision(3), &old).await;
        fixture.stop().await;
    }
}

/// The kernel has half of what was removed.
#[tokio::test(start_paused = true)]
async fn service_that_is_half_removed_is_not_programmed() {
    let state = web(&["10.244.1.1:80", "10.244.1.2:80"]);
    let none = mk_state().build();
    for torn in [TornWrite::Unfinished, TornWrite::Failed] {
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&state).await;
        fixture.kernel.slow(SECOND);

        fixture.kernel.tear(torn);
        peer.commit(1, 2, operations_between(&state, &none)).await;

        acks_until_programmed(&fixture, &mut peer, Revision(2), &none).await;
        fixture.stop().await;
    }
}

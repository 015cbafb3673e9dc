//! Commits that exceed the loss limit: rejected first, applied when a second snapshot confirms them.

use super::*;
use crate::StreamOptions;

/// The number of service ports before a loss.
const ALL: usize = 20;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("default/s{number}")).collect()
}

fn services(count: usize) -> NodeState {
    let names = names(count);
    mk_services(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A backend process after a rejected loss of all but `left`.
async fn rejected_loss(kernel: &FakeKernel, left: usize) -> Fixture {
    let mut fixture = start(kernel, None);
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(left))).await;
    assert!(peer.replies.recv().await.is_none(), "no ack, and the session ends");
    assert_eq!(fixture.keys().len(), ALL, "the kernel is unchanged");
    assert_eq!(fixture.progress.borrow().rejected_losses, 1);
    fixture
}

#[tokio::test(start_paused = true)]
async fn large_loss_is_applied_when_a_second_snapshot_confirms_it() {
    let kernel = FakeKernel::default();
    let mut fixture = rejected_loss(&kernel, 3).await;
    let rejected = Instant::now();
    let mut peer = fixture.session().await;
    assert_eq!((peer.hello.resume, peer.hello.digests.is_none()), (None, true), "a snapshot is requested");
    assert_eq!(rejected.elapsed(), StreamOptions::default().loss_retry_delay);
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 9, everything(&services(3))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(3))));
    assert_eq!(fixture.keys().len(), 3);

    // The next large loss is rejected again.
    peer.commit(9, 10, operations_between(&services(3), &services(ALL))).await;
    peer.ack().await;
    peer.commit(10, 11, operations_between(&services(ALL), &services(1))).await;
    assert!(peer.replies.recv().await.is_none());
    assert_eq!(fixture.keys().len(), ALL);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn large_loss_that_is_not_confirmed_changes_nothing() {
    let kernel = FakeKernel::default();
    let mut fixture = rejected_loss(&kernel, 0).await;
    let calls = kernel.calls().len();
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 3, everything(&services(ALL))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(ALL))));
    assert_eq!(kernel.calls().len(), calls, "nothing changed");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn service_ports_that_lose_their_endpoints_count_as_lost() {
    let empty = (0..ALL).fold(mk_state(), |state, number| {
        state.service(&format!("default/s{number}"), |service| service.cluster_ip(&format!("10.96.0.{}", number + 1)))
    });
    let empty = empty.build();
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &empty)).await;
    assert!(peer.replies.recv().await.is_none());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn losses_within_the_limit_are_applied() {
    for (before, after) in [(ALL, ALL / 2), (9, 0)] {
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&services(before)).await;
        peer.commit(1, 2, operations_between(&services(before), &services(after))).await;
        assert_eq!(peer.ack().await.revision, Revision(2));
        assert_eq!(fixture.keys().len(), after);
        fixture.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_loss_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(ALL - 1))).await;
    peer.ack().await;
    peer.commit(2, 3, operations_between(&services(ALL - 1), &services(0))).await;
    assert!(peer.replies.recv().await.is_none());
    fixture.stop().await;
    drop(peer);
    let mut fixture = start(&kernel, Some(&file));
    let peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(2))));
    assert_eq!(peer.hello.digests.as_deref(), Some(services(ALL - 1).digests()));
    fixture.stop().await;
}

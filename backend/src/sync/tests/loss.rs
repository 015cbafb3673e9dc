//! Changes that take away more than may be believed at once: held back, heard again, then believed.

use super::*;
use crate::StreamOptions;

/// So many service ports, of which a part goes.
const ALL: usize = 20;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("default/s{number}")).collect()
}

fn services(count: usize) -> NodeState {
    let names = names(count);
    mk_services(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// An agent whose session has ended over a loss of all but `left`.
async fn held_back(kernel: &FakeKernel, left: usize) -> World {
    let mut world = start(kernel, None);
    let mut peer = world.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(left))).await;
    assert!(peer.replies.recv().await.is_none(), "it is not acked, and the session ends");
    assert_eq!(world.keys().len(), ALL, "what was programmed stays");
    assert_eq!(world.progress.borrow().held_back, 1);
    world
}

#[tokio::test(start_paused = true)]
async fn a_large_loss_is_believed_when_a_second_snapshot_says_it_too() {
    let kernel = FakeKernel::default();
    let mut world = held_back(&kernel, 3).await;
    let heard = Instant::now();
    let mut peer = world.session().await;
    assert_eq!((peer.hello.resume, peer.hello.digests.is_none()), (None, true), "everything is to be said");
    assert_eq!(heard.elapsed(), StreamOptions::default().hold);
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 9, everything(&services(3))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(3))));
    assert_eq!(world.keys().len(), 3);

    // Once more it would be doubted anew.
    peer.commit(9, 10, operations_between(&services(3), &services(ALL))).await;
    peer.ack().await;
    peer.commit(10, 11, operations_between(&services(ALL), &services(1))).await;
    assert!(peer.replies.recv().await.is_none());
    assert_eq!(world.keys().len(), ALL);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_loss_that_nobody_repeats_never_happened() {
    let kernel = FakeKernel::default();
    let mut world = held_back(&kernel, 0).await;
    let calls = kernel.calls().len();
    let mut peer = world.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 3, everything(&services(ALL))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&services(ALL))));
    assert_eq!(kernel.calls().len(), calls, "nothing is different");
    world.stop().await;
}

/// Services that are there and have no endpoints any more are as good as gone.
#[tokio::test(start_paused = true)]
async fn endpoints_count_and_not_names() {
    let empty = (0..ALL).fold(mk_state(), |state, number| {
        state.service(&format!("default/s{number}"), |service| service.cluster_ip(&format!("10.96.0.{}", number + 1)))
    });
    let empty = empty.build();
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &empty)).await;
    assert!(peer.replies.recv().await.is_none());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn half_of_the_services_and_a_few_may_go_at_once() {
    for (before, after) in [(ALL, ALL / 2), (9, 0)] {
        let mut world = start(&FakeKernel::default(), None);
        let mut peer = world.following(&services(before)).await;
        peer.commit(1, 2, operations_between(&services(before), &services(after))).await;
        assert_eq!(peer.ack().await.revision, Revision(2));
        assert_eq!(world.keys().len(), after);
        world.stop().await;
    }
}

/// What was held back is in the state file as little as in the kernel.
#[tokio::test(start_paused = true)]
async fn what_is_held_back_is_not_written_down() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let kernel = FakeKernel::default();
    let mut world = start(&kernel, Some(&file));
    let mut peer = world.following(&services(ALL)).await;
    peer.commit(1, 2, operations_between(&services(ALL), &services(ALL - 1))).await;
    peer.ack().await;
    peer.commit(2, 3, operations_between(&services(ALL - 1), &services(0))).await;
    assert!(peer.replies.recv().await.is_none());
    world.stop().await;
    drop(peer);
    let mut world = start(&kernel, Some(&file));
    let peer = world.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(2))));
    assert_eq!(peer.hello.digests.as_deref(), Some(services(ALL - 1).digests()));
    world.stop().await;
}

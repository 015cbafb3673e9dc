//! What the backend does: failures, poison, slowness, drift; and the end.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn ack_waits_until_the_backend_has_recovered() {
    let states = [mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"])];
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&states[0]).await;
    world.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    let calls = world.kernel.calls().len();
    world.kernel.calls_reach(calls + 3).await;
    assert!(world.kernel.calls()[calls..].iter().all(|call| *call == Call::Failed));

    // The stream goes on being read, and what it says is held.
    peer.commit(2, 3, operations_between(&states[1], &states[2])).await;
    peer.bookmark(4, total(&states[2])).await;
    assert_eq!(peer.barrier().await, total(&states[2]));
    let progress = world.progress.borrow().clone();
    assert_eq!(progress.error.as_deref(), Some("reconcile: no memory"));
    assert_eq!(progress.committed, Some((EPOCH, Revision(4))));
    assert_eq!(progress.programmed, Some((EPOCH, Revision(1))));

    world.kernel.heal();
    for (revision, state) in [(2, 1), (3, 2), (4, 2)] {
        let ack = peer.ack().await;
        assert_eq!((ack.revision, ack.digest), (Revision(revision), Some(total(&states[state]))));
        assert!(ack.apply_time > Duration::ZERO);
    }
    assert_eq!(world.kernel.services(), *states[2].service_ports());
    assert_eq!(world.kernel.calls().last(), Some(&Call::Reconcile(2)));
    assert_eq!(world.progress.borrow().error, None);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retries_become_rarer() {
    let mut world = start(&FakeKernel::default(), None);
    let peer = world.session().await;
    world.kernel.fail("no memory");
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 1, everything(&mk_services(&["default/a"]))).await;
    tokio::time::sleep(600 * SECOND).await;
    let calls = world.kernel.calls().len();
    assert!((10..200).contains(&calls), "{calls} calls in ten minutes");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn poison_is_acked_and_the_rest_is_in_force() {
    let (old, new) = (mk_services(&["default/a"]), mk_services(&["default/a", "default/b", "default/c"]));
    let poison = |retryable| ServicePortFailure {
        key: mk_key("default/b"),
        reason: "invalid argument".to_owned(),
        retryable,
        kind: FailureKind::Program,
    };
    for retryable in [false, true] {
        let mut world = start(&FakeKernel::default(), None);
        let mut peer = world.following(&old).await;
        world.kernel.poison(poison(retryable));
        peer.commit(1, 2, operations_between(&old, &new)).await;
        let ack = peer.ack().await;
        assert_eq!((ack.digest, ack.failures), (Some(total(&new)), vec![poison(retryable)]));
        assert_eq!(world.keys(), [mk_key("default/a"), mk_key("default/c")]);
        assert_eq!(world.progress.borrow().failures, [poison(retryable)]);

        // Only what may succeed is tried again.
        let calls = world.kernel.calls().len();
        world.kernel.cure(&mk_key("default/b"));
        if retryable {
            world.kernel.calls_reach(calls + 1).await;
            assert_eq!(world.kernel.calls()[calls..], [Call::Reconcile(1)]);
            peer.bookmark(2, total(&new)).await;
            assert_eq!(peer.ack().await.failures, []);
        } else {
            tokio::time::sleep(20 * SECOND).await;
            peer.bookmark(2, total(&new)).await;
            assert_eq!(peer.ack().await.failures, [poison(false)]);
            assert_eq!(world.kernel.calls().len(), calls);
        }
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn commits_do_not_put_off_a_retry() {
    let states = [mk_services(&["default/a", "default/b"]), mk_services(&["default/a"])];
    let mut world = start(&FakeKernel::default(), None);
    world.kernel.poison(ServicePortFailure {
        key: mk_key("default/a"),
        reason: "busy".to_owned(),
        retryable: true,
        kind: FailureKind::Program,
    });
    let mut peer = world.following(&states[0]).await;
    for revision in 1..600 {
        let (from, to) = (&states[(revision - 1) % 2], &states[revision % 2]);
        peer.commit(revision as u64, revision as u64 + 1, operations_between(from, to)).await;
        peer.ack().await;
        tokio::time::sleep(SECOND / 20).await;
    }
    let retries = world.kernel.calls().iter().filter(|call| matches!(call, Call::Reconcile(_))).count();
    assert!((3..100).contains(&retries), "{retries} retries in half a minute");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn commits_that_come_while_the_backend_works_are_applied_together() {
    let (a, b, c) = (mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&a).await;
    let calls = world.kernel.calls().len();
    world.kernel.slow(SECOND);
    let begin = Instant::now();
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND / 2).await;
    peer.commit(2, 3, operations_between(&b, &c)).await;
    peer.commit(3, 4, operations_between(&c, &a)).await;
    let expected = [(2, total(&b), SECOND), (3, total(&c), SECOND * 3 / 2), (4, total(&a), SECOND * 3 / 2)];
    for (revision, digest, time) in expected {
        let ack = peer.ack().await;
        assert_eq!((ack.revision, ack.digest), (Revision(revision), Some(digest)));
        assert!(ack.apply_time.abs_diff(time) < SECOND / 10, "{ack:?}");
    }
    assert!(begin.elapsed() < 3 * SECOND);
    assert_eq!(world.kernel.calls()[calls..], [Call::Apply(2), Call::Apply(2)]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn session_that_ends_while_the_backend_works() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut world = start(&FakeKernel::default(), None);
    let peer = world.following(&a).await;
    world.kernel.slow(20 * SECOND);
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND).await;
    // One commit that still counts, then something that must not be.
    peer.commit(2, 3, operations_between(&b, &a)).await;
    peer.commit(9, 10, operations_between(&a, &b)).await;
    peer.commit(3, 4, operations_between(&a, &b)).await;
    drop(peer);
    let next = world.session().await;
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(3))));
    assert_eq!(next.hello.digests.as_deref(), Some(a.digests()));
    world.kernel.calls_reach(3).await;
    assert_eq!(world.kernel.services(), *a.service_ports());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired() {
    let state = mk_services(&["default/a", "default/b"]);
    let mut world = start(&FakeKernel::default(), None);
    let _peer = world.following(&state).await;
    let calls = world.kernel.calls().len();
    world.kernel.lose(&mk_key("default/a"));
    world.kernel.calls_reach(calls + 1).await;
    assert_eq!(world.kernel.calls()[calls..], [Call::Reconcile(1)]);
    assert_eq!(world.kernel.services(), *state.service_ports());
    assert_eq!(world.progress.borrow().drifts, 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_within_a_second_also_while_something_else_waits_for_a_retry() {
    let state = mk_services(&["default/a", "default/b"]);
    let mut world = start(&FakeKernel::default(), None);
    world.kernel.poison(ServicePortFailure {
        key: mk_key("default/b"),
        reason: "busy".to_owned(),
        retryable: true,
        kind: FailureKind::Program,
    });
    let _peer = world.following(&state).await;
    tokio::time::sleep(600 * SECOND).await;
    let calls = world.kernel.calls().len();
    world.kernel.lose(&mk_key("default/a"));
    tokio::time::sleep(SECOND).await;
    assert!(world.kernel.calls()[calls..].contains(&Call::Reconcile(1)));
    assert_eq!(world.keys(), [mk_key("default/a")]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_that_undo_each_others_work_do_so_slowly() {
    let state = mk_services(&["default/a"]);
    let mut world = start(&FakeKernel::default(), None);
    let _peer = world.following(&state).await;
    let started = Instant::now();
    let begin = world.kernel.calls().len();
    for calls in begin..begin + 100 {
        world.kernel.lose(&mk_key("default/a"));
        world.kernel.calls_reach(calls + 1).await;
    }
    assert!(started.elapsed() > 100 * SECOND, "{:?}", started.elapsed());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn call_under_way_is_finished_at_shutdown_and_no_other_begun() {
    let (a, b, c) = (mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"]));
    let mut world = start(&FakeKernel::default(), None);
    let peer = world.following(&a).await;
    world.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND / 2).await;
    peer.commit(2, 3, operations_between(&b, &c)).await;
    let kernel = world.kernel.clone();
    world.stop().await;
    assert_eq!(kernel.services(), *b.service_ports());
    assert!(peer.events.is_closed());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_after_shutdown() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut world = start(&FakeKernel::default(), None);
    let peer = world.following(&a).await;
    world.trigger.fire();
    peer.commit(1, 2, operations_between(&a, &b)).await;
    let kernel = world.kernel.clone();
    world.stop().await;
    assert_eq!(kernel.services(), *a.service_ports());
}

#[tokio::test(start_paused = true)]
async fn acks_of_a_session_that_is_over_are_not_said_in_the_next() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&a).await;
    world.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&a, &b)).await;
    peer.barrier().await;
    drop(peer);
    let mut peer = world.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.bookmark(7, total(&b)).await;
    peer.barrier().await;
    world.kernel.heal();
    assert_eq!(peer.ack().await.revision, Revision(7));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn frontend_that_waits_for_an_ack_is_not_silent() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&a).await;
    world.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(300 * SECOND).await;
    world.kernel.slow(300 * SECOND);
    world.kernel.heal();
    assert_eq!(peer.ack().await.revision, Revision(2));

    let begin = Instant::now();
    world.session().await;
    assert!((30 * SECOND..60 * SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_in_the_kernel_is_pending_since_it_came() {
    let states = [mk_services(&["default/a"]), mk_services(&["default/a", "default/b"])];
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&states[0]).await;
    let progress = world.progress.borrow().clone();
    assert_eq!((progress.pending_since, progress.pending), (None, ChangeCounts::default()));
    assert!(progress.eligible && progress.last_success.is_some());

    world.kernel.fail("no memory");
    let begun = Instant::now();
    let calls = world.kernel.calls().len();
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    world.kernel.calls_reach(calls + 5).await;
    peer.barrier().await;
    let progress = world.progress.borrow().clone();
    assert_eq!(progress.pending_since, Some(begun), "since the commit, not since the last failure");
    assert_eq!(progress.pending, ChangeCounts { service_ports: 1, endpoints: 1 });
    world.kernel.heal();
    peer.ack().await;
    let progress = world.progress.borrow().clone();
    assert_eq!((progress.pending_since, progress.pending), (None, ChangeCounts::default()));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_loop_turns_though_nothing_happens() {
    let mut world = start(&FakeKernel::default(), None);
    let _never_answers = world.session().await;
    tokio::time::sleep(600 * SECOND).await;
    let turned = world.progress.borrow().turned.unwrap();
    assert!(turned.elapsed() <= TURN, "{:?}", turned.elapsed());
    world.stop().await;
}

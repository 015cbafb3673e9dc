//! Behaviour of the backend: failures, rejected service ports, slow calls, drift, shutdown.

use proto::model::IpFamily;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn ack_waits_until_the_backend_has_recovered() {
    let states = [mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"])];
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&states[0]).await;
    fixture.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    let calls = fixture.kernel.calls().len();
    fixture.kernel.calls_reach(calls + 3).await;
    assert!(fixture.kernel.calls()[calls..].iter().all(|call| *call == Call::Failed));

    // The stream is still read and committed.
    peer.commit(2, 3, operations_between(&states[1], &states[2])).await;
    peer.bookmark(4, total(&states[2])).await;
    assert_eq!(peer.barrier().await, total(&states[2]));
    let progress = fixture.progress.borrow().clone();
    assert_eq!(progress.kernel.error.as_deref(), Some("reconcile: no memory"));
    assert_eq!(progress.committed, Some((EPOCH, Revision(4))));
    assert_eq!(progress.programmed, Some((EPOCH, Revision(1))));

    fixture.kernel.recover();
    let ack = peer.ack().await;
    assert_eq!((ack.received, ack.digest), (Revision(4), Some(total(&states[2]))));
    assert!(ack.apply_time > Duration::ZERO);
    assert_eq!(fixture.kernel.service_ports(), *states[2].service_ports());
    assert_eq!(fixture.kernel.calls().last(), Some(&Call::Reconcile(2)));
    assert_eq!(fixture.progress.borrow().kernel.error, None);
    fixture.stop().await;
}

/// A node without IPv6 lacks nothing until a Service has IPv6.
#[tokio::test(start_paused = true)]
async fn family_that_cannot_be_programmed_is_reported_while_it_has_vips() {
    let web = |ips: &'static [&'static str]| {
        let web = |web: crate::testing::ServiceBuilder| ips.iter().fold(web, |web, ip| web.cluster_ip(ip));
        mk_state().service("default/web", web).build()
    };
    let [v4, both, v6] = [web(&["10.96.0.1"]), web(&["10.96.0.1", "fd00:96::1"]), web(&["fd00:96::1"])];
    let none = mk_state().build();
    let kernel = FakeKernel::default();
    kernel.leave_out(IpFamily::V6, "no such table");
    let mut fixture = start(&kernel, None);
    let mut peer = fixture.following(&v4).await;
    let text = ["IPv6 is not programmed: no such table".to_owned()];
    let steps =
        [(&both, &text[..], false), (&v6, &text[..], true), (&none, &text[..0], false), (&both, &text[..], false)];
    let mut before = &v4;
    for (revision, (state, degraded, serves_nothing)) in (2..).zip(steps) {
        peer.commit(revision - 1, revision, operations_between(before, state)).await;
        let ack = peer.ack().await;
        assert_eq!((ack.received, ack.programmed), (Revision(revision), Revision(revision)));
        assert_eq!(ack.degraded, degraded, "{revision}");
        assert_eq!(fixture.progress.borrow().kernel.serves_nothing(), serves_nothing, "{revision}");
        before = state;
    }
    peer.commit(5, 6, operations_between(&both, &v4)).await;
    assert!(peer.ack().await.degraded.is_empty());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retries_back_off() {
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.session().await;
    fixture.kernel.fail("no memory");
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 1, everything(&mk_services(&["default/a"]))).await;
    tokio::time::sleep(600 * SECOND).await;
    let calls = fixture.kernel.calls().len();
    assert!((10..200).contains(&calls), "{calls} calls in ten minutes");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_service_port_is_reported_and_the_others_are_programmed() {
    let (old, new) = (mk_services(&["default/a"]), mk_services(&["default/a", "default/b", "default/c"]));
    let rejection = |retryable| ServicePortFailure {
        retryable,
        ..ServicePortFailure::rejected(mk_key("default/b"), "invalid argument")
    };
    for retryable in [false, true] {
        let mut fixture = start(&FakeKernel::default(), None);
        let mut peer = fixture.following(&old).await;
        fixture.kernel.reject(rejection(retryable));
        peer.commit(1, 2, operations_between(&old, &new)).await;
        let ack = peer.ack().await;
        assert_eq!((ack.digest, ack.failures), (Some(total(&new)), vec![rejection(retryable)]));
        assert_eq!(fixture.keys(), [mk_key("default/a"), mk_key("default/c")]);
        assert_eq!(fixture.progress.borrow().failures, [rejection(retryable)]);

        // Only a retryable failure is retried.
        let calls = fixture.kernel.calls().len();
        fixture.kernel.accept(&mk_key("default/b"));
        if retryable {
            fixture.kernel.calls_reach(calls + 1).await;
            assert_eq!(fixture.kernel.calls()[calls..], [Call::Reconcile(1)]);
            peer.bookmark(2, total(&new)).await;
            assert_eq!(peer.ack().await.failures, []);
        } else {
            tokio::time::sleep(20 * SECOND).await;
            peer.bookmark(2, total(&new)).await;
            assert_eq!(peer.ack().await.failures, [rejection(false)]);
            assert_eq!(fixture.kernel.calls().len(), calls);
        }
        fixture.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn commits_do_not_postpone_a_retry() {
    let states = [mk_services(&["default/a", "default/b"]), mk_services(&["default/a"])];
    let mut fixture = start(&FakeKernel::default(), None);
    fixture.kernel.reject(ServicePortFailure::rejected(mk_key("default/a"), "busy"));
    let mut peer = fixture.following(&states[0]).await;
    for revision in 1..600 {
        let (from, to) = (&states[(revision - 1) % 2], &states[revision % 2]);
        peer.commit(revision as u64, revision as u64 + 1, operations_between(from, to)).await;
        peer.ack().await;
        tokio::time::sleep(SECOND / 20).await;
    }
    let retries = fixture.kernel.calls().iter().filter(|call| matches!(call, Call::Reconcile(_))).count();
    assert!((3..100).contains(&retries), "{retries} retries in half a minute");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn commits_received_while_the_backend_works_are_applied_together() {
    let (a, b, c) = (mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&a).await;
    let calls = fixture.kernel.calls().len();
    fixture.kernel.slow(SECOND);
    let begin = Instant::now();
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND / 2).await;
    peer.commit(2, 3, operations_between(&b, &c)).await;
    peer.commit(3, 4, operations_between(&c, &a)).await;
    let ack = peer.ack().await;
    assert_eq!((ack.received, ack.digest), (Revision(4), Some(total(&a))), "of the newest one");
    assert!(ack.apply_time.abs_diff(SECOND * 3 / 2) < SECOND / 10, "{ack:?}");
    assert!(begin.elapsed() < 3 * SECOND);
    assert_eq!(fixture.kernel.calls()[calls..], [Call::Apply(2), Call::Apply(2)]);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn session_may_end_while_the_backend_works() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.following(&a).await;
    fixture.kernel.slow(20 * SECOND);
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND).await;
    // One valid commit, then a violation of the protocol.
    peer.commit(2, 3, operations_between(&b, &a)).await;
    peer.commit(9, 10, operations_between(&a, &b)).await;
    peer.commit(3, 4, operations_between(&a, &b)).await;
    drop(peer);
    let next = fixture.session().await;
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(3))));
    assert_eq!(next.hello.digests.as_deref(), Some(a.digests()));
    fixture.kernel.calls_reach(3).await;
    assert_eq!(fixture.kernel.service_ports(), *a.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired() {
    let state = mk_services(&["default/a", "default/b"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let _peer = fixture.following(&state).await;
    let calls = fixture.kernel.calls().len();
    fixture.kernel.lose(&mk_key("default/a"));
    fixture.kernel.calls_reach(calls + 1).await;
    assert_eq!(fixture.kernel.calls()[calls..], [Call::Reconcile(1)]);
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    assert_eq!(fixture.progress.borrow().kernel.drifts, 1);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_within_a_second_even_while_a_retry_is_pending() {
    let state = mk_services(&["default/a", "default/b"]);
    let mut fixture = start(&FakeKernel::default(), None);
    fixture.kernel.reject(ServicePortFailure::rejected(mk_key("default/b"), "busy"));
    let _peer = fixture.following(&state).await;
    tokio::time::sleep(600 * SECOND).await;
    let calls = fixture.kernel.calls().len();
    fixture.kernel.lose(&mk_key("default/a"));
    tokio::time::sleep(SECOND).await;
    assert!(fixture.kernel.calls()[calls..].contains(&Call::Reconcile(1)));
    assert_eq!(fixture.keys(), [mk_key("default/a")]);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_is_retried_within_a_second_even_while_a_service_port_is_rejected() {
    let states = [mk_services(&["default/a", "default/b"]), mk_services(&["default/a", "default/b", "default/c"])];
    let mut fixture = start(&FakeKernel::default(), None);
    fixture.kernel.reject(ServicePortFailure::rejected(mk_key("default/b"), "busy"));
    let peer = fixture.following(&states[0]).await;
    for _ in 0..60 {
        tokio::time::sleep(10 * SECOND).await;
        peer.bookmark(1, total(&states[0])).await;
    }
    let calls = fixture.kernel.calls().len();
    fixture.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    fixture.kernel.calls_reach(calls + 1).await;
    fixture.kernel.recover();
    tokio::time::sleep(SECOND).await;
    assert_eq!(fixture.keys(), [mk_key("default/a"), mk_key("default/c")]);
    // The retries of the rejected service port still back off.
    let calls = fixture.kernel.calls().len();
    tokio::time::sleep(600 * SECOND).await;
    let retries = fixture.kernel.calls().len() - calls;
    assert!((10..200).contains(&retries), "{retries} retries in ten minutes");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn repeated_drift_is_repaired_slowly() {
    let state = mk_services(&["default/a"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let _peer = fixture.following(&state).await;
    let started = Instant::now();
    let begin = fixture.kernel.calls().len();
    for calls in begin..begin + 100 {
        fixture.kernel.lose(&mk_key("default/a"));
        fixture.kernel.calls_reach(calls + 1).await;
    }
    assert!(started.elapsed() > 100 * SECOND, "{:?}", started.elapsed());
    fixture.stop().await;
}

/// The other process undoes each repair at once.
#[tokio::test(start_paused = true)]
async fn repeated_drift_backs_off_even_if_each_repair_takes_long() {
    let state = mk_services(&["default/a"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let _peer = fixture.following(&state).await;
    fixture.kernel.slow(3 * SECOND);
    let started = Instant::now();
    let begin = fixture.kernel.calls().len();
    for calls in begin..begin + 100 {
        fixture.kernel.lose(&mk_key("default/a"));
        fixture.kernel.calls_reach(calls + 1).await;
    }
    assert!(started.elapsed() > 400 * SECOND, "{:?}", started.elapsed());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn running_call_is_finished_at_shutdown_and_no_other_begins() {
    let (a, b, c) = (mk_services(&["default/a"]), mk_services(&["default/b"]), mk_services(&["default/c"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.following(&a).await;
    fixture.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(SECOND / 2).await;
    peer.commit(2, 3, operations_between(&b, &c)).await;
    let kernel = fixture.kernel.clone();
    fixture.stop().await;
    assert_eq!(kernel.service_ports(), *b.service_ports());
    assert!(peer.messages.is_closed());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_after_shutdown() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.following(&a).await;
    fixture.trigger.fire();
    peer.commit(1, 2, operations_between(&a, &b)).await;
    let kernel = fixture.kernel.clone();
    fixture.stop().await;
    assert_eq!(kernel.service_ports(), *a.service_ports());
}

#[tokio::test(start_paused = true)]
async fn acks_of_an_ended_session_are_not_sent_in_the_next() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&a).await;
    fixture.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&a, &b)).await;
    peer.barrier().await;
    drop(peer);
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.bookmark(7, total(&b)).await;
    peer.barrier().await;
    fixture.kernel.recover();
    assert_eq!(peer.ack().await.received, Revision(7));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn idle_timeout_is_suspended_while_an_ack_is_due() {
    let (a, b) = (mk_services(&["default/a"]), mk_services(&["default/b"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&a).await;
    fixture.kernel.fail("no memory");
    peer.commit(1, 2, operations_between(&a, &b)).await;
    tokio::time::sleep(300 * SECOND).await;
    fixture.kernel.slow(300 * SECOND);
    fixture.kernel.recover();
    assert_eq!(peer.ack().await.received, Revision(2));

    let begin = Instant::now();
    fixture.session().await;
    assert!((30 * SECOND..60 * SECOND).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pending_since_is_the_time_of_the_commit() {
    let states = [mk_services(&["default/a"]), mk_services(&["default/a", "default/b"])];
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&states[0]).await;
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.changes.pending_since, progress.changes.pending), (None, ChangeCounts::default()));
    assert!(progress.node.eligible && progress.kernel.last_success.is_some());

    fixture.kernel.fail("no memory");
    let begun = Instant::now();
    let calls = fixture.kernel.calls().len();
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    fixture.kernel.calls_reach(calls + 5).await;
    peer.barrier().await;
    let progress = fixture.progress.borrow().clone();
    assert_eq!(progress.changes.pending_since, Some(begun), "since the commit, not since the last failure");
    assert_eq!(progress.changes.pending, ChangeCounts { service_ports: 1, pools: 1 });
    fixture.kernel.recover();
    peer.ack().await;
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.changes.pending_since, progress.changes.pending), (None, ChangeCounts::default()));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn idle_loop_keeps_running() {
    let mut fixture = start(&FakeKernel::default(), None);
    let _never_answers = fixture.session().await;
    tokio::time::sleep(600 * SECOND).await;
    let last = fixture.progress.borrow().stream.last_iteration.unwrap();
    assert!(last.elapsed() <= MAX_IDLE, "{:?}", last.elapsed());
    fixture.stop().await;
}

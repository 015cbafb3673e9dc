//! Changes that the backend programs in several calls.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Service ports `default/svc-<n>` with one endpoint each.
fn services(count: u8) -> NodeState {
    let names: Vec<String> = (0..count).map(|n| format!("default/svc-{n:03}")).collect();
    mk_services(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The frontend may send the next difference before the whole change is programmed.
#[tokio::test(start_paused = true)]
async fn an_unfinished_commit_is_acked_and_again_when_it_is_programmed() {
    let (old, new) = (services(1), services(6));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    fixture.kernel.limit(2);
    fixture.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&old, &new)).await;
    let early = peer.ack().await;
    assert_eq!((early.received, early.digest, early.programmed), (Revision(2), Some(total(&new)), Revision(1)));
    assert_eq!(early.unfinished_namespaces, ["default".into()].into());
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.programmed, progress.kernel.unfinished), (Some((EPOCH, Revision(1))), 3));
    let last = peer.ack().await;
    assert_eq!((last.received, last.digest, last.programmed), (Revision(2), Some(total(&new)), Revision(2)));
    assert_eq!(last.unfinished_namespaces, BTreeSet::new());
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.programmed, progress.kernel.unfinished), (Some((EPOCH, Revision(2))), 0));
    assert_eq!(fixture.kernel.service_ports(), *new.service_ports());
    assert_eq!(peer.barrier().await, total(&new), "no further ack");
    fixture.stop().await;
}

/// Parts that are quick need no ack of their own.
#[tokio::test(start_paused = true)]
async fn an_unfinished_commit_that_is_programmed_soon_is_acked_once() {
    let (old, new) = (services(1), services(6));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    fixture.kernel.limit(2);
    fixture.kernel.slow(Duration::from_millis(30));
    peer.commit(1, 2, operations_between(&old, &new)).await;
    let ack = peer.ack().await;
    assert_eq!((ack.received, ack.programmed, ack.apply_time), (Revision(2), Revision(2), Duration::from_millis(90)));
    assert_eq!(peer.barrier().await, total(&new), "no further ack");
    fixture.stop().await;
}

/// Each commit counts as programmed when its own service ports are.
#[tokio::test(start_paused = true)]
async fn a_commit_that_arrives_meanwhile_is_programmed_and_acked_with_the_rest() {
    let states = [services(1), services(9), services(10)];
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&states[0]).await;
    fixture.kernel.limit(2);
    fixture.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&states[0], &states[1])).await;
    assert_eq!((peer.ack().await.programmed, fixture.kernel.service_ports().len()), (Revision(1), 3));
    peer.commit(2, 3, operations_between(&states[1], &states[2])).await;
    let mut acks = vec![peer.ack().await];
    while acks.last().is_some_and(|ack| ack.programmed < ack.received) {
        acks.push(peer.ack().await);
    }
    assert!(acks.iter().all(|ack| ack.received == Revision(3)), "{acks:?}");
    assert_eq!(acks.iter().map(|ack| ack.programmed.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(fixture.kernel.service_ports(), *states[2].service_ports());
    fixture.stop().await;
}

/// The liveness probe and health-check node ports act on the time without progress.
#[tokio::test(start_paused = true)]
async fn each_transaction_is_progress() {
    let (old, new) = (services(1), services(101));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    fixture.kernel.limit(1);
    fixture.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&old, &new)).await;
    peer.ack().await;
    for _ in 0..50 {
        tokio::time::sleep(SECOND).await;
        let progress = fixture.progress.borrow().clone();
        assert!(progress.kernel.unfinished > 0);
        let since = progress.changes.pending_since.unwrap().elapsed();
        assert!(since <= 2 * SECOND, "{since:?}");
    }
    assert_eq!(peer.ack().await.programmed, Revision(2));
    assert_eq!(fixture.progress.borrow().changes.pending_since, None);
    fixture.stop().await;
}

/// The session that is idle meanwhile may have broken.
#[tokio::test(start_paused = true)]
async fn idle_session_ends_while_the_rest_of_a_change_fails() {
    let (old, new) = (services(1), services(9));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    fixture.kernel.limit(2);
    fixture.kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.programmed, Revision(1));
    fixture.kernel.fail("no memory");
    tokio::time::timeout(60 * SECOND, fixture.session()).await.expect("another session");
    fixture.stop().await;
}

/// The next process reconciles, and acknowledges what the first one did not finish.
#[tokio::test(start_paused = true)]
async fn a_restart_in_the_middle_converges() {
    let directory = tempfile::tempdir().unwrap();
    let state_file = directory.path().join("state");
    let (old, new) = (services(1), services(20));
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&state_file));
    let mut peer = fixture.following(&old).await;
    kernel.limit(2);
    kernel.slow(SECOND);
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.programmed, Revision(1));
    fixture.stop().await;
    let programmed = kernel.service_ports().len();
    assert!((2..19).contains(&programmed), "{programmed}");

    let mut fixture = start(&kernel, Some(&state_file));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(2))));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.bookmark(2, total(&new)).await;
    // What the kernel has of the state is unknown.
    assert_eq!(peer.ack().await.programmed, Revision(0));
    assert_eq!(peer.ack().await.programmed, Revision(2));
    assert_eq!(kernel.service_ports(), *new.service_ports());
    fixture.stop().await;
}

/// One tenant may change its Services faster than they are programmed.
#[tokio::test(start_paused = true)]
async fn a_node_is_ready_and_repairs_drift_while_changes_keep_coming() {
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.session().await;
    fixture.kernel.limit(1);
    fixture.kernel.slow(SECOND);
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 1, everything(&services(3))).await;
    let lost = mk_key("default/svc-000");
    for n in 1u8.. {
        fixture.kernel.calls_reach(n.into()).await;
        let progress = fixture.progress.borrow().clone();
        assert!(progress.kernel.unfinished > 0);
        // The first call after those for the snapshot may not be published yet.
        assert!(n < 5 || fixture.ready.is_ready() && progress.programmed.is_some(), "{n}");
        if n == 10 {
            fixture.kernel.lose(&lost);
        }
        if n > 10 && fixture.kernel.service_ports().get(&lost).is_some() {
            assert_eq!(progress.kernel.drifts, 1);
            break;
        }
        assert!(n < 40, "drift is not repaired");
        peer.commit(n.into(), u64::from(n) + 1, operations_between(&services(n + 2), &services(n + 3))).await;
    }
    fixture.stop().await;
}

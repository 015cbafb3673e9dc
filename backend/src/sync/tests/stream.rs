//! What the frontend does: snapshots, resumes, repairs, drains, silence, nonsense.

use tokio::time::timeout;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn snapshot_is_programmed_and_acked() {
    let state = mk_services(&["default/web", "default/api"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.session().await;
    assert_eq!((peer.hello.resume, &peer.hello.digests), (None, &None));
    assert_eq!((&*peer.hello.node, &*peer.hello.backend), (NODE_NAME, "fake"));
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 5, everything(&state)).await;
    let ack = peer.ack().await;
    assert_eq!((ack.revision, ack.digest, ack.failures), (Revision(5), Some(total(&state)), vec![]));
    assert_eq!(world.kernel.services(), *state.service_ports());
    assert!(world.ready.is_ready());
    let progress = world.progress.borrow().clone();
    assert_eq!((progress.connected, progress.committed), (true, Some((EPOCH, Revision(5)))));
    assert_eq!(progress.programmed, progress.committed);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_before_the_commit() {
    let state = mk_services(&["default/web", "default/api"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    let mut operations = everything(&state);
    let rest = operations.split_off(operations.len() / 2);
    peer.part(0, 5, operations).await;
    peer.barrier().await;
    assert_eq!(world.kernel.calls(), []);
    assert!(!world.ready.is_ready());
    peer.commit(0, 5, rest).await;
    peer.ack().await;
    assert_eq!(world.kernel.services(), *state.service_ports());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn empty_snapshot_commits() {
    let kernel = FakeKernel::default();
    let mut leftover = kernel.backend();
    leftover.reconcile(&mk_services(&["default/old"])).await.unwrap();
    let mut world = start(&kernel, None);
    let mut peer = world.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.barrier().await;
    assert_eq!(world.keys(), [mk_key("default/old")], "the kernel is left alone until the first commit");
    peer.commit(0, 1, vec![]).await;
    assert_eq!(peer.ack().await.revision, Revision(1));
    assert_eq!(world.keys(), []);
    assert!(world.ready.is_ready());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_removes_what_it_does_not_contain() {
    let mut world = start(&FakeKernel::default(), None);
    drop(world.following(&mk_services(&["default/web", "default/api"])).await);
    let mut peer = world.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Snapshot).await;
    peer.commit(0, 1, everything(&mk_services(&[]))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&mk_services(&[]))));
    assert_eq!(world.keys(), []);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn parts_without_their_commit_are_thrown_away() {
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&old).await;
    peer.part(1, 2, operations_between(&old, &new)).await;
    peer.barrier().await;
    drop(peer);
    let mut peer = world.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
    assert_eq!(peer.hello.digests.as_deref(), Some(old.digests()));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.commit(1, 3, vec![]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&old)));
    assert_eq!(world.keys(), [mk_key("default/web")]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_resumes_from_the_file_without_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let kernel = FakeKernel::default();
    let mut world = start(&kernel, Some(&file));
    let peer = world.following(&old).await;
    world.stop().await;
    drop(peer);

    let mut world = start(&kernel, Some(&file));
    world.ready.wait().await;
    assert_eq!(kernel.calls().last(), Some(&Call::Reconcile(0)));
    let mut peer = world.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
    assert_eq!(peer.hello.digests.as_deref(), Some(old.digests()));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&new)));
    assert_eq!(kernel.calls().last(), Some(&Call::Apply(1)));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stored_state_is_in_force_without_any_frontend() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), Some(&file));
    let _peer = world.following(&state).await;
    world.stop().await;

    // The node was rebooted: an empty kernel, and nobody to connect to.
    let world = start(&FakeKernel::default(), Some(&file));
    world.ready.wait().await;
    assert_eq!(world.kernel.services(), *state.service_ports());
    assert_eq!(world.progress.borrow().last_contact, None);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_frontend_with_the_same_state_costs_nothing() {
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    drop(world.following(&state).await);
    let calls = world.kernel.calls();
    let mut peer = world.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.bookmark(900, total(&state)).await;
    assert_eq!(peer.ack().await.revision, Revision(900));
    assert_eq!(world.kernel.calls(), calls);
    assert_eq!(world.progress.borrow().programmed, Some((Epoch(0xe2), Revision(900))));
    drop(peer);
    assert_eq!(world.session().await.hello.resume, Some((Epoch(0xe2), Revision(900))));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn repair_of_one_bucket_changes_only_what_differs() {
    let (old, new) = (mk_services(&["default/web", "default/api"]), mk_services(&["default/web"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&old).await;
    let resets = old.digests().differing(new.digests()).map(|bucket| Operation::ResetBucket(bucket as u8));
    peer.commit(1, 1, resets.collect()).await;
    assert_eq!(peer.ack().await.digest, Some(total(&new)));
    assert_eq!(world.keys(), [mk_key("default/web")]);
    assert_eq!(world.kernel.calls().last(), Some(&Call::Apply(1)));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_digest_is_counted_and_answered_with_ours() {
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&state).await;
    peer.bookmark(2, Digest(1)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(world.progress.borrow().digest_mismatches, 1);
    assert_eq!(peer.barrier().await, total(&state));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operation_that_makes_no_sense_is_left_out_and_shows_in_the_digest() {
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&state).await;
    let nonsense = Operation::PutNode(proto::model::NodeInfo::unknown("another"));
    peer.commit(1, 2, vec![nonsense]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(world.progress.borrow().refused_operations, 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_protocol_ends_the_session_and_changes_nothing() {
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&state).await;
    let removal = || everything(&state).into_iter().map(|_| Operation::RemoveServicePort(mk_key("default/web")));
    let wrong = [
        (None, batch(1, 2, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(0, 2, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(7, 8, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(1, 0, removal().collect(), true)),
        (Some(SyncMode::Resume), ServerMessage::Bookmark(Revision(0), total(&state))),
        (Some(SyncMode::Resume), ServerMessage::Welcome(mk_welcome(EPOCH, SyncMode::Resume, 0))),
        (None, ServerMessage::Welcome(mk_welcome(Epoch(0xe2), SyncMode::Resume, 0))),
    ];
    peer.commit(3, 4, removal().collect()).await;
    for (mode, event) in wrong {
        peer = world.session().await;
        assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
        assert_eq!(peer.hello.digests.as_deref(), Some(state.digests()));
        if let Some(mode) = mode {
            peer.welcome(EPOCH, mode).await;
        }
        peer.say(event).await;
    }
    world.session().await;
    assert_eq!(world.kernel.services(), *state.service_ports());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_in_force_before_something_was_committed() {
    let mut world = start(&FakeKernel::default(), None);
    let peer = world.session().await;
    peer.welcome(EPOCH, SyncMode::Repair).await;
    peer.bookmark(1, Digest(0)).await;
    let peer = world.session().await;
    assert_eq!(peer.hello.resume, None);
    assert_eq!(world.kernel.calls(), []);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drain_is_followed_after_a_random_part_of_the_delay() {
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&old).await;
    let begin = Instant::now();
    peer.say(ServerMessage::Drain(MINUTE / 3)).await;
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.revision, Revision(2), "the stream goes on until then");
    let next = world.session().await;
    assert!(begin.elapsed() <= MINUTE / 3, "{:?}", begin.elapsed());
    assert!(peer.events.is_closed());
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(2))));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn silent_session_is_cut() {
    let state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&state).await;
    for revision in 2..10 {
        tokio::time::sleep(MINUTE / 3).await;
        peer.bookmark(revision, total(&state)).await;
        peer.ack().await;
    }
    let begin = Instant::now();
    let next = world.session().await;
    assert!((MINUTE / 2..MINUTE).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert!(peer.events.is_closed());
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(9))));
    assert_eq!(world.kernel.services(), *state.service_ports());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_does_not_read_stops_nothing() {
    let mut state = mk_services(&["default/web"]);
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&state).await;
    for revision in 1..1000 {
        let next = mk_services(&["default/web", "default/api"][..1 + revision % 2]);
        peer.commit(revision as u64, revision as u64 + 1, operations_between(&state, &next)).await;
        state = next;
    }
    let mut programmed = world.progress.clone();
    programmed.wait_for(|progress| progress.programmed == Some((EPOCH, Revision(1000)))).await.unwrap();
    assert_eq!(world.kernel.services(), *state.service_ports());
    let last = async { while peer.ack().await.revision != Revision(1000) {} };
    timeout(MINUTE / 3, last).await.unwrap();
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drain_spreads_also_those_whose_session_ends_at_once() {
    let mut world = start(&FakeKernel::default(), None);
    let mut peer = world.following(&mk_services(&[])).await;
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        peer.say(ServerMessage::Drain(60 * MINUTE)).await;
        let begin = Instant::now();
        drop(peer);
        peer = world.session().await;
        longest = longest.max(begin.elapsed());
    }
    assert!(longest > MINUTE, "{longest:?}");
    world.stop().await;
}

/// As one frontend knows the cluster up to here, and another one less: what is held says so, and going back is counted.
#[tokio::test(start_paused = true)]
async fn going_back_to_an_older_state_of_the_cluster_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let state = mk_services(&["default/web"]);
    let kernel = FakeKernel::default();
    let mut world = start(&kernel, Some(&file));
    let backwards = |world: &World| world.progress.borrow().backwards;
    let mut peer = world.session().await;
    assert_eq!(peer.hello.source_version, SourceVersion(0));
    peer.say(ServerMessage::Welcome(mk_welcome(EPOCH, SyncMode::Snapshot, 900))).await;
    for (base, version) in [(0, 1000), (1, 1001), (2, 1001)] {
        peer.say(mk_batch(base, base + 1, version, everything(&state))).await;
        peer.ack().await;
    }
    assert_eq!(backwards(&world), 0);
    drop(peer);

    // After a restart it is known as well.
    world.stop().await;
    let mut world = start(&kernel, Some(&file));
    let mut peer = world.session().await;
    assert_eq!(peer.hello.source_version, SourceVersion(1001));
    peer.say(ServerMessage::Welcome(mk_welcome(Epoch(0xe2), SyncMode::Repair, 990))).await;
    peer.say(mk_batch(0, 1, 990, vec![])).await;
    peer.ack().await;
    assert_eq!(backwards(&world), 1);
    // From there on as ever. One that does not know takes nothing back.
    for (base, version) in [(1, 995), (2, 0), (3, 996)] {
        peer.say(mk_batch(base, base + 1, version, vec![])).await;
        peer.ack().await;
    }
    assert_eq!(backwards(&world), 1);
    world.stop().await;
}

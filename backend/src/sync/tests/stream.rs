//! Behaviour of the frontend: snapshots, resumes, repairs, drains, idle sessions, violations.

use tokio::time::timeout;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn snapshot_is_programmed_and_acked() {
    let state = mk_services(&["default/web", "default/api"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.session().await;
    assert_eq!((peer.hello.resume, &peer.hello.digests), (None, &None));
    assert_eq!((&*peer.hello.node, &*peer.hello.backend), (NODE_NAME, "fake"));
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.commit(0, 5, everything(&state)).await;
    let ack = peer.ack().await;
    assert_eq!((ack.received, ack.digest, ack.failures), (Revision(5), Some(total(&state)), vec![]));
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    assert!(fixture.ready.is_ready());
    let progress = fixture.progress.borrow().clone();
    assert_eq!((progress.stream.connected, progress.committed), (true, Some((EPOCH, Revision(5)))));
    assert_eq!(progress.programmed, progress.committed);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_applied_before_the_commit() {
    let state = mk_services(&["default/web", "default/api"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    let mut operations = everything(&state);
    let rest = operations.split_off(operations.len() / 2);
    peer.part(0, 5, operations).await;
    peer.barrier().await;
    assert_eq!(fixture.kernel.calls(), []);
    assert!(!fixture.ready.is_ready());
    peer.commit(0, 5, rest).await;
    peer.ack().await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn empty_snapshot_commits() {
    let kernel = FakeKernel::default();
    let mut leftover = kernel.backend();
    leftover.reconcile(&mk_services(&["default/old"])).await.unwrap();
    let mut fixture = start(&kernel, None);
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.barrier().await;
    assert_eq!(fixture.keys(), [mk_key("default/old")], "the kernel is unchanged until the first commit");
    peer.commit(0, 1, vec![]).await;
    assert_eq!(peer.ack().await.received, Revision(1));
    assert_eq!(fixture.keys(), []);
    assert!(fixture.ready.is_ready());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_removes_what_it_does_not_contain() {
    let mut fixture = start(&FakeKernel::default(), None);
    drop(fixture.following(&mk_services(&["default/web", "default/api"])).await);
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Snapshot).await;
    peer.commit(0, 1, everything(&mk_services(&[]))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&mk_services(&[]))));
    assert_eq!(fixture.keys(), []);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn batches_without_a_commit_are_discarded() {
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    peer.part(1, 2, operations_between(&old, &new)).await;
    peer.barrier().await;
    drop(peer);
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
    assert_eq!(peer.hello.digests.as_deref(), Some(old.digests()));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.commit(1, 3, vec![]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&old)));
    assert_eq!(fixture.keys(), [mk_key("default/web")]);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_writes_nothing_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let peer = fixture.following(&old).await;
    fixture.stop().await;
    drop(peer);

    let mut fixture = start(&kernel, Some(&file));
    fixture.ready.wait().await;
    assert_eq!(kernel.calls().last(), Some(&Call::Reconcile(0)));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
    assert_eq!(peer.hello.digests.as_deref(), Some(old.digests()));
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&new)));
    assert_eq!(kernel.calls().last(), Some(&Call::Apply(1)));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stored_state_is_programmed_without_a_frontend() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    let _peer = fixture.following(&state).await;
    fixture.stop().await;

    // After a reboot: an empty kernel, and no frontend.
    let fixture = start(&FakeKernel::default(), Some(&file));
    fixture.ready.wait().await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    assert_eq!(fixture.progress.borrow().stream.last_contact, None);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_frontend_with_the_same_state_changes_nothing() {
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    drop(fixture.following(&state).await);
    let calls = fixture.kernel.calls();
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    peer.bookmark(900, total(&state)).await;
    assert_eq!(peer.ack().await.received, Revision(900));
    assert_eq!(fixture.kernel.calls(), calls);
    assert_eq!(fixture.progress.borrow().programmed, Some((Epoch(0xe2), Revision(900))));
    drop(peer);
    assert_eq!(fixture.session().await.hello.resume, Some((Epoch(0xe2), Revision(900))));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn repair_of_one_bucket_changes_only_what_differs() {
    let (old, new) = (mk_services(&["default/web", "default/api"]), mk_services(&["default/web"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    let resets = old.digests().differing(new.digests()).map(|bucket| Operation::ResetBucket(bucket as u8));
    peer.commit(1, 1, resets.collect()).await;
    assert_eq!(peer.ack().await.digest, Some(total(&new)));
    assert_eq!(fixture.keys(), [mk_key("default/web")]);
    assert_eq!(fixture.kernel.calls().last(), Some(&Call::Apply(1)));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_digest_is_counted_and_answered_with_the_actual_one() {
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&state).await;
    peer.bookmark(2, Digest(1)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(fixture.progress.borrow().protocol.digest_mismatches, 1);
    assert_eq!(peer.barrier().await, total(&state));
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_operation_is_rejected_and_counted() {
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&state).await;
    let invalid = Operation::PutNode(proto::model::NodeInfo::unknown("another"));
    peer.commit(1, 2, vec![invalid]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(fixture.progress.borrow().protocol.rejected_operations, 1);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn protocol_violation_ends_the_session_and_changes_nothing() {
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&state).await;
    let removal = || everything(&state).into_iter().map(|_| Operation::RemoveServicePort(mk_key("default/web")));
    let wrong = [
        (None, batch(1, 2, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(0, 2, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(7, 8, removal().collect(), true)),
        (Some(SyncMode::Resume), batch(1, 0, removal().collect(), true)),
        (Some(SyncMode::Resume), ServerMessage::Bookmark(Bookmark::new(Revision(0), total(&state)))),
        (Some(SyncMode::Resume), ServerMessage::Welcome(mk_welcome(EPOCH, SyncMode::Resume, 0))),
        (None, ServerMessage::Welcome(mk_welcome(Epoch(0xe2), SyncMode::Resume, 0))),
    ];
    peer.commit(3, 4, removal().collect()).await;
    for (mode, message) in wrong {
        peer = fixture.session().await;
        assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))));
        assert_eq!(peer.hello.digests.as_deref(), Some(state.digests()));
        if let Some(mode) = mode {
            peer.welcome(EPOCH, mode).await;
        }
        peer.send(message).await;
    }
    fixture.session().await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bookmark_before_the_first_commit_ends_the_session() {
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Repair).await;
    peer.bookmark(1, Digest(0)).await;
    let peer = fixture.session().await;
    assert_eq!(peer.hello.resume, None);
    assert_eq!(fixture.kernel.calls(), []);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drained_session_is_left_after_a_random_part_of_the_delay() {
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    let begin = Instant::now();
    peer.send(ServerMessage::Drain(MINUTE / 3)).await;
    peer.commit(1, 2, operations_between(&old, &new)).await;
    assert_eq!(peer.ack().await.received, Revision(2), "the stream continues until then");
    let next = fixture.session().await;
    assert!(begin.elapsed() <= MINUTE / 3, "{:?}", begin.elapsed());
    assert!(peer.messages.is_closed());
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(2))));
    fixture.stop().await;
}

/// The session of a frontend that does not follow the API goes on until another one, which does, has sent its Welcome.
#[tokio::test(start_paused = true)]
async fn outdated_frontend_is_left_for_another_one() {
    let (old, new) = (mk_services(&["default/web"]), mk_services(&["default/web", "default/api"]));
    let outdated =
        |revision, state: &NodeState| Bookmark { is_outdated: true, ..Bookmark::new(Revision(revision), total(state)) };
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&old).await;
    let (mut tries, mut successor) = (0, None);
    for _ in 0..2_000 {
        peer.send(ServerMessage::Bookmark(outdated(1, &old))).await;
        assert_eq!(peer.ack().await.received, Revision(1));
        let Ok(next) = timeout(Duration::from_secs(10), fixture.session()).await else { continue };
        assert_eq!(next.hello.resume, Some((EPOCH, Revision(1))));
        // One is outdated, too, one is silent, one rejects the client, and one drains.
        tries += 1;
        match tries {
            1 => {
                let welcome = Welcome { is_outdated: true, ..mk_welcome(EPOCH, SyncMode::Resume, 0) };
                next.send(ServerMessage::Welcome(welcome)).await;
                next.messages.closed().await;
            }
            2 => next.messages.closed().await,
            3 => drop(next),
            4 => {
                next.send(ServerMessage::Drain(Duration::ZERO)).await;
                next.messages.closed().await;
            }
            _ => {
                successor = Some(next);
                break;
            }
        }
        assert!(fixture.progress.borrow().stream.connected && !peer.messages.is_closed());
    }
    let mut next = successor.expect("a fifth one");
    next.welcome(Epoch(0xe2), SyncMode::Snapshot).await;
    next.commit(0, 7, everything(&new)).await;
    assert_eq!(next.ack().await.received, Revision(7));
    assert!(fixture.progress.borrow().stream.connected);
    peer.messages.closed().await;
    assert_eq!(fixture.kernel.service_ports(), *new.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drained_session_is_not_kept_by_further_drains() {
    let mut fixture = start(&FakeKernel::default(), None);
    let peer = fixture.following(&mk_services(&[])).await;
    let begin = Instant::now();
    peer.send(ServerMessage::Drain(MINUTE / 3)).await;
    peer.send(ServerMessage::Drain(60 * MINUTE)).await;
    fixture.session().await;
    assert!(begin.elapsed() <= MINUTE / 3, "{:?}", begin.elapsed());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn idle_session_is_ended() {
    let state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&state).await;
    for revision in 2..10 {
        tokio::time::sleep(MINUTE / 3).await;
        peer.bookmark(revision, total(&state)).await;
        peer.ack().await;
    }
    let begin = Instant::now();
    let next = fixture.session().await;
    assert!((MINUTE / 2..MINUTE).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert!(peer.messages.is_closed());
    assert_eq!(next.hello.resume, Some((EPOCH, Revision(9))));
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn frontend_that_does_not_read_blocks_nothing() {
    let mut state = mk_services(&["default/web"]);
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&state).await;
    for revision in 1..1000 {
        let next = mk_services(&["default/web", "default/api"][..1 + revision % 2]);
        peer.commit(revision as u64, revision as u64 + 1, operations_between(&state, &next)).await;
        state = next;
    }
    let mut programmed = fixture.progress.clone();
    programmed.wait_for(|progress| progress.programmed == Some((EPOCH, Revision(1000)))).await.unwrap();
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    let last = async { while peer.ack().await.received != Revision(1000) {} };
    timeout(MINUTE / 3, last).await.unwrap();
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drain_delay_applies_even_if_the_session_ends_at_once() {
    let mut fixture = start(&FakeKernel::default(), None);
    let mut peer = fixture.following(&mk_services(&[])).await;
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        peer.send(ServerMessage::Drain(60 * MINUTE)).await;
        let begin = Instant::now();
        drop(peer);
        peer = fixture.session().await;
        longest = longest.max(begin.elapsed());
    }
    assert!(longest > MINUTE, "{longest:?}");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rollback_to_an_older_version_of_the_cluster_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let state = mk_services(&["default/web"]);
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let rollbacks = |fixture: &Fixture| fixture.progress.borrow().protocol.rollbacks;
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.source_version, SourceVersion(0));
    peer.send(ServerMessage::Welcome(mk_welcome(EPOCH, SyncMode::Snapshot, 900))).await;
    for (base, version) in [(0, 1000), (1, 1001), (2, 1001)] {
        peer.send(mk_batch(base, base + 1, version, everything(&state))).await;
        peer.ack().await;
    }
    assert_eq!(rollbacks(&fixture), 0);
    drop(peer);

    // The version survives a restart.
    fixture.stop().await;
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.source_version, SourceVersion(1001));
    peer.send(ServerMessage::Welcome(mk_welcome(Epoch(0xe2), SyncMode::Repair, 990))).await;
    peer.send(mk_batch(0, 1, 990, vec![])).await;
    peer.ack().await;
    assert_eq!(rollbacks(&fixture), 1);
    // Relative to the older version. A frontend without a version rolls nothing back.
    for (base, version) in [(1, 995), (2, 0), (3, 996)] {
        peer.send(mk_batch(base, base + 1, version, vec![])).await;
        peer.ack().await;
    }
    assert_eq!(rollbacks(&fixture), 1);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn frontend_that_is_behind_in_one_kind_is_a_rollback_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let state = mk_services(&["default/web"]);
    let kernel = FakeKernel::default();
    let versions = |services, endpoint_slices| KindVersions { services, endpoint_slices, ..KindVersions::default() };
    let commit = |base, kind_versions| match mk_batch(base, base + 1, 1000, everything(&state)) {
        ServerMessage::Batch(batch) => ServerMessage::Batch(Batch { kind_versions, ..batch }),
        other => other,
    };
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Snapshot).await;
    peer.send(commit(0, versions(900, 1000))).await;
    peer.ack().await;
    drop(peer);
    fixture.stop().await;

    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.kind_versions, versions(900, 1000));
    peer.welcome(Epoch(0xe2), SyncMode::Repair).await;
    // The highest version is the same, that of EndpointSlices is not.
    peer.send(commit(0, versions(1000, 500))).await;
    peer.ack().await;
    assert_eq!(fixture.progress.borrow().protocol.rollbacks, 1);
    peer.send(commit(1, versions(1000, 0))).await;
    peer.ack().await;
    assert_eq!(fixture.progress.borrow().protocol.rollbacks, 1, "unknown is not older");
    fixture.stop().await;
}

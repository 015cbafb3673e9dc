//! A disk that hangs: the state file, or its successor, is a FIFO, whose open blocks without a peer.

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;

use super::*;

/// Indexes in [`StateFile::files`].
const STATE: usize = 0;
const SUCCESSOR: usize = 1;

/// A new directory, the path of a state file in it, and that of one of its [`StateFile::files`], which is a FIFO.
fn state_file_with_fifo(index: usize) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let fifo = StateFile::files(&file)[index].clone();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    (dir, file, fifo)
}

#[tokio::test(start_paused = true)]
async fn programming_and_shutdown_do_not_wait_for_a_disk_that_does_not_write() {
    let (_dir, file, _) = state_file_with_fifo(SUCCESSOR);
    let (one, two) = (mk_services(&["default/a"]), mk_services(&["default/a", "default/b"]));
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    let mut peer = fixture.following(&one).await;
    for revision in 1..100 {
        let (from, to) = if revision % 2 == 1 { (&one, &two) } else { (&two, &one) };
        peer.commit(revision, revision + 1, operations_between(from, to)).await;
        assert_eq!(peer.ack().await.digest, Some(total(to)));
    }
    assert_eq!(fixture.kernel.service_ports(), *two.service_ports());
    assert_eq!(fixture.progress.borrow().state_file_error, None);

    fixture.progress.wait_for(|progress| progress.state_file_error.is_some()).await.unwrap();
    let progress = fixture.progress.borrow().clone();
    assert_eq!(progress.state_file_error.as_deref(), Some("no write has finished for 10 s"));
    assert_eq!((progress.kernel.error, progress.changes.pending_since), (None, None), "the kernel is programmed");
    assert!(progress.stream.last_iteration.unwrap().elapsed() <= MAX_IDLE, "the loop runs");
    fixture.stop().await;
    assert!(!file.exists());
}

#[tokio::test(start_paused = true)]
async fn end_of_the_process_waits_for_a_disk_for_a_second() {
    let (_dir, file, _) = state_file_with_fifo(SUCCESSOR);
    let state = mk_services(&["default/a"]);
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    let mut peer = fixture.following(&state).await;
    peer.bookmark(2, total(&state)).await;
    peer.ack().await;
    let end = std::time::Instant::now();
    fixture.stop().await;
    assert!(end.elapsed() < Duration::from_millis(1800), "{:?}", end.elapsed());
}

#[tokio::test(start_paused = true)]
async fn start_does_not_wait_for_a_disk_that_does_not_read() {
    let (_dir, file, _) = state_file_with_fifo(STATE);
    let state = mk_services(&["default/a"]);
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    let mut peer = fixture.following(&state).await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    peer.bookmark(2, total(&state)).await;
    peer.ack().await;
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn state_file_is_complete_after_a_disk_has_recovered() {
    let (_dir, file, successor) = state_file_with_fifo(SUCCESSOR);
    let (one, two) = (mk_services(&["default/a"]), mk_services(&["default/a", "default/b"]));
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    let mut peer = fixture.following(&one).await;
    peer.commit(1, 2, operations_between(&one, &two)).await;
    peer.ack().await;
    fixture.progress.wait_for(|progress| progress.state_file_error.is_some()).await.unwrap();

    // The blocked write ends, with an error because a FIFO cannot be synced. It is removed, and the write repeated
    // after a delay.
    std::thread::spawn(move || std::fs::read(successor)).join().unwrap().unwrap();
    fixture.progress.wait_for(|progress| progress.state_file_error.is_none()).await.unwrap();
    fixture.stop().await;
    drop(peer);
    let stored = crate::StoredState::read(&file, NODE_NAME).unwrap();
    assert_eq!((stored.state, stored.revision), (two, Revision(2)));
}

//! A process that restarts on a kernel that an earlier one has programmed, with a state file that may be older.

use std::path::PathBuf;

use super::*;

/// The service ports in the file, and those that the kernel has by then.
const STORED: [&str; 2] = ["default/a", "default/b"];
const PROGRAMMED: [&str; 2] = ["default/b", "default/c"];

/// A kernel with a newer state than its file.
async fn restarted() -> (tempfile::TempDir, PathBuf, FakeKernel) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let peer = fixture.following(&mk_services(&STORED)).await;
    fixture.stop().await;
    drop(peer);
    kernel.backend().reconcile(&mk_services(&PROGRAMMED)).await.unwrap();
    (dir, file, kernel)
}

fn mk_difference() -> Vec<Operation> {
    operations_between(&mk_services(&STORED), &mk_services(&PROGRAMMED))
}

#[tokio::test(start_paused = true)]
async fn kernel_is_left_as_it_is_until_a_frontend_commits() {
    let (_dir, file, kernel) = restarted().await;
    let calls = kernel.calls();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.resume, Some((EPOCH, Revision(1))), "what the file has");
    peer.welcome(EPOCH, SyncMode::Resume).await;
    tokio::time::sleep(ADOPTION - Duration::from_secs(1)).await;
    assert_eq!((kernel.calls(), fixture.ready.is_ready()), (calls.clone(), false));
    peer.commit(1, 2, mk_difference()).await;
    assert_eq!(peer.ack().await.digest, Some(total(&mk_services(&PROGRAMMED))));
    assert_eq!(kernel.calls()[calls.len()..], [Call::Reconcile(0)], "nothing is written");
    fixture.ready.wait().await;
    tokio::time::sleep(2 * ADOPTION).await;
    assert_eq!(kernel.calls().len(), calls.len() + 1, "once");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kernel_is_programmed_at_once_when_a_frontend_confirms_the_stored_state() {
    let (_dir, file, kernel) = restarted().await;
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    let begun = Instant::now();
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.bookmark(1, total(&mk_services(&STORED))).await;
    assert_eq!(peer.ack().await.digest, Some(total(&mk_services(&STORED))));
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(kernel.service_ports(), *mk_services(&STORED).service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stored_state_is_programmed_when_no_frontend_answers() {
    let (_dir, file, kernel) = restarted().await;
    let begun = Instant::now();
    let fixture = start(&kernel, Some(&file));
    fixture.ready.wait().await;
    assert!(begun.elapsed() >= ADOPTION && begun.elapsed() < 2 * ADOPTION, "{:?}", begun.elapsed());
    assert_eq!(kernel.service_ports(), *mk_services(&STORED).service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kernel_without_rules_is_programmed_after_a_second_and_after_a_reboot_at_once() {
    for (boot, limit) in [(None, 2 * FIRST_ANSWER), (Some("an-earlier-boot"), FIRST_ANSWER / 2)] {
        let (_dir, file, kernel) = restarted().await;
        kernel.backend().cleanup().await.unwrap();
        boot.inspect(|boot| crate::testing::set_boot(&file, boot));
        let begun = Instant::now();
        let fixture = start(&kernel, Some(&file));
        fixture.ready.wait().await;
        assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
        assert_eq!(kernel.service_ports(), *mk_services(&STORED).service_ports());
        fixture.stop().await;
    }
}

/// It has been programmed in this boot, but not stored yet.
#[tokio::test(start_paused = true)]
async fn kernel_that_is_programmed_after_a_reboot_is_left_as_it_is() {
    let (_dir, file, kernel) = restarted().await;
    crate::testing::set_boot(&file, "an-earlier-boot");
    let begun = Instant::now();
    let fixture = start(&kernel, Some(&file));
    fixture.ready.wait().await;
    assert!(begun.elapsed() >= ADOPTION, "{:?}", begun.elapsed());
    fixture.stop().await;
}

/// A restart may help, as after a sync that fails.
#[tokio::test(start_paused = true)]
async fn kernel_that_cannot_be_read_is_detected_after_a_minute() {
    let (_dir, file, kernel) = restarted().await;
    kernel.slow(Duration::from_secs(3600));
    let fixture = start(&kernel, Some(&file));
    for (seconds, is_alive) in [(59, true), (3, false)] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(fixture.progress.borrow().is_alive(), is_alive);
    }
}

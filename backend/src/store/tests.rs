//! The state file: histories, truncated and damaged files, when it is written, failing writes.

use futures::{FutureExt as _, future::BoxFuture};
use proto::model::NodeInfo;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};

use super::*;
use crate::testing::{History, NODE_NAME, mk_state, synthetic};

const EPOCH: Epoch = Epoch(7);

/// Written by `fairlead local` before 0.1: a log.
const FILE_BEFORE_0_1: &[u8] = include_bytes!("testdata/state-before-0.1");

async fn open(path: &Path) -> (Store, Option<StoredState>) {
    Store::open(StateFile::local(path), NODE_NAME).await
}

/// Waits for the disk.
async fn close(store: Store) {
    store.finish(Duration::from_secs(20)).await;
}

/// Stores a state in a file that has none or another one.
async fn store(path: &Path, stored: &StoredState) {
    let store = open(path).await.0;
    store.put(stored.clone());
    close(store).await;
}

/// A file in a directory that does not exist yet.
fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fairlead/state");
    (dir, path)
}

fn mk_stored(state: &NodeState, epoch: Epoch, revision: u64) -> StoredState {
    StoredState {
        revision: Revision(revision),
        epoch,
        // The version of the cluster that the revision reflects.
        source_version: SourceVersion(1000 + revision),
        kind_versions: KindVersions { nodes: 2000 + revision, ..KindVersions::default() },
        boot: None,
        is_outdated: false,
        state: state.clone(),
    }
}

#[tokio::test(start_paused = true)]
async fn state_survives_restarts_in_random_histories() {
    for seed in 0..50 {
        let (_dir, path) = file();
        let mut history = History::new(seed);
        let (mut store, stored) = open(&path).await;
        assert_eq!(stored, None);
        for revision in 1..40 {
            history.step();
            let expected = mk_stored(history.state(), Epoch(1 + revision / 15), revision);
            store.put(expected.clone());
            if revision % 7 == 0 {
                close(store).await;
                let (reopened, stored) = open(&path).await;
                assert_eq!(stored, Some(expected), "seed {seed}");
                store = reopened;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn file_of_an_older_version_is_ignored_and_replaced() {
    let (_dir, path) = file();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, FILE_BEFORE_0_1).unwrap();
    assert_eq!(Store::open(StateFile::local(&path), "node-a").await.1, None);
    let stored = mk_stored(&mk_state().build(), EPOCH, 1);
    store(&path, &stored).await;
    assert_eq!(open(&path).await.1, Some(stored));
}

/// It may be of a later version, as after a rollback, which is no reason to warn.
#[test]
fn file_that_is_not_decoded_is_named_as_what_it_is() {
    let files: [(&[u8], &str); 5] = [
        (b"", "it is empty"),
        (b"not a state file", "it is not a state file"),
        (FILE_BEFORE_0_1, "it is not a state file"),
        (b"FlState9 of a later version", "it is a state file of another version"),
        (b"FlState1", "it is truncated"),
    ];
    for (file, expected) in files {
        let error = StoredState::decode(NODE_NAME, file.to_vec()).unwrap_err().to_string();
        assert_eq!(error, expected);
        assert_eq!(snapshot::is_of_another_version(file), expected.contains("another version"));
    }
}

#[test]
fn truncated_file_is_ignored() {
    let mut history = History::new(3);
    history.jump();
    let stored = mk_stored(history.state(), EPOCH, 5);
    let whole = stored.encode();
    for len in 0..whole.len() {
        assert!(StoredState::decode(NODE_NAME, whole[..len].to_vec()).is_err(), "{len} bytes");
    }
    let more = [&whole[..], b"0"].concat();
    assert!(StoredState::decode(NODE_NAME, more).is_err());
    assert_eq!(StoredState::decode(NODE_NAME, whole).unwrap(), stored);
}

#[test]
fn flipped_bit_is_detected() {
    let state = mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1")).build();
    let whole = StoredState { boot: Some("a boot".into()), ..mk_stored(&state, EPOCH, 1) }.encode();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(StoredState::decode(NODE_NAME, damaged).is_err(), "byte {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn file_of_another_node_or_without_content_is_replaced() {
    let (_dir, path) = file();
    let stored = mk_stored(&mk_state().node_addresses(["192.0.2.1"]).build(), EPOCH, 1);
    store(&path, &stored).await;
    assert_eq!(Store::open(StateFile::local(&path), "another").await.1, None);
    let error = StoredState::decode("another", stored.encode()).unwrap_err();
    assert_eq!(error.to_string(), format!("it is the state file of node {NODE_NAME}, and this is node another"));

    fs::write(&path, "not a state file").unwrap();
    assert_eq!(open(&path).await.1, None);
    let stored = StoredState { revision: Revision(2), ..stored };
    store(&path, &stored).await;
    assert_eq!(open(&path).await.1, Some(stored));
}

#[tokio::test(start_paused = true)]
async fn another_boot_is_noticed_until_it_is_confirmed() {
    let (_dir, path) = file();
    let stored = mk_stored(&mk_state().build(), EPOCH, 1);
    let in_boot = |boot: &str| StateFile { boot: Some(boot.into()), ..StateFile::local(&path) };
    let mut store = Store::open(in_boot("first"), NODE_NAME).await.0;
    assert!(!store.is_of_earlier_boot(), "there is no file");
    store.confirmed();
    store.put(stored.clone());
    close(store).await;
    let store = Store::open(in_boot("first"), NODE_NAME).await.0;
    assert!(!store.is_of_earlier_boot(), "only the process has restarted");
    close(store).await;

    let mut store = Store::open(in_boot("second"), NODE_NAME).await.0;
    assert!(store.is_of_earlier_boot());
    store.put(stored.clone());
    assert!(store.is_of_earlier_boot());
    store.confirmed();
    assert!(!store.is_of_earlier_boot());
    store.put(stored);
    close(store).await;
    let (store, stored) = Store::open(in_boot("second"), NODE_NAME).await;
    assert!(!store.is_of_earlier_boot());
    assert_eq!(stored.unwrap().boot.as_deref(), Some("second"));
}

// === when it is written ===

/// A disk that the test plays.
#[derive(Debug)]
struct PlayedDisk(mpsc::UnboundedSender<PlayedWrite>);

/// A write, when it began, and how to end it.
struct PlayedWrite {
    stored: StoredState,
    begun: Instant,
    end: oneshot::Sender<io::Result<usize>>,
}

impl Storage for PlayedDisk {
    fn name(&self) -> String {
        "played".to_owned()
    }

    fn read(&self) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        async { Err(io::ErrorKind::NotFound.into()) }.boxed()
    }

    fn replace(&self, stored: StoredState) -> BoxFuture<'static, io::Result<usize>> {
        let (end, ended) = oneshot::channel();
        self.0.send(PlayedWrite { stored, begun: Instant::now(), end }).unwrap();
        async { ended.await.unwrap() }.boxed()
    }
}

async fn played() -> (Store, mpsc::UnboundedReceiver<PlayedWrite>) {
    let (writes, received) = mpsc::unbounded_channel();
    (Store::open(StateFile { storage: Arc::new(PlayedDisk(writes)), boot: None }, NODE_NAME).await.0, received)
}

/// A state that differs by its revision only in its content.
fn numbered(revision: u64) -> StoredState {
    let ip = format!("10.96.0.{revision}");
    mk_stored(&mk_state().service("default/web", |web| web.cluster_ip(&ip)).build(), EPOCH, revision)
}

#[tokio::test(start_paused = true)]
async fn newest_state_is_written_when_the_interval_is_over() {
    for (bytes, interval) in [(1000, 10), (MAX_BYTES_PER_SECOND * 10, 10), (MAX_BYTES_PER_SECOND * 60, 60)] {
        let (store, mut writes) = played().await;
        let begun = Instant::now();
        store.put(numbered(1));
        let first = writes.recv().await.unwrap();
        assert_eq!((&first.stored, first.begun), (&numbered(1), begun), "at once");
        store.put(numbered(2));
        sleep(Duration::from_secs(3)).await;
        store.put(numbered(3));
        first.end.send(Ok(bytes)).unwrap();
        let next = writes.recv().await.unwrap();
        assert_eq!(next.stored, numbered(3));
        assert_eq!(next.begun - begun, Duration::from_secs(3 + interval));
    }
}

#[tokio::test(start_paused = true)]
async fn facts_of_a_node_object_that_is_gone_are_written_at_once() {
    let (store, mut writes) = played().await;
    let mut stored = numbered(1);
    stored.state.put_node(NodeInfo { zone: "zone-a".into(), ..NodeInfo::unknown(NODE_NAME) });
    store.put(stored.clone());
    let begun = Instant::now();
    let first = writes.recv().await.unwrap();
    stored.state.put_node(NodeInfo::unknown(NODE_NAME));
    assert!(stored.state.retains_node());
    store.put(stored.clone());
    first.end.send(Ok(1)).unwrap();
    let next = writes.recv().await.unwrap();
    assert_eq!((&next.stored, next.begun), (&stored, begun));
    // Not so on a disk that fails.
    next.end.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
    assert_eq!(writes.recv().await.unwrap().begun, begun + RETRY_DELAY);
}

#[tokio::test(start_paused = true)]
async fn state_before_a_withheld_loss_is_written_at_once_and_once() {
    let (store, mut writes) = played().await;
    store.put(numbered(1));
    let first = writes.recv().await.unwrap();
    store.put(numbered(2));
    store.mark_outdated();
    let begun = Instant::now();
    first.end.send(Ok(1)).unwrap();
    let next = writes.recv().await.unwrap();
    let outdated = StoredState { is_outdated: true, ..numbered(2) };
    assert_eq!((&next.stored, next.begun), (&outdated, begun));
    assert_eq!(StoredState::decode(NODE_NAME, outdated.encode()).unwrap(), outdated);
    next.end.send(Ok(1)).unwrap();
    store.mark_outdated();
    sleep(Duration::from_secs(600)).await;
    assert!(writes.try_recv().is_err(), "it is written");
}

#[tokio::test(start_paused = true)]
async fn another_position_is_written_at_the_end_only() {
    let (store, mut writes) = played().await;
    let stored = numbered(1);
    store.put(stored.clone());
    writes.recv().await.unwrap().end.send(Ok(1)).unwrap();
    let later = StoredState { revision: Revision(9), epoch: Epoch(8), ..stored };
    store.put(later.clone());
    sleep(Duration::from_secs(600)).await;
    assert!(writes.try_recv().is_err());
    let (closed, last) = tokio::join!(close(store), async {
        let last = writes.recv().await.unwrap();
        last.end.send(Ok(1)).unwrap();
        last.stored
    });
    assert_eq!((closed, last), ((), later));
    assert!(writes.recv().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn end_writes_the_newest_state_at_once_and_nothing_that_is_written() {
    let (store, mut writes) = played().await;
    store.put(numbered(1));
    writes.recv().await.unwrap().end.send(Ok(1)).unwrap();
    let begun = Instant::now();
    store.put(numbered(2));
    let closed = tokio::spawn(close(store));
    let last = writes.recv().await.unwrap();
    assert_eq!((last.stored, last.begun), (numbered(2), begun));
    last.end.send(Ok(1)).unwrap();
    closed.await.unwrap();
    assert!(writes.recv().await.is_none(), "once");

    let (store, mut writes) = played().await;
    store.put(numbered(1));
    writes.recv().await.unwrap().end.send(Ok(1)).unwrap();
    close(store).await;
    assert!(writes.recv().await.is_none(), "it is written");
}

#[tokio::test(start_paused = true)]
async fn failing_disk_ends_the_process_after_a_bounded_number_of_writes() {
    let (store, mut writes) = played().await;
    store.put(numbered(1));
    let closed = tokio::spawn(close(store));
    let mut count = 0;
    while let Some(write) = writes.recv().await {
        write.end.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        count += 1;
    }
    closed.await.unwrap();
    assert_eq!(count, 2);
}

#[tokio::test(start_paused = true)]
async fn hung_disk_is_reported_and_delays_the_end_by_the_limit() {
    let (mut store, mut writes) = played().await;
    store.put(numbered(1));
    let write = writes.recv().await.unwrap();
    assert_eq!(store.error(), None);
    let begun = Instant::now();
    store.error.changed().await.unwrap();
    assert_eq!(begun.elapsed(), WRITE_TIMEOUT);
    assert_eq!(store.error().as_deref(), Some("no write has finished for 10 s"));
    (2..100).for_each(|revision| store.put(numbered(revision)));
    write.end.send(Ok(1)).unwrap();
    store.error.changed().await.unwrap();
    assert_eq!(store.error(), None);
    let next = writes.recv().await.unwrap();
    assert_eq!(next.stored, numbered(99), "those between give way");
    let begun = Instant::now();
    store.finish(Duration::from_secs(1)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn write_that_fails_is_retried_later() {
    let (_dir, path) = file();
    // A directory in place of the new file makes the write fail.
    fs::create_dir_all(path.with_added_extension("new")).unwrap();
    let mut store = open(&path).await.0;
    let begun = Instant::now();
    store.put(numbered(1));
    store.error.changed().await.unwrap();
    assert!(store.error().unwrap().starts_with("Is a directory"));
    store.put(numbered(2));
    fs::remove_dir(path.with_added_extension("new")).unwrap();
    assert!(!path.exists(), "the retry is not due");
    store.error.changed().await.unwrap();
    assert_eq!((store.error(), begun.elapsed() >= RETRY_DELAY), (None, true));
    close(store).await;
    assert_eq!(open(&path).await.1, Some(numbered(2)));
}

/// Otherwise a restart would roll the kernel back.
#[tokio::test(start_paused = true)]
async fn outdated_file_is_removed() {
    let (_dir, path) = file();
    store(&path, &numbered(1)).await;
    assert!(path.exists());
    // A directory in place of the new file makes the write fail.
    fs::create_dir_all(path.with_added_extension("new")).unwrap();
    store(&path, &numbered(2)).await;
    assert_eq!(open(&path).await.1, None);
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn write_that_fails_leaves_no_file() {
    let (_dir, path) = file();
    // A directory in place of the file makes the last step of the write fail.
    fs::create_dir_all(&path).unwrap();
    store(&path, &numbered(1)).await;
    assert!(!path.with_added_extension("new").exists());
}

/// 10,000 service ports with 25 endpoints each.
#[test]
fn node_with_250_000_endpoints_writes_less_than_3_gb_a_day() {
    let state = synthetic(10_000, 25, crate::testing::Stack::V4);
    let bytes = mk_stored(&state, EPOCH, 1).encode().len();
    let per_day = 86_400 / interval(bytes).as_secs() as usize * bytes;
    assert!(bytes > 1_000_000 && per_day < 3_000_000_000, "{bytes} bytes, {per_day} a day");
}

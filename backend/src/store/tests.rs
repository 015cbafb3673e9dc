//! The state file: histories, truncated and damaged files, failing writes.

use std::os::unix::fs::symlink;

use proto::model::{Batch, NodeInfo, ServerMessage};

use super::*;
use crate::testing::{History, NODE_NAME, apply, mk_key, mk_state, operations_between, transition};

const EPOCH: Epoch = Epoch(7);

fn open(path: &Path) -> (Store, Option<StoredState>) {
    Store::open_file(path, NODE_NAME)
}

/// Written by `fairlead local` before 0.1: a snapshot of `docs/examples/manifests`, and the removal of
/// `local-only.yaml`.
const FILE_BEFORE_0_1: &[u8] = include_bytes!("testdata/state-before-0.1");

/// A file in a directory that does not exist yet.
fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fairlead/state");
    (dir, path)
}

/// The version of the cluster that a revision reflects.
fn version(revision: u64) -> SourceVersion {
    SourceVersion(1000 + revision)
}

fn batch(revision: u64, operations: Vec<Operation>) -> Batch {
    Batch {
        base: Revision(revision - 1),
        target: Revision(revision),
        operations,
        commit: true,
        oldest_trigger: None,
        source_version: version(revision),
        kind_versions: KindVersions::default(),
    }
}

/// Receives and commits operations.
fn stage(store: &mut Store, epoch: Epoch, revision: u64, operations: Vec<Operation>) {
    store.stage(&ReceivedMessage::from(ServerMessage::Batch(batch(revision, operations))));
    store.commit(epoch, version(revision), KindVersions::default());
}

/// Receives, commits and writes a change.
fn commit(store: &mut Store, state: &mut NodeState, target: &NodeState, epoch: Epoch, revision: u64) {
    let operations = operations_between(state, target);
    stage(store, epoch, revision, operations.clone());
    apply(state, operations);
    flush(store, state, epoch, revision);
}

/// Writes what is committed, and waits for the disk.
fn flush(store: &mut Store, state: &NodeState, epoch: Epoch, revision: u64) {
    store.flush(state, epoch, Revision(revision));
    assert!(store.writer.queue().wait_idle(Duration::from_secs(20)));
}

#[test]
fn state_survives_restarts_in_random_histories() {
    for seed in 0..50 {
        let (_dir, path) = file();
        let mut history = History::new(seed);
        let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
        let (mut store, stored) = open(&path);
        assert_eq!(stored, None);
        for revision in 1..40 {
            history.step();
            let epoch = Epoch(1 + revision / 15);
            commit(&mut store, &mut state, history.state(), epoch, revision);
            if revision % 7 == 0 {
                let (reopened, stored) = open(&path);
                let expected = StoredState {
                    state: state.clone(),
                    epoch,
                    revision: Revision(revision),
                    source_version: version(revision),
                    kind_versions: KindVersions::default(),
                };
                assert_eq!(stored, Some(expected), "seed {seed}");
                store = reopened;
            }
        }
    }
}

#[test]
fn file_of_an_older_version_is_read_and_appended_to() {
    let (_dir, path) = file();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, FILE_BEFORE_0_1).unwrap();
    let (mut store, stored) = Store::open_file(&path, "node-a");
    let StoredState { mut state, epoch, revision, .. } = stored.unwrap();
    assert_eq!(revision, Revision(3));
    let keys: Vec<_> = state.service_ports().keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["default/empty/tcp", "default/web:http/tcp"]);
    assert_eq!(state.service_port(&mk_key("default/web:http")).unwrap().cluster.v4.len(), 3);

    let operations: Vec<_> = state.service_ports().keys().cloned().map(Operation::RemoveServicePort).collect();
    stage(&mut store, epoch, 4, operations.clone());
    apply(&mut state, operations);
    flush(&mut store, &state, epoch, 4);
    assert!(fs::read(&path).unwrap().starts_with(FILE_BEFORE_0_1), "appended, not rewritten");
    let stored = Store::open_file(&path, "node-a").1;
    let stored = stored.map(|stored| (stored.state, stored.revision));
    assert_eq!(stored, Some((state, Revision(4))));
}

#[test]
fn received_bytes_are_stored_unchanged() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    commit(&mut store, &mut state, &mk_state().build(), EPOCH, 1);
    // Field 1000 is unknown to this version.
    let batch = EncodedMessage::new(&ServerMessage::Batch(batch(2, Vec::new())));
    let wire = EncodedMessage::from_bytes([&batch.to_bytes()[..], &[0xc2, 0x3e, 1, 5]].concat().into());
    store.stage(&ReceivedMessage::decode(wire.clone()).unwrap());
    store.commit(EPOCH, version(2), KindVersions::default());
    flush(&mut store, &state, EPOCH, 2);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.windows(wire.len()).any(|window| window == &wire.to_bytes()[..]));
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((state, Revision(2))));
}

#[test]
fn file_truncated_at_any_byte_yields_the_last_complete_commit() {
    let (_dir, path) = file();
    let mut history = History::new(3);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let (mut store, _) = open(&path);
    let mut ends = Vec::new();
    for revision in 1..6 {
        history.step();
        commit(&mut store, &mut state, history.state(), EPOCH, revision);
        ends.push((fs::metadata(&path).unwrap().len() as usize, revision, state.clone()));
    }
    let whole = fs::read(&path).unwrap();
    assert_eq!(ends.last().unwrap().0, whole.len());
    for len in 0..=whole.len() {
        let expected = ends.iter().rev().find(|(end, ..)| *end <= len);
        let stored = load(NODE_NAME, whole[..len].to_vec()).ok().map(|loaded| loaded.stored);
        let expected = expected.map(|(_, revision, state)| StoredState {
            state: state.clone(),
            epoch: EPOCH,
            revision: Revision(*revision),
            source_version: version(*revision),
            kind_versions: KindVersions::default(),
        });
        assert_eq!(stored, expected, "{len} bytes");
    }
}

#[test]
fn commits_after_a_truncated_one_are_read_back() {
    let (_dir, path) = file();
    let mut history = History::new(4);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let (mut store, _) = open(&path);
    for revision in 1..4 {
        history.jump();
        commit(&mut store, &mut state, history.state(), EPOCH, revision);
    }
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (mut store, stored) = open(&path);
    let StoredState { mut state, revision, .. } = stored.unwrap();
    assert_eq!(revision, Revision(2));
    commit(&mut store, &mut state, history.state(), EPOCH, 3);
    assert_eq!(open(&path).1.map(|stored| stored.state).as_ref(), Some(history.state()));
}

#[test]
fn flipped_bit_is_detected() {
    let (_dir, path) = file();
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let (mut store, _) = open(&path);
    let target = mk_state().service("default/web", |web| web.cluster_ip("10.96.0.1")).build();
    commit(&mut store, &mut state, &target, EPOCH, 1);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(load(NODE_NAME, damaged).is_err(), "byte {at}");
    }
}

#[test]
fn file_of_another_node_or_without_content_is_replaced() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    commit(&mut store, &mut state, &mk_state().build(), EPOCH, 1);
    assert_eq!(Store::open_file(&path, "another").1, None);

    fs::write(&path, "not a state file").unwrap();
    let (mut store, stored) = open(&path);
    assert_eq!(stored, None);
    stage(&mut store, EPOCH, 2, Vec::new());
    flush(&mut store, &state, EPOCH, 2);
    assert_eq!(open(&path).1.map(|stored| stored.revision), Some(Revision(2)));
}

#[test]
fn file_is_rewritten_when_commits_outgrow_the_snapshot() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let small = mk_state().build();
    let large = crate::testing::synthetic(1000, 10, crate::testing::Stack::Dual);
    let (mut largest, mut revision) = (0, 0);
    while revision < 60 {
        for target in [&large, &small] {
            revision += 1;
            commit(&mut store, &mut state, target, EPOCH, revision);
            largest = largest.max(fs::metadata(&path).unwrap().len());
        }
    }
    assert!(largest > MIN_APPENDED_BYTES && largest < 3 * MIN_APPENDED_BYTES, "{largest}");
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((small, Revision(60))));
}

#[test]
fn restarts_do_not_postpone_rewriting() {
    let (_dir, path) = file();
    let mut store = open(&path).0;
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let small = mk_state().build();
    let large = crate::testing::synthetic(1000, 10, crate::testing::Stack::Dual);
    let mut largest = 0;
    for revision in 1..30 {
        let target = if revision % 2 == 0 { &large } else { &small };
        commit(&mut store, &mut state, target, EPOCH, revision);
        store = open(&path).0;
        largest = largest.max(fs::metadata(&path).unwrap().len());
    }
    assert!(largest > MIN_APPENDED_BYTES && largest < 3 * MIN_APPENDED_BYTES, "{largest}");
}

#[test]
fn commit_with_a_refused_operation_is_read_back() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    commit(&mut store, &mut state, &mk_state().build(), EPOCH, 1);
    let operations = vec![Operation::PutNode(NodeInfo::unknown("another"))];
    stage(&mut store, EPOCH, 2, operations.clone());
    assert_eq!(state.apply(operations).len(), 1);
    flush(&mut store, &state, EPOCH, 2);
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((state, Revision(2))));
}

#[test]
fn file_that_is_rewritten_between_two_batches_of_a_commit_gets_all_of_it() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let target = mk_state().service("shop/web", |web| web.endpoints(["10.0.0.1:80"])).build();
    let mut operations = operations_between(&state, &target);
    let last = operations.split_off(1);
    let part = |operations, commit| ServerMessage::Batch(Batch { commit, ..batch(2, operations) });
    store.stage(&ReceivedMessage::from(part(operations.clone(), false)));
    flush(&mut store, &state, EPOCH, 1);
    store.stage(&ReceivedMessage::from(part(last.clone(), true)));
    store.commit(EPOCH, version(2), KindVersions::default());
    apply(&mut state, operations.into_iter().chain(last));
    flush(&mut store, &state, EPOCH, 2);
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((state, Revision(2))));
}

#[test]
fn commit_appends_only_the_change() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let large = crate::testing::synthetic(1000, 10, crate::testing::Stack::V4);
    commit(&mut store, &mut state, &large, EPOCH, 1);
    let before = fs::metadata(&path).unwrap().len();
    let removed = large.service_ports().keys().take(1).cloned();
    let operations: Vec<_> = removed.map(Operation::RemoveServicePort).collect();
    stage(&mut store, EPOCH, 2, operations.clone());
    apply(&mut state, operations);
    flush(&mut store, &state, EPOCH, 2);
    flush(&mut store, &state, EPOCH, 2);
    let appended = fs::metadata(&path).unwrap().len() - before;
    assert!((1..200).contains(&appended), "{appended}");
}

#[tokio::test(start_paused = true)]
async fn full_disk_is_retried_later() {
    let (dir, path) = file();
    fs::create_dir(dir.path().join("fairlead")).unwrap();
    symlink("/dev/full", path.with_added_extension("new")).unwrap();
    let (mut store, _) = open(&path);
    let mut history = History::new(5);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    for revision in 1..4 {
        history.jump();
        commit(&mut store, &mut state, history.state(), EPOCH, revision);
    }
    assert!(!path.exists());
    fs::remove_file(path.with_added_extension("new")).unwrap();
    flush(&mut store, &state, EPOCH, 4);
    assert!(!path.exists(), "the retry is not due");
    tokio::time::advance(RETRY).await;
    flush(&mut store, &state, EPOCH, 4);
    assert_eq!(open(&path).1.map(|stored| stored.state), Some(state.clone()));
    transition(&mut state, &mk_state().build());
}

/// Otherwise a restart would roll the kernel back.
#[test]
fn outdated_file_is_removed() {
    let (_dir, path) = file();
    let mut history = History::new(9);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let (mut store, _) = open(&path);
    // A directory in place of the new file makes rewriting fail.
    fs::create_dir_all(path.with_added_extension("new")).unwrap();
    commit(&mut store, &mut state, history.state(), EPOCH, 1);
    assert!(!path.exists(), "the write failed");

    fs::remove_dir(path.with_added_extension("new")).unwrap();
    let (mut store, _) = open(&path);
    commit(&mut store, &mut state, history.state(), EPOCH, 1);
    assert!(path.exists());
    fs::create_dir_all(path.with_added_extension("new")).unwrap();
    let mut revision = 1;
    while path.exists() {
        history.jump();
        revision += 1;
        commit(&mut store, &mut state, history.state(), EPOCH, revision);
        assert!(revision < 100_000, "the file is never rewritten");
    }
    assert_eq!(open(&path).1, None);
}

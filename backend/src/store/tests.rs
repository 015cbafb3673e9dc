//! Tests of the state file: real files, histories, torn tails, wrong files.

use std::os::unix::fs::symlink;

use proto::model::NodeInfo;

use super::*;
use crate::{
    Stage,
    testing::{History, NODE_NAME, apply, mk_state, operations_between, transition},
};

const EPOCH: Epoch = Epoch(7);

fn open(path: &Path) -> (Store, Option<StoredState>) {
    Store::open(path, NODE_NAME)
}

/// A file in a directory that does not exist yet.
fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fairlead/state");
    (dir, path)
}

/// What a revision reflects.
fn version(revision: u64) -> SourceVersion {
    SourceVersion(1000 + revision)
}

/// What the agent does at a commit.
fn commit(store: &mut Store, state: &mut NodeState, target: &NodeState, epoch: Epoch, revision: u64) {
    let operations = operations_between(state, target);
    store.stage(epoch, (Revision(revision - 1), Revision(revision)), version(revision), &operations);
    apply(state, operations);
    store.flush(state, epoch, Revision(revision));
}

#[test]
fn restarts_in_the_middle_of_histories() {
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
                };
                assert_eq!(stored, Some(expected), "seed {seed}");
                store = reopened;
            }
        }
    }
}

#[test]
fn tail_torn_at_any_byte_is_dropped() {
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
        });
        assert_eq!(stored, expected, "{len} bytes");
    }
}

#[test]
fn what_is_appended_after_a_torn_tail_is_read_back() {
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
fn flipped_bit_is_never_believed() {
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
fn file_of_another_node_or_of_nobody_is_ignored_and_replaced() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    commit(&mut store, &mut state, &mk_state().build(), EPOCH, 1);
    assert_eq!(Store::open(&path, "another").1, None);

    fs::write(&path, "no state file at all").unwrap();
    let (mut store, stored) = open(&path);
    assert_eq!(stored, None);
    store.stage(EPOCH, (Revision(1), Revision(2)), version(2), &[]);
    store.flush(&state, EPOCH, Revision(2));
    assert_eq!(open(&path).1.map(|stored| stored.revision), Some(Revision(2)));
}

#[test]
fn commits_that_outgrow_the_snapshot_are_folded_into_a_new_one() {
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
    assert!(largest > MIN_APPENDED && largest < 3 * MIN_APPENDED, "{largest}");
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((small, Revision(60))));
}

#[test]
fn restarts_do_not_put_off_the_new_file() {
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
    assert!(largest > MIN_APPENDED && largest < 3 * MIN_APPENDED, "{largest}");
}

#[test]
fn commit_with_a_refused_operation_is_read_back() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    commit(&mut store, &mut state, &mk_state().build(), EPOCH, 1);
    let mut stage = Stage::default();
    stage.extend([Operation::PutNode(NodeInfo::unknown("another"))]);
    store.stage(EPOCH, (Revision(1), Revision(2)), version(2), stage.operations());
    assert_eq!(stage.commit(&mut state).refused.len(), 1);
    store.flush(&state, EPOCH, Revision(2));
    assert_eq!(open(&path).1.map(|stored| (stored.state, stored.revision)), Some((state, Revision(2))));
}

#[test]
fn commit_costs_what_it_is() {
    let (_dir, path) = file();
    let (mut store, _) = open(&path);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let large = crate::testing::synthetic(1000, 10, crate::testing::Stack::V4);
    commit(&mut store, &mut state, &large, EPOCH, 1);
    let before = fs::metadata(&path).unwrap().len();
    let mut stage = Stage::default();
    stage.extend(large.service_ports().keys().take(1).cloned().map(Operation::RemoveServicePort));
    store.stage(EPOCH, (Revision(1), Revision(2)), version(2), stage.operations());
    stage.commit(&mut state);
    store.flush(&state, EPOCH, Revision(2));
    store.flush(&state, EPOCH, Revision(2));
    let appended = fs::metadata(&path).unwrap().len() - before;
    assert!((1..200).contains(&appended), "{appended}");
}

#[tokio::test(start_paused = true)]
async fn full_disk_does_not_stop_anything() {
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
    store.flush(&state, EPOCH, Revision(4));
    assert!(!path.exists(), "not tried again so soon");
    tokio::time::advance(RETRY).await;
    store.flush(&state, EPOCH, Revision(4));
    assert_eq!(open(&path).1.map(|stored| stored.state), Some(state.clone()));
    transition(&mut state, &mk_state().build());
}

/// A node that restarts with an old file would undo what has been programmed since.
#[test]
fn file_that_cannot_be_kept_up_to_date_is_removed() {
    let (_dir, path) = file();
    let mut history = History::new(9);
    let mut state = NodeState::new(NodeInfo::unknown(NODE_NAME));
    let (mut store, _) = open(&path);
    // In the way of the new file that a large commit leads to.
    fs::create_dir_all(path.with_added_extension("new")).unwrap();
    commit(&mut store, &mut state, history.state(), EPOCH, 1);
    assert!(!path.exists(), "nothing could be written");

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
        assert!(revision < 100_000, "a file that only grows is never folded");
    }
    assert_eq!(open(&path).1, None);
}

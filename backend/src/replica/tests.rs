//! Which commits tell that an endpoint has departed.

use std::time::UNIX_EPOCH;

use proto::{encoded::EncodedMessage, model::Bookmark};

use super::*;
use crate::{
    LossLimit,
    testing::{NODE_NAME, mk_key, mk_state, operations_between},
};

const BOTH: [&str; 2] = ["10.244.1.1:8080", "10.244.1.2:8080"];

fn web(endpoints: &[&str]) -> NodeState {
    let build = mk_state()
        .service("default/web", |web| web.port(80).cluster_ip("10.96.0.1").endpoints(endpoints.iter().copied()));
    build.build()
}

fn replica() -> Replica {
    let identity =
        BackendIdentity { node: NODE_NAME.into(), backend: "test", version: String::new(), started: UNIX_EPOCH };
    let losses = LossGuard::new(LossLimit::default());
    Replica::new(Arc::new(identity), None, None, losses, Role::Backend)
}

fn handle(replica: &mut Replica, message: &ServerMessage) -> Reaction {
    replica.handle(EncodedMessage::new(message).try_into().unwrap()).unwrap()
}

fn welcome(replica: &mut Replica, mode: SyncMode) {
    replica.session_ended();
    let welcome = Welcome {
        epoch: Epoch(1),
        mode,
        source_version: SourceVersion::default(),
        kind_versions: KindVersions::default(),
        is_outdated: false,
    };
    assert_eq!(handle(replica, &ServerMessage::Welcome(welcome)), Reaction::None);
}

/// Commits this state in the open session. Returns the number of endpoints that departed.
fn commit(replica: &mut Replica, to: &NodeState, source_version: u64) -> Option<usize> {
    let base = replica.committed().map_or(Revision(0), |(_, revision)| revision);
    let batch = Batch {
        base,
        target: Revision(base.0 + 1),
        operations: operations_between(replica.state(), to),
        commit: true,
        oldest_trigger: None,
        source_version: SourceVersion(source_version),
        kind_versions: KindVersions::default(),
    };
    let Reaction::Commit(committed) = handle(replica, &ServerMessage::Batch(batch)) else { panic!("no commit") };
    assert_eq!(replica.state().service_ports(), to.service_ports());
    let departed = committed.departed?;
    assert!(departed.keys().all(|key| *key == mk_key("default/web")));
    Some(departed.values().map(Vec::len).sum())
}

#[test]
fn endpoints_depart_in_a_session_and_not_between_two() {
    let (both, one) = (web(&BOTH), web(&BOTH[..1]));
    let mut replica = replica();
    welcome(&mut replica, SyncMode::Snapshot);
    assert_eq!(commit(&mut replica, &both, 5), None, "the first state");
    assert_eq!(commit(&mut replica, &one, 6), Some(1));
    assert_eq!(commit(&mut replica, &both, 7), Some(0));
    welcome(&mut replica, SyncMode::Resume);
    assert_eq!(commit(&mut replica, &one, 8), None, "another session");
    assert_eq!(commit(&mut replica, &both, 9), Some(0));
    assert_eq!(replica.origin, Origin::Confirmed);
    assert_eq!(commit(&mut replica, &one, 4), None, "the past");
    assert!(matches!(replica.origin, Origin::Behind { .. }));
    assert_eq!(commit(&mut replica, &both, 9), Some(0));
    assert_eq!(commit(&mut replica, &one, 10), Some(1));
    // A Service that goes, and one that comes, have none.
    assert_eq!(commit(&mut replica, &mk_state().build(), 11), Some(0));
    assert_eq!(commit(&mut replica, &both, 12), Some(0));
}

#[test]
fn a_bookmark_confirms_the_state_of_a_session() {
    let (both, one) = (web(&BOTH), web(&BOTH[..1]));
    let mut replica = replica();
    welcome(&mut replica, SyncMode::Snapshot);
    assert_eq!(commit(&mut replica, &both, 5), None);
    welcome(&mut replica, SyncMode::Resume);
    let digest = replica.state().digests().total();
    for departed in [None, Some(DepartedEndpoints::new())] {
        let reaction = handle(&mut replica, &ServerMessage::Bookmark(Bookmark::new(Revision(1), digest)));
        assert!(matches!(reaction, Reaction::Commit(committed) if committed.departed == departed));
    }
    assert_eq!(commit(&mut replica, &one, 6), Some(1));
}

/// Sends a bookmark of the committed revision with a digest that is not that of the state.
fn refute(replica: &mut Replica) {
    let (_, revision) = replica.committed().unwrap();
    let mismatches = replica.counters.digest_mismatches;
    let reaction = handle(replica, &ServerMessage::Bookmark(Bookmark::new(revision, Digest(1))));
    let Reaction::Commit(committed) = reaction else { panic!("no commit") };
    assert_eq!((replica.counters.digest_mismatches, committed.departed), (mismatches + 1, None));
}

#[test]
fn a_bookmark_with_another_digest_confirms_nothing() {
    let (both, one) = (web(&BOTH), web(&BOTH[..1]));
    let mut replica = replica();
    welcome(&mut replica, SyncMode::Snapshot);
    assert_eq!(commit(&mut replica, &both, 5), None);
    refute(&mut replica);
    assert_eq!(commit(&mut replica, &one, 6), None, "the repair, in a session that has committed before");
    assert_eq!(commit(&mut replica, &both, 7), Some(0));
    welcome(&mut replica, SyncMode::Resume);
    refute(&mut replica);
    refute(&mut replica);
    assert_eq!(commit(&mut replica, &one, 8), None, "the repair");
    let (_, revision) = replica.committed().unwrap();
    let digest = replica.state().digests().total();
    let reaction = handle(&mut replica, &ServerMessage::Bookmark(Bookmark::new(revision, digest)));
    assert!(matches!(reaction, Reaction::Commit(_)));
    assert_eq!(replica.counters.digest_mismatches, 3);
}

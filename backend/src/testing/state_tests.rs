//! States: rejected operations, exact changes, random histories.

use proto::{
    digest::{BUCKETS, DigestVector, KeyHash},
    model::{ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, ServicePort},
};

use super::{History, mk_key, mk_state, operations_between};
use crate::{Changes, NodeState, RejectedOperation, ServicePortState, loss::emptied_by};

struct Committed {
    changes: Changes,
    rejected: Vec<RejectedOperation>,
}

fn commit(state: &mut NodeState, operations: Vec<Operation>) -> Committed {
    let before = state.clone();
    let rejected = state.apply(operations);
    Committed { changes: Changes::between(&before, state), rejected }
}

/// The digests computed from an empty state, one service port at a time.
fn recomputed(state: &NodeState) -> DigestVector {
    let mut fresh = NodeState::new(state.node().clone());
    fresh.put_cluster(state.cluster().clone());
    for (key, service) in state.service_ports().iter() {
        fresh.set_service_port(key, Some(service.clone()));
    }
    fresh.digests().clone()
}

/// The changes found by comparing everything.
fn compared(from: &NodeState, to: &NodeState) -> Changes {
    let keys = from.service_ports().keys().chain(to.service_ports().keys());
    Changes {
        service_ports: keys.filter(|key| from.service_port(key) != to.service_port(key)).cloned().collect(),
        node: from.node() != to.node(),
        cluster: from.cluster() != to.cluster(),
    }
}

/// The operations of a snapshot.
fn everything(state: &NodeState) -> Vec<Operation> {
    let mut operations: Vec<_> = (0..BUCKETS as u8).map(Operation::ResetBucket).collect();
    operations.push(Operation::PutCluster(ClusterInfo::default()));
    operations.push(Operation::PutNode(NodeInfo::unknown(state.node().name.clone())));
    operations.extend(operations_between(&NodeState::new(NodeInfo::unknown("other")), state));
    operations
}

fn web() -> NodeState {
    mk_state()
        .service("default/web", |web| web.cluster_ip("10.96.0.1").endpoints(["10.244.1.1:8080"]))
        .service("default/api", |api| api.cluster_ip("10.96.0.2").endpoints(["10.244.1.2:8080"]))
        .build()
}

fn pool(key: &str) -> PoolId {
    PoolId { key: mk_key(key), class: PoolClass::Cluster, family: IpFamily::V4 }
}

fn endpoint(address: &str) -> Endpoint {
    let address: std::net::SocketAddr = address.parse().unwrap();
    Endpoint::new(address.ip(), address.port().try_into().unwrap())
}

#[test]
fn one_commit_or_many_lead_to_the_same_state() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::new(seed);
        let mut state = history.state().clone();
        let mut staged = state.clone();
        for step in 0..30 {
            let before = history.state().clone();
            if rng.u8(0..10) == 0 {
                history.jump()
            } else {
                history.step()
            };
            let operations = match rng.u8(0..4) {
                0 => everything(history.state()),
                // A repair of the buckets that changed.
                1 => repair(&before, history.state()),
                _ => operations_between(&before, history.state()),
            };
            assert_eq!(staged.apply(operations), [], "seed {seed}, step {step}");
            if rng.bool() {
                let before = std::mem::replace(&mut state, staged.clone());
                assert_eq!(state, *history.state(), "seed {seed}, step {step}");
                assert_eq!(Changes::between(&before, &state), compared(&before, &state), "seed {seed}, step {step}");
                assert_eq!(*state.digests(), recomputed(&state), "seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn loss_of_a_commit_equals_a_comparison() {
    let serves = |state: &NodeState, key: &_| state.service_port(key).is_some_and(ServicePortState::has_endpoints);
    let mut seen = 0;
    for seed in 0..200 {
        let mut history = History::new(seed);
        for step in 0..30 {
            let before = history.state().clone();
            if step % 10 == 9 {
                history.jump()
            } else {
                history.step()
            };
            let after = history.state();
            let lost = before.service_ports().keys().filter(|key| serves(&before, key) && !serves(after, key)).count();
            for operations in [everything(after), repair(&before, after), operations_between(&before, after)] {
                let mut applied = before.clone();
                applied.apply(operations);
                let emptied = before.diff(&applied).filter_map(|change| emptied_by(&change)).count();
                assert_eq!(emptied, lost, "seed {seed}, step {step}");
            }
            seen += lost;
        }
    }
    assert!(seen > 0);
}

/// The operations of a repair: buckets that differ are reset and filled again.
fn repair(from: &NodeState, to: &NodeState) -> Vec<Operation> {
    let differing: Vec<_> = from.digests().differing(to.digests()).collect();
    let mut target = NodeState::new(to.node().clone());
    target.put_cluster(to.cluster().clone());
    for (key, service) in to.service_ports().iter() {
        if differing.contains(&usize::from(KeyHash::of(key).bucket())) {
            target.set_service_port(key, Some(service.clone()));
        }
    }
    let resets = differing.iter().filter(|bucket| **bucket < BUCKETS);
    let mut operations: Vec<_> = resets.map(|bucket| Operation::ResetBucket(*bucket as u8)).collect();
    operations.extend(operations_between(&NodeState::new(NodeInfo::unknown("other")), &target));
    operations
}

#[test]
fn unchanged_service_ports_of_a_repair_are_no_change() {
    let mut state = web();
    let before = state.clone();
    let committed = commit(&mut state, everything(&before));
    assert_eq!(committed.changes, Changes::default());
    assert_eq!(state, before);
}

#[test]
fn steps_that_cancel_out_are_no_change() {
    let mut state = web();
    let other = endpoint("10.244.1.9:8080");
    let port = state.service_port(&mk_key("default/web")).unwrap().port.clone();
    let moved = ServicePort { port: 81.try_into().unwrap(), ..port.clone() };
    let committed = commit(
        &mut state,
        vec![
            Operation::PutServicePort(moved),
            Operation::ChangePool { pool: pool("default/web"), add: vec![other], remove: vec![] },
            Operation::ChangePool { pool: pool("default/web"), add: vec![], remove: vec![other] },
            Operation::PutServicePort(port),
        ],
    );
    assert_eq!(committed.changes, Changes::default());
    assert_eq!(state, web());
}

#[test]
fn changes_are_exact() {
    let mut state = web();
    let changed = [endpoint("10.244.1.1:8080"), endpoint("10.244.1.3:8080")];
    let committed = commit(
        &mut state,
        vec![
            Operation::ReplacePool { pool: pool("default/web"), endpoints: changed.into_iter().collect() },
            Operation::ReplacePool {
                pool: pool("default/api"),
                endpoints: [endpoint("10.244.1.2:8080")].into_iter().collect(),
            },
        ],
    );
    let web = [mk_key("default/web")].into();
    assert_eq!(committed.changes, Changes { service_ports: web, node: false, cluster: false });
}

#[test]
fn put_keeps_the_pools_and_put_after_remove_does_not() {
    let mut state = web();
    let port = ServicePort::new(mk_key("default/web"), 8080.try_into().unwrap());
    commit(&mut state, vec![Operation::PutServicePort(port.clone())]);
    assert_eq!(state.service_port(&port.key).unwrap().cluster.v4.len(), 1);
    commit(&mut state, vec![Operation::RemoveServicePort(port.key.clone()), Operation::PutServicePort(port.clone())]);
    assert_eq!(state.service_port(&port.key), Some(&ServicePortState::new(port)));
}

#[test]
fn invalid_operations_are_rejected_and_the_others_applied() {
    let v6 = endpoint("[fd00::1]:80");
    let unknown = |key: &str| RejectedOperation::UnknownServicePort(mk_key(key));
    let change = |key: &str| Operation::ChangePool { pool: pool(key), add: vec![], remove: vec![] };
    let mut state = web();
    let committed = commit(
        &mut state,
        vec![
            change("default/unknown"),
            Operation::ReplacePool { pool: pool("default/web"), endpoints: [v6].into_iter().collect() },
            Operation::ChangePool { pool: pool("default/web"), add: vec![v6], remove: vec![] },
            Operation::PutNode(NodeInfo::unknown("another")),
            Operation::ResetBucket(128),
            Operation::RemoveServicePort(mk_key("default/unknown")),
            Operation::RemoveServicePort(mk_key("default/web")),
            change("default/web"),
            Operation::ResetBucket(KeyHash::of(&mk_key("default/api")).bucket()),
            Operation::ReplacePool { pool: pool("default/api"), endpoints: Pool::default() },
        ],
    );
    assert_eq!(
        committed.rejected,
        [
            unknown("default/unknown"),
            RejectedOperation::OtherFamily(pool("default/web")),
            RejectedOperation::OtherFamily(pool("default/web")),
            RejectedOperation::OtherNode("another".to_owned()),
            RejectedOperation::UnknownBucket(128),
            unknown("default/web"),
            unknown("default/api"),
        ]
    );
    assert_eq!(state, mk_state().build());
    assert_eq!(committed.changes.service_ports.len(), 2);
}

#[test]
fn endpoints_on_the_node_its_link_or_many_hosts_are_ignored_and_the_others_applied() {
    let bad_v4 = ["0.0.0.0:80", "127.0.0.1:80", "127.9.9.9:80", "169.254.169.254:80", "224.0.0.1:80"];
    let bad_v4 = [&bad_v4[..], &["239.1.1.1:80", "255.255.255.255:80"]].concat();
    let bad_v6 = ["[::]:80", "[::1]:80", "[fe80::1]:80", "[ff02::1]:80", "[::ffff:127.0.0.1]:80"];
    for (family, bad, good) in
        [(IpFamily::V4, bad_v4.as_slice(), "10.244.1.7:80"), (IpFamily::V6, bad_v6.as_slice(), "[fd00:244::7]:80")]
    {
        let pool = PoolId { key: mk_key("default/web"), class: PoolClass::Local, family };
        let all: Vec<_> = bad.iter().chain([&good]).map(|text| endpoint(text)).collect();
        let replaced = Operation::ReplacePool { pool: pool.clone(), endpoints: all.iter().copied().collect() };
        let changed = Operation::ChangePool { pool: pool.clone(), add: all, remove: vec![] };
        for operation in [replaced, changed] {
            let mut state = web();
            let committed = commit(&mut state, vec![operation]);
            let endpoints = &state.service_port(&pool.key).unwrap().local[family];
            assert_eq!(endpoints.iter().copied().collect::<Vec<_>>(), [endpoint(good)]);
            let [RejectedOperation::UnusableEndpoint { count, .. }] = committed.rejected.as_slice() else {
                panic!("{:?}", committed.rejected)
            };
            assert_eq!(*count, bad.len());
        }
    }
}

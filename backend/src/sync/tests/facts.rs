//! What the stored and the committed state say about the node itself: endpoints from before it restarted, and the facts
//! of a Node object that is gone or has lost its addresses.

use proto::model::{IpFamily, NodeInfo, PoolClass};

use super::*;

/// A Service with endpoints on this node, on its host network, and on another node.
fn state() -> NodeState {
    mk_state()
        .service("default/both", |service| {
            let local = ["10.244.1.1:80", "192.168.1.1:80"];
            service.cluster_ip("10.96.0.1").endpoints(["10.244.2.1:80"]).endpoints(local).local_endpoints(local)
        })
        .service("default/here", |service| {
            let local = ["10.244.1.2:80"];
            service.cluster_ip("10.96.0.2").external_local().endpoints(local).local_endpoints(local)
        })
        .service("default/there", |service| service.cluster_ip("10.96.0.3").endpoints(["10.244.2.2:80"]))
        .build()
}

/// Stores a state, and restarts the backend: after the node, if this is another boot.
async fn restart(state: &NodeState, boot: Option<&str>) -> (tempfile::TempDir, Fixture) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let mut fixture = start(&FakeKernel::default(), Some(&file));
    drop(fixture.following(state).await);
    fixture.stop().await;
    if let Some(boot) = boot {
        crate::testing::set_boot(&file, boot);
    }
    let fixture = start(&FakeKernel::default(), Some(&file));
    fixture.ready.wait().await;
    (directory, fixture)
}

/// The programmed endpoints of a Service.
fn endpoints(fixture: &Fixture, service: &str, class: PoolClass) -> Vec<String> {
    let programmed = fixture.kernel.service_ports();
    programmed.get(&mk_key(service)).unwrap().pool(class, IpFamily::V4).iter().map(ToString::to_string).collect()
}

fn assert_former_endpoints_are_left_out(fixture: &Fixture) {
    let of = |service, class| endpoints(fixture, service, class);
    assert_eq!(of("default/both", PoolClass::Cluster), ["10.244.2.1:80", "192.168.1.1:80"]);
    assert_eq!(of("default/both", PoolClass::Local), ["192.168.1.1:80"], "the host network keeps its address");
    assert_eq!(of("default/here", PoolClass::Cluster), [""; 0]);
    assert_eq!(of("default/here", PoolClass::Local), [""; 0]);
    let programmed = fixture.kernel.service_ports();
    let any_endpoints = |service| programmed.get(&mk_key(service)).unwrap().port.any_endpoints[IpFamily::V4];
    assert!(!any_endpoints("default/here"), "rejected, not dropped");
    assert!(any_endpoints("default/both"));
    assert_eq!(of("default/there", PoolClass::Cluster), ["10.244.2.2:80"]);
    assert_eq!(fixture.progress.borrow().losses.unconfirmed_service_ports, 2);
}

#[tokio::test(start_paused = true)]
async fn former_endpoints_are_left_out_until_a_frontend_confirms_them() {
    let state = state();
    for confirmed_by_commit in [true, false] {
        let (directory, mut fixture) = restart(&state, Some("an-earlier-boot")).await;
        assert_former_endpoints_are_left_out(&fixture);
        let mut peer = fixture.session().await;
        assert_eq!(peer.hello.digests.as_deref(), Some(state.digests()), "the committed state is complete");
        peer.welcome(EPOCH, SyncMode::Resume).await;
        if confirmed_by_commit {
            peer.commit(1, 2, vec![]).await;
        } else {
            peer.bookmark(2, total(&state)).await;
        }
        assert_eq!(peer.ack().await.digest, Some(total(&state)));
        assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
        assert_eq!(fixture.kernel.calls().last(), Some(&Call::Apply(2)), "only what differs");
        assert_eq!(fixture.progress.borrow().losses.unconfirmed_service_ports, 0);
        fixture.stop().await;

        // From now on it is a state of this boot.
        let fixture = start(&FakeKernel::default(), Some(&directory.path().join("state")));
        fixture.ready.wait().await;
        assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
        fixture.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn former_endpoints_stay_left_out_across_restarts_of_the_backend() {
    let state = state();
    let (directory, mut fixture) = restart(&state, Some("an-earlier-boot")).await;
    // A frontend that answers and disagrees confirms nothing.
    let mut peer = fixture.session().await;
    peer.welcome(EPOCH, SyncMode::Resume).await;
    peer.bookmark(2, Digest(1)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_former_endpoints_are_left_out(&fixture);
    fixture.stop().await;
    let fixture = start(&FakeKernel::default(), Some(&directory.path().join("state")));
    fixture.ready.wait().await;
    assert_former_endpoints_are_left_out(&fixture);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn former_endpoints_that_are_gone_are_removed_and_others_added() {
    let before = state();
    let after = mk_state()
        .service("default/both", |service| {
            let local = ["10.244.1.9:80", "192.168.1.1:80"];
            service.cluster_ip("10.96.0.1").endpoints(["10.244.2.1:80"]).endpoints(local).local_endpoints(local)
        })
        .service("default/here", |service| service.cluster_ip("10.96.0.2").external_local())
        .build();
    let (_directory, mut fixture) = restart(&before, Some("an-earlier-boot")).await;
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(7), SyncMode::Repair).await;
    peer.commit(0, 5, operations_between(&before, &after)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&after)));
    assert_eq!(fixture.kernel.service_ports(), *after.service_ports());
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restart_of_the_backend_leaves_nothing_out() {
    let state = state();
    let (_directory, fixture) = restart(&state, None).await;
    assert_eq!(fixture.kernel.service_ports(), *state.service_ports());
    fixture.stop().await;
}

/// A state in which the node is another one.
fn with_node(state: &NodeState, node: NodeInfo) -> NodeState {
    let mut changed = NodeState::new(node);
    let all_but_the_node = everything(state).into_iter().filter(|op| !matches!(op, Operation::PutNode(_)));
    crate::testing::apply(&mut changed, all_but_the_node);
    changed
}

#[tokio::test(start_paused = true)]
async fn facts_of_a_deleted_node_are_retained_until_it_returns() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let state = state();
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.following(&state).await;
    let calls = kernel.calls().len();
    let unknown = || vec![Operation::PutNode(NodeInfo::unknown(NODE_NAME))];
    let without_node = with_node(&state, NodeInfo::unknown(NODE_NAME));
    peer.commit(1, 2, unknown()).await;
    assert_eq!(peer.ack().await.digest, Some(total(&without_node)), "the frontend's state is committed");
    assert_eq!(kernel.calls().len(), calls, "nothing is programmed");
    let progress = fixture.progress.borrow().clone();
    assert!(progress.node.is_retained && progress.node.eligible);
    fixture.stop().await;
    drop(peer);

    // Also across restarts, and in a snapshot of another frontend.
    for _ in 0..2 {
        let mut fixture = start(&kernel, Some(&file));
        fixture.ready.wait().await;
        assert!(fixture.progress.borrow().node.is_retained && fixture.progress.borrow().node.eligible);
        let mut peer = fixture.session().await;
        assert_eq!(peer.hello.digests.as_deref(), Some(without_node.digests()));
        peer.welcome(Epoch(7), SyncMode::Snapshot).await;
        peer.commit(0, 3, everything(&without_node)).await;
        assert_eq!(peer.ack().await.digest, Some(total(&without_node)));
        assert!(fixture.progress.borrow().node.is_retained);
        fixture.stop().await;
    }
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.session().await;
    peer.welcome(Epoch(7), SyncMode::Resume).await;
    peer.commit(3, 4, vec![Operation::PutNode(NodeInfo { zone: "zone-b".into(), ..state.node().clone() })]).await;
    peer.ack().await;
    assert!(!fixture.progress.borrow().node.is_retained);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn addresses_of_a_node_object_without_any_are_retained_until_it_has_some() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let state = state();
    let kernel = FakeKernel::default();
    let mut fixture = start(&kernel, Some(&file));
    let mut peer = fixture.following(&state).await;
    let calls = kernel.calls().len();
    let without = NodeInfo { addresses: Vec::new(), ..state.node().clone() };
    let without_addresses = with_node(&state, without.clone());
    peer.commit(1, 2, vec![Operation::PutNode(without)]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&without_addresses)), "the frontend's state is committed");
    assert_eq!(kernel.calls().len(), calls, "nothing is programmed");
    let retained = |fixture: &Fixture| {
        let progress = fixture.progress.borrow();
        (progress.node.is_retained, progress.node.retains_addresses)
    };
    assert_eq!(retained(&fixture), (false, true));
    fixture.stop().await;
    drop(peer);

    // Also across a restart, and in a snapshot of another frontend.
    let mut fixture = start(&kernel, Some(&file));
    fixture.ready.wait().await;
    assert_eq!(retained(&fixture), (false, true));
    let mut peer = fixture.session().await;
    assert_eq!(peer.hello.digests.as_deref(), Some(without_addresses.digests()));
    peer.welcome(Epoch(7), SyncMode::Snapshot).await;
    peer.commit(0, 3, everything(&without_addresses)).await;
    assert_eq!(peer.ack().await.digest, Some(total(&without_addresses)));
    assert_eq!(retained(&fixture), (false, true));
    peer.commit(3, 4, vec![Operation::PutNode(state.node().clone())]).await;
    assert_eq!(peer.ack().await.digest, Some(total(&state)));
    assert_eq!(retained(&fixture), (false, false));
    fixture.stop().await;
}

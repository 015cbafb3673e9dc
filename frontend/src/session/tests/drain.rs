//! How far a pod that ends is drained.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use proto::{
    convert::pack_address,
    model::{FailureKind, NodeInfo, Protocol, ServicePortFailure, ServicePortKey, SourceVersion},
    node_set::NodeSet,
    v1::{self, DrainState},
};
use tokio::time::timeout;

use super::*;
use crate::{drains::levels::ListedPod, object::PodId, testing::take_steps};

const LONG: Duration = Duration::from_secs(50);
/// The node of all pods.
const NODE: &str = "node-9";

/// The Service `web` with these pods; those that end are negative.
fn pods(pods: &[i8]) -> SourceUpdate {
    pods_on(Some(NODE), pods)
}

/// As [`pods`], with entries that name this node.
fn pods_on(node: Option<&str>, pods: &[i8]) -> SourceUpdate {
    let endpoints = pods.iter().map(|pod| {
        let address = format!("10.0.0.{}", pod.unsigned_abs());
        let node = node.map(Into::into);
        SliceEndpoint { node, ready: *pod > 0, terminating: *pod < 0, ..endpoint(&address, NODE) }
    });
    put(slice("x", "web", endpoints.collect()))
}

async fn cluster() -> Fixture {
    let node = |name| ClusterObject::from(node(name, "zone-a"));
    let fixture = Fixture::of(vec![service("web", "10.96.0.1").into(), node("node-0"), node("node-1")]).await;
    fixture.update(pods(&[1, 2])).await;
    fixture.committed().await;
    fixture
}

/// What the node of the pods is told.
fn message(fixture: &Fixture) -> v1::DrainLevels {
    let context = &fixture.frontend.context;
    let listed = ListedPod::of(context.cluster.index().entries_on(NODE));
    let pods = context.cluster.ending_pods();
    context.streams.read(|fleet| pods.message(fleet, NODE, &listed, SourceVersion::default()).0)
}

/// The level of an address: that of the pod there that is furthest from drained.
fn level_at(fixture: &Fixture, address: &str) -> Option<v1::DrainLevel> {
    level_in(&message(fixture), address)
}

fn level_in(message: &v1::DrainLevels, address: &str) -> Option<v1::DrainLevel> {
    let address = pack_address(&ip(address));
    let levels = message.levels.iter().filter(|level| level.address == address);
    levels.min_by_key(|level| level.state).cloned()
}

/// The level of pod 1.
fn level(fixture: &Fixture) -> v1::DrainLevel {
    level_at(fixture, "10.0.0.1").unwrap()
}

/// The state of pod 1; `Unspecified`: not known.
fn state(fixture: &Fixture) -> DrainState {
    state_at(fixture, "10.0.0.1")
}

fn state_at(fixture: &Fixture, address: &str) -> DrainState {
    level_at(fixture, address).map_or(DrainState::Unspecified, |level| level.state())
}

/// Waits until pod 1 is drained, and returns what its node is told.
async fn drained(fixture: &Fixture) -> v1::DrainLevels {
    let is_drained = async {
        while state(fixture) != DrainState::Drained {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        message(fixture)
    };
    timeout(LONG, is_drained).await.expect("pod 1 is not drained")
}

async fn is_not_drained(fixture: &Fixture) {
    for _ in 0..20 {
        assert_ne!(state(fixture), DrainState::Drained);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn count(set: Option<NodeSet>) -> u64 {
    set.unwrap_or_default().count
}

/// An endpoint of the pod of this name.
fn of_pod(name: &str, endpoint: SliceEndpoint) -> SliceEndpoint {
    SliceEndpoint { pod: Some(PodId::new("ns", name, None)), ..endpoint }
}

#[tokio::test(start_paused = true)]
async fn pods_that_end_are_listed_with_the_nodes_that_they_wait_for() {
    let fixture = cluster().await;
    let _first = fixture.joined("node-0").await;
    let mut second = fixture.joined("node-1").await;
    let context = &fixture.frontend.context;
    let listed = || context.cluster.ending_pods().undrained(&context.streams.fleet(), 8);
    assert!(listed().is_empty());

    fixture.update(pods(&[-1, 2])).await;
    second.commit().await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let [pod] = &listed()[..] else { panic!("{:?}", listed()) };
    assert_eq!((pod.addresses.first(), pod.unused_since), (Some(&ip("10.0.0.1")), Some(fixture.revision())));
    assert_eq!(level(&fixture).behind, ["node-0"]);
    assert!(pod.since.elapsed() >= Duration::from_secs(1), "{pod:?}");
}

#[tokio::test(start_paused = true)]
async fn pod_is_drained_when_all_nodes_have_programmed_that_it_ends() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    let mut second = fixture.joined("node-1").await;
    assert_eq!(state(&fixture), DrainState::InUse);

    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    is_not_drained(&fixture).await;
    assert_eq!((state(&fixture), level(&fixture).behind), (DrainState::Behind, vec!["node-1".to_owned()]));

    second.commit().await;
    let message = drained(&fixture).await;
    assert_eq!(level(&fixture).services, ["ns/web"]);
    assert_eq!((message.programmed, message.nodes_left), (message.cluster, true));
    assert_eq!(count(message.cluster), 2);
}

#[tokio::test(start_paused = true)]
async fn address_in_no_slice_is_unknown() {
    let fixture = cluster().await;
    fixture.update(pods(&[2])).await;
    fixture.committed().await;
    assert_eq!(level_at(&fixture, "10.0.0.1"), None);
}

#[tokio::test(start_paused = true)]
async fn pod_that_leaves_the_slices_is_drained_for_those_that_wait() {
    let fixture = cluster().await;
    let mut levels = fixture.frontend.drains(NODE, fixture.shutdown.clone()).unwrap();
    assert_eq!(levels.next().await.unwrap().levels.len(), 2);

    fixture.update(pods(&[2])).await;
    drained(&fixture).await;
    assert!(level(&fixture).gone);

    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.update(pods(&[2, 3])).await;
    fixture.committed().await;
    assert_eq!(level_at(&fixture, "10.0.0.1"), None);
}

/// A node that connects may still send the pod connections: it must not be in the set of a level that is older.
#[tokio::test(start_paused = true)]
async fn levels_and_sets_of_nodes_are_of_the_same_time() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    drained(&fixture).await;
    let mut levels = fixture.frontend.drains(NODE, fixture.shutdown.clone()).unwrap();
    let mut next = async || {
        let message = levels.next().await.unwrap();
        (level_in(&message, "10.0.0.1").unwrap().state(), count(message.programmed))
    };
    assert_eq!(next().await, (DrainState::Drained, 1));

    let mut second = fixture.connect(hello("node-1")).await;
    second.welcome().await;
    assert_eq!(next().await, (DrainState::Behind, 2));

    second.commit().await;
    assert_eq!(next().await, (DrainState::Drained, 2));
}

/// As in slices that are written by hand.
#[tokio::test(start_paused = true)]
async fn pod_whose_entries_name_no_node_is_on_that_of_the_pod_cidr() {
    let host = NodeInfo { pod_cidrs: vec!["10.0.0.0/24".parse().unwrap()], ..node(NODE, "zone-a") };
    let fixture = Fixture::of(vec![service("web", "10.96.0.1").into(), host.into()]).await;
    let mut levels = fixture.frontend.drains(NODE, fixture.shutdown.clone()).unwrap();
    assert!(levels.next().await.unwrap().levels.is_empty());

    for (pods, state, gone) in [
        (&[1, 2][..], DrainState::InUse, false),
        (&[-1, 2], DrainState::Drained, false),
        (&[2], DrainState::Drained, true),
    ] {
        fixture.update(pods_on(None, pods)).await;
        let reaches = async {
            let expected = |level: v1::DrainLevel| level.state() == state && level.gone == gone;
            while !level_in(&levels.next().await.unwrap(), "10.0.0.1").is_some_and(expected) {}
        };
        timeout(LONG, reaches).await.unwrap_or_else(|_| panic!("{pods:?}: {:?}", level_at(&fixture, "10.0.0.1")));
    }
}

#[tokio::test(start_paused = true)]
async fn unready_pod_is_in_use_until_its_slice_says_that_it_ends() {
    let fixture = cluster().await;
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.1", NODE) };
    fixture.update(put(slice("x", "web", vec![unready, endpoint("10.0.0.2", NODE)]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::InUse);
    fixture.update(pods(&[-1, 2])).await;
    drained(&fixture).await;
}

#[tokio::test(start_paused = true)]
async fn last_pod_of_a_service_is_in_use_while_it_ends() {
    let fixture = cluster().await;
    fixture.update(pods(&[-1])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::InUse);
    fixture.update(pods(&[-1, 3])).await;
    drained(&fixture).await;
}

#[tokio::test(start_paused = true)]
async fn other_service_of_the_pod_counts() {
    let fixture = cluster().await;
    fixture.update(put(service("api", "10.96.0.2"))).await;
    fixture.update(put(slice("y", "api", vec![endpoint("10.0.0.1", NODE), endpoint("10.0.0.2", NODE)]))).await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::InUse);
}

#[tokio::test(start_paused = true)]
async fn node_that_could_not_program_the_service_is_behind() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let failure = |service: &str, kind| {
        let key = ServicePortKey::new("ns", service, "http", Protocol::Tcp);
        ServicePortFailure { key, reason: "EINVAL".to_owned(), retryable: true, kind }
    };
    fixture.update(pods(&[-1, 2])).await;
    // For two reasons, but it is one node.
    client.ack_with(vec![failure("web", FailureKind::Program)]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(level(&fixture).behind, ["node-0"]);

    client.commit().await;
    for (failures, is_behind) in [
        (vec![failure("web", FailureKind::Program)], true),
        (vec![failure("web", FailureKind::HealthCheck), failure("api", FailureKind::Program)], false),
        (Vec::new(), false),
    ] {
        client.ack_with(failures).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(state(&fixture) == DrainState::Behind, is_behind);
    }
}

/// The attack: a tenant has a Service that no node can program.
#[tokio::test(start_paused = true)]
async fn failure_that_lasts_does_not_hide_that_of_another_service() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let failure = |service: &str| {
        let key = ServicePortKey::new("ns", service, "http", Protocol::Tcp);
        ServicePortFailure { key, reason: "EINVAL".to_owned(), retryable: true, kind: FailureKind::Program }
    };
    client.ack_with(vec![failure("evil")]).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        client.bookmark().await;
        client.ack_with(vec![failure("evil")]).await;
    }
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;

    client.ack_with(vec![failure("evil"), failure("web")]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&fixture), DrainState::Behind);

    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        client.bookmark().await;
        client.ack_with(vec![failure("evil"), failure("web")]).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&fixture), DrainState::Drained);
}

/// The attack: the node is always busy with large changes of another namespace.
#[tokio::test(start_paused = true)]
async fn node_that_has_not_programmed_other_namespaces_is_not_waited_for() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let programmed_number = client.number_of(fixture.revision());
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;
    let ack = client.ack_of(Some(client.replica.state.digests().total()), Vec::new());
    for (unfinished, is_behind) in
        [(vec![], true), (vec!["evil", "ns"], true), (vec!["evil"], false), (vec!["ns"], true)]
    {
        let unfinished_namespaces = unfinished.into_iter().map(Into::into).collect();
        client.send(ClientMessage::Ack(Ack { programmed_number, unfinished_namespaces, ..ack.clone() })).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(state(&fixture) == DrainState::Behind, is_behind);
    }
}

/// A tenant can have every node report as many failures as fit.
#[tokio::test(start_paused = true)]
async fn failures_are_neither_copied_nor_searched_under_the_lock_of_all_streams() {
    let fixture = cluster().await;
    let client = fixture.joined("node-0").await;
    let failure = |service: &str, port: u32, kind| {
        let key = ServicePortKey::new("ns", service, format!("port-{port}"), Protocol::Tcp);
        ServicePortFailure { key, reason: "EINVAL".to_owned(), retryable: false, kind }
    };
    let of_web = (0..100).map(|port| failure("web", port, FailureKind::Program));
    client.ack_with(of_web.chain([failure("api", 0, FailureKind::HealthCheck)]).collect()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (fleet, copy) = (fixture.frontend.context.streams.fleet(), fixture.frontend.context.streams.fleet());
    let (status, copied) = (fleet.backends().next().unwrap(), copy.backends().next().unwrap());
    assert_eq!(status.failures.len(), 101);
    assert!(status.failing_services.keys().eq(&[ObjectName::new("ns", "web")]));
    assert!(Arc::ptr_eq(&status.failures, &copied.failures));
    assert!(Arc::ptr_eq(&status.failing_services, &copied.failing_services));
}

#[tokio::test(start_paused = true)]
async fn node_that_has_left_is_counted_for_a_while() {
    let fixture = cluster().await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let client = fixture.joined("node-0").await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    assert!(!message(&fixture).nodes_left);

    drop(client);
    for nodes_left in [true, false] {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let message = message(&fixture);
        assert_eq!((state(&fixture), count(message.programmed)), (DrainState::Drained, 0));
        assert_eq!(message.nodes_left, nodes_left);
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_without_a_node_object_is_counted_apart() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    let mut deleted = fixture.connect(hello("deleted")).await;
    deleted.welcome().await;
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;

    let message = drained(&fixture).await;
    assert_eq!((count(message.programmed), level(&fixture).unlisted), (1, 1));
    assert_eq!(count(level(&fixture).not_programmed), 0);
}

#[tokio::test(start_paused = true)]
async fn node_without_progress_counts_like_one_that_is_absent() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    let _second = fixture.joined("node-1").await;
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;

    let begun = Instant::now();
    let message = drained(&fixture).await;
    assert!((9..12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!((count(message.programmed), count(message.cluster)), (2, 2));
    assert_eq!(count(level(&fixture).not_programmed), 1);
}

#[tokio::test(start_paused = true)]
async fn node_that_makes_progress_is_waited_for() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;
    client.ack_programmed(before).await;
    for _ in 0..3 {
        client.bookmark().await;
        client.ack_programmed(before).await;
    }
    is_not_drained(&fixture).await;

    client.ack().await;
    drained(&fixture).await;
}

#[tokio::test(start_paused = true)]
async fn node_that_acknowledges_and_does_not_program_is_waited_for_a_minute() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let mut other = fixture.joined("node-1").await;
    let before = client.replica.revision;
    fixture.update(pods(&[-1, 2])).await;
    other.commit().await;
    client.batches().await;
    client.ack_programmed(before).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        assert_ne!(state(&fixture), DrainState::Drained);
        client.bookmark().await;
        client.ack_programmed(before).await;
    }
    assert_eq!((state(&fixture), count(level(&fixture).not_programmed)), (DrainState::Drained, 1));
}

#[tokio::test(start_paused = true)]
async fn node_that_connects_again_and_again_makes_no_progress() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    for seconds in [0, 5, 10, 15] {
        let mut second = fixture.connect(hello("node-1")).await;
        second.welcome().await;
        assert_eq!(state(&fixture) == DrainState::Drained, seconds >= 10, "after {seconds} s");
        tokio::time::sleep(Duration::from_secs(5)).await;
        second.disconnects().await.unwrap();
    }
    assert_eq!((state(&fixture), count(message(&fixture).programmed)), (DrainState::Drained, 1));
    // The one that was due meanwhile, too.
    first.is_up_to_date().await;
    first.is_up_to_date().await;
    let mut second = fixture.joined("node-1").await;
    fixture.update(pods(&[-1, 2, 3])).await;
    first.commit().await;
    second.commit().await;
    assert_eq!(count(drained(&fixture).await.programmed), 2);
}

#[tokio::test(start_paused = true)]
async fn node_that_resumes_is_behind_until_its_ack() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;
    // Its state is that of the last revision, its kernel not yet.
    client.ack_programmed(before).await;
    assert!(state(&fixture) == DrainState::Behind);
    let mut client = fixture.connect(client.resume()).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Resume);
    client.bookmark().await;
    assert!(state(&fixture) == DrainState::Behind);
    client.ack_programmed(before).await;
    assert!(state(&fixture) == DrainState::Behind);
    client.ack().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(state(&fixture), DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn other_address_counts_only_if_it_is_of_the_same_pod() {
    let fixture = cluster().await;
    let ends = |pod, address| of_pod(pod, SliceEndpoint { terminating: true, ready: false, ..endpoint(address, NODE) });
    let ready = |pod, address| of_pod(pod, endpoint(address, NODE));
    let slice_of = |name, service, endpoints| put(slice(name, service, endpoints));
    fixture.update(slice_of("x", "web", vec![ends("own", "10.0.0.1"), ready("b", "10.0.0.2")])).await;
    fixture.update(slice_of("y", "web", vec![ready("theirs", "fd00::7")])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::Drained);

    fixture.update(slice_of("z", "web", vec![ready("own", "fd00::8")])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::InUse);
}

#[tokio::test(start_paused = true)]
async fn slice_that_names_another_pod_does_not_hide_the_other_address() {
    let fixture = cluster().await;
    let ends = |pod, address| of_pod(pod, SliceEndpoint { terminating: true, ready: false, ..endpoint(address, NODE) });
    let others = vec![of_pod("other", endpoint("10.0.0.2", NODE))];
    fixture.update(put(slice("x", "web", [vec![ends("own", "10.0.0.1")], others].concat()))).await;
    fixture.update(put(slice("z", "web", vec![of_pod("own", endpoint("fd00::1", NODE))]))).await;
    fixture.update(put(slice("theirs", "web", vec![ends("theirs", "10.0.0.1")]))).await;
    fixture.committed().await;
    for address in ["10.0.0.1", "fd00::1"] {
        assert_eq!(state_at(&fixture, address), DrainState::InUse, "{address}");
    }
    fixture.update(put(slice("z", "web", vec![ends("own", "fd00::1")]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn pod_of_both_families_is_drained_when_the_slices_of_both_say_that_it_ends() {
    let fixture = cluster().await;
    let slice_of = |name, addresses: [&str; 2], ends: bool| {
        let own = SliceEndpoint { ready: !ends, terminating: ends, ..endpoint(addresses[0], NODE) };
        put(slice(name, "web", vec![of_pod("own", own), of_pod("other", endpoint(addresses[1], NODE))]))
    };
    fixture.update(slice_of("x", ["10.0.0.1", "10.0.0.2"], true)).await;
    fixture.update(slice_of("z", ["fd00::1", "fd00::2"], false)).await;
    fixture.committed().await;
    for asked in ["10.0.0.1", "fd00::1"] {
        assert_eq!(state_at(&fixture, asked), DrainState::InUse, "{asked}");
    }
    fixture.update(slice_of("z", ["fd00::1", "fd00::2"], true)).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::Drained);
}

/// A tenant can list an address as often as it likes.
#[tokio::test(start_paused = true)]
async fn commit_costs_the_slices_that_it_concerns() {
    let fixture = cluster().await;
    for number in 0..20 {
        let entry = SliceEndpoint { terminating: true, ready: false, ..endpoint("10.0.0.1", NODE) };
        let entries = vec![of_pod("own", entry); 1000];
        fixture.update(put(slice(&format!("many-{number}"), "web", entries))).await;
    }
    fixture.committed().await;
    take_steps();
    fixture.update(put(service("api", "10.96.0.2"))).await;
    fixture.committed().await;
    assert!(take_steps() < 10, "no entry has changed");

    fixture.update(pods(&[-1, 2, 3])).await;
    fixture.committed().await;
    assert!(take_steps() <= 3 * 20_010, "each slice is read a few times at most");
}

#[tokio::test(start_paused = true)]
async fn custom_slice_does_not_keep_a_pod_that_another_slice_names() {
    let fixture = cluster().await;
    fixture.update(put(service("api", "10.96.0.2"))).await;
    fixture.update(put(slice("y", "api", vec![endpoint("10.0.0.1", NODE), endpoint("10.0.0.2", NODE)]))).await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::InUse, "no slice names the pod");
    let ends = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.1", NODE) };
    let other = of_pod("other", endpoint("10.0.0.2", NODE));
    fixture.update(put(slice("x", "web", vec![of_pod("own", ends), other]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture), DrainState::Drained);
}

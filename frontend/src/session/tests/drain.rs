//! When a pod that ends is drained.

use std::{sync::Arc, time::Duration};

use proto::model::{FailureKind, Protocol, ServicePortFailure, ServicePortKey};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::{
    drain::{Drain, DrainReport, NodesBehind},
    object::PodId,
    testing::take_steps,
    waiting_drains::DrainState,
};

const LONG: Duration = Duration::from_secs(50);

/// The Service `web` with these pods; those that end are negative.
fn pods(pods: &[i8]) -> SourceUpdate {
    let endpoints = pods.iter().map(|pod| {
        let address = format!("10.0.0.{}", pod.unsigned_abs());
        SliceEndpoint { ready: *pod > 0, terminating: *pod < 0, ..endpoint(&address, "node-9") }
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

/// Asks whether pod 1 is drained.
fn ask(fixture: &Fixture, patience: Duration) -> JoinHandle<DrainReport> {
    ask_about(fixture, &["10.0.0.1"], patience)
}

fn ask_about(fixture: &Fixture, addresses: &[&str], patience: Duration) -> JoinHandle<DrainReport> {
    let (context, shutdown) = (fixture.frontend.context.clone(), fixture.shutdown.clone());
    let addresses = addresses.iter().map(|address| ip(address)).collect();
    tokio::spawn(async move { Drain::new(&context, addresses).wait(patience, shutdown).await })
}

/// An endpoint of the pod of this name.
fn of_pod(name: &str, endpoint: SliceEndpoint) -> SliceEndpoint {
    SliceEndpoint { pod: Some(PodId::new("ns", name)), ..endpoint }
}

async fn state(fixture: &Fixture) -> DrainState {
    ask(fixture, Duration::ZERO).await.unwrap().state
}

async fn is_waiting(asked: &mut JoinHandle<DrainReport>) {
    assert!(timeout(Duration::from_secs(1), asked).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn waiting_pods_are_listed_with_the_nodes_that_they_wait_for() {
    let fixture = cluster().await;
    let (_first, mut second) = (fixture.joined("node-0").await, fixture.joined("node-1").await);
    let waiting = || fixture.frontend.context.drains.longest(8);
    fixture.update(pods(&[-1, 2])).await;
    second.commit().await;
    let mut asked = ask(&fixture, LONG);
    is_waiting(&mut asked).await;
    let [drain] = &waiting()[..] else { panic!("{:?}", waiting()) };
    assert_eq!((&drain.addresses[..], drain.state), (&[ip("10.0.0.1")][..], DrainState::Behind(fixture.revision())));
    let behind = NodesBehind::of(&fixture.frontend.context.streams.fleet(), drain.state, &drain.services);
    assert_eq!((&behind.first[..], behind.count), (&["node-0".into()][..], 1));
    assert!(drain.since.elapsed() >= Duration::from_secs(1), "{drain:?}");
    asked.abort();
    assert!(asked.await.is_err());
    assert!(waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_is_drained_when_all_nodes_have_programmed_that_it_ends() {
    let fixture = cluster().await;
    let (mut first, mut second) = (fixture.joined("node-0").await, fixture.joined("node-1").await);
    let mut asked = ask(&fixture, LONG);
    is_waiting(&mut asked).await;
    assert_eq!(state(&fixture).await, DrainState::InUse);
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    is_waiting(&mut asked).await;
    let report = ask(&fixture, Duration::ZERO).await.unwrap();
    assert_eq!(report.state, DrainState::Behind(fixture.revision()));
    assert_eq!((&report.behind.first[..], report.behind.count), (&["node-1".into()][..], 1));
    second.commit().await;
    let report = asked.await.unwrap();
    let services: Vec<_> = report.services.iter().map(ToString::to_string).collect();
    assert_eq!((report.state, &services[..]), (DrainState::Drained, &["ns/web".to_owned()][..]));
    assert_eq!((report.connected, report.left), (report.cluster, 0));
    assert_eq!(report.cluster.count, 2);
}

#[tokio::test(start_paused = true)]
async fn address_in_no_slice_is_unknown() {
    let fixture = cluster().await;
    fixture.update(pods(&[2])).await;
    fixture.committed().await;
    let report = ask(&fixture, Duration::ZERO).await.unwrap();
    assert_eq!((report.state, report.left), (DrainState::Unknown, 0), "no node is looked at");
}

#[tokio::test(start_paused = true)]
async fn address_that_leaves_the_slices_meanwhile_is_drained() {
    let fixture = cluster().await;
    let asked = ask(&fixture, LONG);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.update(pods(&[2])).await;
    assert_eq!(asked.await.unwrap().state, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn unready_pod_is_in_use_until_its_slice_says_that_it_ends() {
    let fixture = cluster().await;
    let unready = SliceEndpoint { ready: false, ..endpoint("10.0.0.1", "node-9") };
    fixture.update(put(slice("x", "web", vec![unready, endpoint("10.0.0.2", "node-9")]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::InUse);
    let asked = ask(&fixture, LONG);
    fixture.update(pods(&[-1, 2])).await;
    assert_eq!(asked.await.unwrap().state, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn last_pod_of_a_service_is_in_use_while_it_ends() {
    let fixture = cluster().await;
    fixture.update(pods(&[-1])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::InUse);
    let asked = ask(&fixture, LONG);
    fixture.update(pods(&[-1, 3])).await;
    assert_eq!(asked.await.unwrap().state, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn other_service_of_the_pod_counts() {
    let fixture = cluster().await;
    fixture.update(put(service("api", "10.96.0.2"))).await;
    fixture.update(put(slice("y", "api", vec![endpoint("10.0.0.1", "node-9"), endpoint("10.0.0.2", "node-9")]))).await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::InUse);
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
    client.commit().await;
    for (failures, is_behind) in [
        (vec![failure("web", FailureKind::Program)], true),
        (vec![failure("web", FailureKind::HealthCheck), failure("api", FailureKind::Program)], false),
        (Vec::new(), false),
    ] {
        client.ack_with(failures).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(matches!(state(&fixture).await, DrainState::Behind(_)), is_behind);
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
    assert!(matches!(state(&fixture).await, DrainState::Behind(_)));

    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        client.bookmark().await;
        client.ack_with(vec![failure("evil"), failure("web")]).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state(&fixture).await, DrainState::Drained);
}

/// The attack: the node is always busy with large changes of another namespace.
#[tokio::test(start_paused = true)]
async fn node_that_has_not_programmed_other_namespaces_is_not_waited_for() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let before = fixture.revision();
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;
    let ack = client.ack_of(Some(client.replica.state.digests().total()), Vec::new());
    for (unfinished, is_behind) in
        [(vec![], true), (vec!["evil", "ns"], true), (vec!["evil"], false), (vec!["ns"], true)]
    {
        let unfinished_namespaces = unfinished.into_iter().map(Into::into).collect();
        client.send(ClientMessage::Ack(Ack { programmed: before, unfinished_namespaces, ..ack.clone() })).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(matches!(state(&fixture).await, DrainState::Behind(_)), is_behind);
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
    let client = fixture.joined("node-0").await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    drop(client);
    for left in [2, 0] {
        let report = ask(&fixture, Duration::ZERO).await.unwrap();
        assert_eq!((report.state, report.connected.count, report.left), (DrainState::Drained, 0, left));
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stream_without_a_node_object_does_not_count() {
    let fixture = cluster().await;
    let mut first = fixture.joined("node-0").await;
    let mut deleted = fixture.connect(hello("deleted")).await;
    deleted.welcome().await;
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    let report = ask(&fixture, LONG).await.unwrap();
    assert_eq!((report.state, report.connected.count), (DrainState::Drained, 1));
    assert!(report.stalled.first.is_empty(), "{:?}", report.stalled);
}

#[tokio::test(start_paused = true)]
async fn node_without_progress_counts_like_one_that_is_absent() {
    let fixture = cluster().await;
    let (mut first, _second) = (fixture.joined("node-0").await, fixture.joined("node-1").await);
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    let begun = Instant::now();
    let report = ask(&fixture, LONG).await.unwrap();
    assert!((9..12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!((report.state, report.connected.count, report.cluster.count), (DrainState::Drained, 1, 2));
    assert_eq!((&report.stalled.first[..], report.stalled.count), (&["node-1".into()][..], 1));
}

#[tokio::test(start_paused = true)]
async fn node_that_makes_progress_is_waited_for() {
    let fixture = cluster().await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    fixture.update(pods(&[-1, 2])).await;
    client.batches().await;
    client.ack_programmed(before).await;
    let mut asked = ask(&fixture, LONG);
    for _ in 0..3 {
        client.bookmark().await;
        client.ack_programmed(before).await;
    }
    is_waiting(&mut asked).await;
    client.ack().await;
    assert_eq!(asked.await.unwrap().state, DrainState::Drained);
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
        assert_ne!(state(&fixture).await, DrainState::Drained);
        client.bookmark().await;
        client.ack_programmed(before).await;
    }
    let report = ask(&fixture, Duration::ZERO).await.unwrap();
    assert_eq!((report.state, &report.stalled.first[..]), (DrainState::Drained, &["node-0".into()][..]));
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
        let report = ask(&fixture, Duration::ZERO).await.unwrap();
        assert_eq!(report.state == DrainState::Drained, seconds >= 10, "after {seconds} s: {report:?}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        second.disconnects().await.unwrap();
    }
    let report = ask(&fixture, Duration::ZERO).await.unwrap();
    assert_eq!((report.state, report.connected.count, report.left), (DrainState::Drained, 1, 0));
    // The one that was due meanwhile, too.
    first.is_up_to_date().await;
    first.is_up_to_date().await;
    let mut second = fixture.joined("node-1").await;
    fixture.update(pods(&[-1, 2, 3])).await;
    first.commit().await;
    second.commit().await;
    let report = ask(&fixture, LONG).await.unwrap();
    assert_eq!((report.state, report.connected.count), (DrainState::Drained, 2));
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
    assert!(matches!(state(&fixture).await, DrainState::Behind(_)));
    let mut client = fixture.connect(client.resume()).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Resume);
    client.bookmark().await;
    assert!(matches!(state(&fixture).await, DrainState::Behind(_)));
    client.ack_programmed(before).await;
    assert!(matches!(state(&fixture).await, DrainState::Behind(_)));
    client.ack().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(state(&fixture).await, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn other_address_counts_only_if_it_is_of_the_same_pod() {
    let fixture = cluster().await;
    let ends =
        |pod, address| of_pod(pod, SliceEndpoint { terminating: true, ready: false, ..endpoint(address, "node-9") });
    let ready = |pod, address| of_pod(pod, endpoint(address, "node-9"));
    let slice_of = |name, service, endpoints| put(slice(name, service, endpoints));
    fixture.update(put(service("secret", "10.96.0.2"))).await;
    fixture.update(slice_of("x", "web", vec![ends("own", "10.0.0.1"), ready("b", "10.0.0.2")])).await;
    fixture.update(slice_of("y", "secret", vec![ready("theirs", "10.0.0.7")])).await;
    fixture.committed().await;
    let asked = async |addresses: &[&str]| {
        let report = ask_about(&fixture, addresses, Duration::ZERO).await.unwrap();
        (report.state, report.services.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let web = || vec!["ns/web".to_owned()];
    assert_eq!(asked(&["10.0.0.1", "10.0.0.7"]).await, (DrainState::Drained, web()));
    // A stranger.
    assert_eq!(asked(&["192.0.2.1", "10.0.0.7"]).await, (DrainState::Unknown, Vec::new()));
    fixture.update(slice_of("z", "secret", vec![ready("own", "10.0.0.8")])).await;
    fixture.committed().await;
    let both = (DrainState::InUse, vec!["ns/secret".to_owned(), "ns/web".to_owned()]);
    assert_eq!(asked(&["10.0.0.1", "10.0.0.8"]).await, both);
}

#[tokio::test(start_paused = true)]
async fn slice_that_names_another_pod_does_not_hide_the_other_address() {
    let fixture = cluster().await;
    let ends =
        |pod, address| of_pod(pod, SliceEndpoint { terminating: true, ready: false, ..endpoint(address, "node-9") });
    let others = vec![of_pod("other", endpoint("10.0.0.2", "node-9"))];
    fixture.update(put(slice("x", "web", [vec![ends("own", "10.0.0.1")], others].concat()))).await;
    fixture.update(put(slice("z", "web", vec![of_pod("own", endpoint("fd00::1", "node-9"))]))).await;
    fixture.update(put(slice("theirs", "web", vec![ends("theirs", "10.0.0.1")]))).await;
    fixture.committed().await;
    for addresses in [&["10.0.0.1"][..], &["10.0.0.1", "fd00::1"]] {
        let report = ask_about(&fixture, addresses, Duration::ZERO).await.unwrap();
        assert_eq!(report.state, DrainState::InUse, "{addresses:?}");
    }
    fixture.update(put(slice("z", "web", vec![ends("own", "fd00::1")]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::Drained);
    // More than it can be.
    let many = ["a", "b", "c", "d"].map(|pod| ends(pod, "10.0.0.1"));
    fixture.update(put(slice("theirs", "web", many.to_vec()))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::InUse);
}

#[tokio::test(start_paused = true)]
async fn slices_that_list_an_address_many_times_cost_their_sum() {
    let fixture = cluster().await;
    let slices = 20;
    for number in 0..slices {
        let entry = SliceEndpoint { terminating: true, ready: false, ..endpoint("10.0.0.1", "node-9") };
        let entries = vec![of_pod("own", entry); 1000];
        fixture.update(put(slice(&format!("many-{number}"), "web", entries))).await;
    }
    fixture.committed().await;
    let begun = std::time::Instant::now();
    state(&fixture).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}: for each of {slices},000 entries all were looked at");
}

#[tokio::test(start_paused = true)]
async fn pod_of_both_families_is_drained_when_the_slices_of_both_say_that_it_ends() {
    let fixture = cluster().await;
    let slice_of = |name, addresses: [&str; 2], ends: bool| {
        let own = SliceEndpoint { ready: !ends, terminating: ends, ..endpoint(addresses[0], "node-9") };
        put(slice(name, "web", vec![of_pod("own", own), of_pod("other", endpoint(addresses[1], "node-9"))]))
    };
    fixture.update(slice_of("x", ["10.0.0.1", "10.0.0.2"], true)).await;
    fixture.update(slice_of("z", ["fd00::1", "fd00::2"], false)).await;
    fixture.committed().await;
    for asked in ["10.0.0.1", "fd00::1"] {
        assert_eq!(ask_about(&fixture, &[asked], Duration::ZERO).await.unwrap().state, DrainState::InUse, "{asked}");
    }
    fixture.update(slice_of("z", ["fd00::1", "fd00::2"], true)).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn other_address_of_a_pod_is_searched_in_slices_of_the_other_family() {
    let fixture = cluster().await;
    let own = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.1", "node-9") };
    let others = (0..250).map(|n| endpoint(&format!("10.0.1.{n}"), "node-9"));
    let endpoints = std::iter::once(of_pod("own", own)).chain(others).collect();
    fixture.update(put(slice("x", "web", endpoints))).await;
    fixture.update(put(slice("z", "web", vec![of_pod("own", endpoint("fd00::1", "node-9"))]))).await;
    fixture.committed().await;
    take_steps();
    assert_eq!(state(&fixture).await, DrainState::InUse);
    assert_eq!(take_steps(), 1);
}

#[tokio::test(start_paused = true)]
async fn custom_slice_does_not_keep_a_pod_that_another_slice_names() {
    let fixture = cluster().await;
    fixture.update(put(service("api", "10.96.0.2"))).await;
    fixture.update(put(slice("y", "api", vec![endpoint("10.0.0.1", "node-9"), endpoint("10.0.0.2", "node-9")]))).await;
    fixture.update(pods(&[-1, 2])).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::InUse, "no slice names the pod");
    let ends = SliceEndpoint { ready: false, terminating: true, ..endpoint("10.0.0.1", "node-9") };
    let other = of_pod("other", endpoint("10.0.0.2", "node-9"));
    fixture.update(put(slice("x", "web", vec![of_pod("own", ends), other]))).await;
    fixture.committed().await;
    assert_eq!(state(&fixture).await, DrainState::Drained);
}

#[tokio::test(start_paused = true)]
async fn questions_about_a_pod_share_a_decision_for_each_commit() {
    let fixture = cluster().await;
    let (mut first, mut second) = (fixture.joined("node-0").await, fixture.joined("node-1").await);
    let decisions = || fixture.frontend.context.cluster.use_decisions();
    let asked: Vec<_> = (0..32).map(|_| ask(&fixture, LONG)).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(decisions(), 1);
    fixture.update(pods(&[-1, 2])).await;
    first.commit().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    second.commit().await;
    for asked in asked {
        assert_eq!(asked.await.unwrap().state, DrainState::Drained);
    }
    assert!(decisions() <= 3, "{}", decisions());
}

//! Streams over channels against a running frontend, with paused time.

mod client;
mod drain;
mod outdated;
mod protocol_errors;
mod repair;
mod startup_taint;
mod unfinished;

use std::time::{Duration, SystemTime};

use proto::model::{Ack, Bookmark, ClientMessage, Hello, Operation, Revision, Role, ServerMessage, SyncMode};

use tokio::time::Instant;

use crate::{
    Config, SessionError,
    events::EventReport,
    object::{ClusterObject, ObjectKind, ObjectName, SliceEndpoint, SliceObject, SourceUpdate},
    testing::{endpoint, hello, initial, ip, node, put, service, slice},
};

use self::client::{Client, Fixture};

fn web(last: impl IntoIterator<Item = u8>) -> SliceObject {
    let endpoints = last.into_iter().map(|last| endpoint(&format!("10.0.0.{last}"), "node-9"));
    slice("x", "web", endpoints.collect())
}

fn small() -> Vec<ClusterObject> {
    vec![service("web", "10.96.0.1").into(), web(1..=5).into(), node("node-0", "zone-a").into()]
}

/// Many services with endpoints on every node.
fn large() -> Vec<ClusterObject> {
    let services = (0..100u8).flat_map(|number| {
        let endpoints: Vec<SliceEndpoint> =
            (0..100u8).map(|last| endpoint(&format!("10.1.{number}.{last}"), &format!("node-{}", last % 3))).collect();
        let name = format!("s{number}");
        let service = service(&name, &format!("10.96.1.{number}"));
        [ClusterObject::from(service), slice(&name, &name, endpoints).into()]
    });
    services.collect()
}

#[tokio::test(start_paused = true)]
async fn welcome_waits_until_every_kind_is_listed() {
    let fixture = Fixture::new(Config::default());
    let mut client = fixture.connect(hello("node-0")).await;
    let [nodes, services, slices, service_cidrs] = initial(small()).try_into().unwrap();
    fixture.update(nodes).await;
    fixture.update(services).await;
    fixture.update(service_cidrs).await;
    client.receives_nothing(Duration::from_secs(3600)).await;
    assert!(!fixture.ready.is_ready());
    fixture.update(slices).await;
    assert_eq!(client.welcome().await, SyncMode::Snapshot);
    client.commit().await;
    assert!(fixture.ready.is_ready());
    assert_eq!(client.replica.state.services.len(), 1);
    assert_eq!(client.replica.state.node, Some(node("node-0", "zone-a")));
}

#[tokio::test(start_paused = true)]
async fn snapshot_of_an_empty_cluster_resets_all_buckets() {
    let fixture = Fixture::of(Vec::new()).await;
    let mut client = fixture.connect(hello("node-0")).await;
    assert_eq!(client.welcome().await, SyncMode::Snapshot);
    let batches = client.batches().await;
    let resets = batches.iter().flat_map(|batch| &batch.operations);
    let resets = resets.filter(|operation| matches!(operation, Operation::ResetBucket(_)));
    assert_eq!(resets.count(), proto::digest::BUCKETS);
    assert!(batches.last().unwrap().commit);
    assert!(client.replica.state.services.is_empty() && client.replica.state.node.is_some());
}

#[tokio::test(start_paused = true)]
async fn snapshot_is_split_and_the_last_batch_commits() {
    let fixture = Fixture::of(large()).await;
    let mut client = fixture.connect(hello("node-1")).await;
    client.welcome().await;
    let batches = client.batches().await;
    assert!(batches.len() > 2, "{} batches", batches.len());
    let (last, parts) = batches.split_last().unwrap();
    assert!(last.commit && parts.iter().all(|batch| !batch.commit));
    assert!(client.largest < 900 << 10);
    assert!(batches.iter().all(|batch| batch.base == Revision(0) && batch.target == last.target));
    assert_eq!(client.replica.state.services.len(), 100);
    client.ack().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn change_is_sent_as_difference_and_at_once_after_a_quiet_period() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    let start = Instant::now();
    fixture.update(put(web(1..=6))).await;
    let batches = client.batches().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!((batch.base, batch.target), (before, Revision(before.0 + 1)));
    assert!(matches!(&batch.operations[..], [Operation::ChangePool { add, .. }] if add[0].address == ip("10.0.0.6")));
}

#[tokio::test(start_paused = true)]
async fn changes_under_load_are_batched() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let before = client.replica.revision;
    for last in 6..=20 {
        fixture.update(put(web(1..=last))).await;
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    while client.replica.state.services.values().next().unwrap().cluster.v4.len() < 20 {
        client.commit().await;
    }
    let commits = client.replica.revision.0 - before.0;
    assert!((2..=4).contains(&commits), "{commits} commits in 15 ms at 10 ms each");
}

#[tokio::test(start_paused = true)]
async fn slow_node_is_sent_all_commits_since_at_once() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.update(put(web(1..=6))).await;
    client.batches().await;
    for last in 7..=9 {
        fixture.update(put(web(2..=last))).await;
        fixture.committed().await;
    }
    fixture.update(put(service("short", "10.96.0.9"))).await;
    fixture.committed().await;
    fixture.update(SourceUpdate::Delete(ObjectKind::Service, ObjectName::new("ns", "short"))).await;
    fixture.committed().await;
    client.receives_nothing(Duration::from_secs(60)).await;
    client.ack().await;
    let batches = client.batches().await;
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!(batch.target.0 - batch.base.0, 5);
    let [
        Operation::ChangePool { add: first, remove, .. },
        Operation::ChangePool { add: second, .. },
        Operation::ChangePool { add: third, .. },
        Operation::PutServicePort(_),
        Operation::RemoveServicePort(_),
    ] = &batch.operations[..]
    else {
        panic!("{batch:?}")
    };
    assert_eq!((first.len() + second.len() + third.len(), remove.len()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn idle_stream_gets_bookmarks_and_no_changes_of_other_nodes() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let sent = client.replica.revision;
    fixture.update(put(node("node-7", "zone-b"))).await;
    let now = fixture.committed().await;
    assert!(now > sent);
    client.receives_nothing(Duration::from_millis(9_900)).await;
    let Bookmark { revision, digest, .. } = client.bookmark().await;
    assert_eq!((revision, digest), (now, client.replica.state.digests().total()));
    client.ack().await;
    fixture.update(put(node("node-7", ""))).await;
    fixture.committed().await;
    fixture.update(put(web(1..=4))).await;
    let batches = client.batches().await;
    assert_eq!(batches[0].base, now, "base is the last revision sent to the client");
}

#[tokio::test(start_paused = true)]
async fn resume_sends_the_difference() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    let resume = client.resume();
    fixture.update(put(web(1..=6))).await;
    fixture.committed().await;
    let mut client = fixture.connect(resume).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Resume);
    let batches = client.batches().await;
    assert!(matches!(&batches[0].operations[..], [Operation::ChangePool { .. }]));
    client.ack().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn resume_without_a_difference_sends_a_bookmark() {
    let fixture = Fixture::of(small()).await;
    let client = fixture.joined("node-0").await;
    let mut client = fixture.connect(client.resume()).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Resume);
    let Bookmark { revision, digest, .. } = client.bookmark().await;
    assert_eq!((revision, digest), (client.replica.revision, client.replica.state.digests().total()));
    client.ack().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn another_frontend_with_the_same_state_sends_an_empty_commit() {
    let client = Fixture::of(small()).await.joined("node-0").await;
    let other = Fixture::of(small()).await;
    let mut client = other.connect(client.resume()).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Repair);
    let batches = client.batches().await;
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert!(batch.commit && batch.operations.is_empty(), "the revision is sent");
    assert_eq!(batch.target, other.revision());
}

#[tokio::test(start_paused = true)]
async fn another_frontend_repairs_only_what_differs() {
    let client = Fixture::of(large()).await.joined("node-0").await;
    let mut objects = large();
    objects.retain(|object| !matches!(object, ClusterObject::Service(service) if &*service.name.name == "s7"));
    let other = Fixture::of(objects).await;
    let mut client = other.connect(client.resume()).await.with_state(client.replica);
    assert_eq!(client.welcome().await, SyncMode::Repair);
    let batches = client.batches().await;
    let resets = batches.iter().flat_map(|batch| &batch.operations);
    let resets = resets.filter(|operation| matches!(operation, Operation::ResetBucket(_)));
    assert_eq!(resets.count(), 1);
    assert_eq!(client.replica.state.services.len(), 99);
    client.ack().await;
    client.is_up_to_date().await;
}

#[tokio::test(start_paused = true)]
async fn stuck_client_does_not_delay_others_and_ends_at_the_shutdown() {
    let fixture = Fixture::of(large()).await;
    let stuck = fixture.connect(hello("node-1")).await;
    let mut client = fixture.joined("node-0").await;
    for last in 6..=16 {
        fixture.update(put(slice("s1", "s1", vec![endpoint(&format!("10.9.0.{last}"), "node-0")]))).await;
        client.commit().await;
    }
    client.is_up_to_date().await;
    fixture.stop();
    drop(client);
    let Config { max_drain_delay, drain_grace, .. } = Config::default();
    let ended = stuck.ends_after(max_drain_delay + drain_grace).await;
    assert!(matches!(ended, Err(SessionError::Drained { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_drains_clients() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    fixture.stop();
    let ServerMessage::Drain(delay) = client.message().await else { panic!("no drain") };
    assert_eq!(delay, Duration::ZERO, "it has waited already");
    client.disconnects().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clients_receive_changes_until_they_are_drained() {
    let hour = Duration::from_secs(3600);
    let config = Config { max_drain_delay: hour, drain_delay_per_stream: hour, ..Config::default() };
    let fixture = Fixture::with(config, small()).await;
    let mut clients = vec![fixture.joined("node-0").await, fixture.joined("node-1").await];
    fixture.stop();
    for last in 6..=16 {
        fixture.update(put(web(1..=last))).await;
        for client in &mut clients {
            client.commit().await;
        }
    }
    let begin = Instant::now();
    let drained = clients.into_iter().map(async |mut client| {
        loop {
            match client.message().await {
                ServerMessage::Drain(_) => break,
                ServerMessage::Bookmark(Bookmark { revision, .. }) => {
                    client.received_up_to(revision);
                    client.ack().await;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(begin.elapsed() <= hour + Duration::from_secs(1));
        client.disconnects().await.unwrap();
    });
    futures::future::join_all(drained).await;
}

#[test]
fn few_clients_are_drained_at_once_and_many_within_seconds() {
    let config = Config::default();
    let delays = [0, 3, 1000, 5000, 100_000].map(|streams| config.drain_delay(streams).as_millis());
    assert_eq!(delays, [0, 3, 1000, 5000, 5000]);
}

#[tokio::test(start_paused = true)]
async fn streams_have_status_and_failures() {
    let fixture = Fixture::of(small()).await;
    let mut observer = hello("node-0");
    observer.role = Role::Observer;
    observer.backend = "watch".to_owned();
    let mut observer = fixture.connect(observer).await;
    observer.welcome().await;
    let mut client = fixture.joined("node-0").await;
    let key = client.replica.state.services.keys().next().unwrap().clone();
    let failure = proto::model::ServicePortFailure::rejected(key, "kernel error");
    let mut reports = fixture.frontend.context.events.receiver().unwrap();
    let made_up = proto::model::ServicePortKey::new("../kube-system", "web", "", proto::model::Protocol::Tcp);
    let made_up = proto::model::ServicePortFailure { key: made_up, ..failure.clone() };
    client.ack_with(vec![failure.clone(), made_up]).await;
    client.ack_with(vec![failure.clone()]).await;
    client.is_up_to_date().await;
    assert_eq!(reports.try_recv().unwrap(), EventReport::Failed("node-0".into(), failure.clone()));
    assert!(reports.try_recv().is_err(), "one report, and none for an unknown service port");
    let fleet = fixture.frontend.context.streams.fleet();
    let (backends, observers): (Vec<_>, _) = (fleet.backends().collect(), fleet.observers());
    let ([backend], [observing]) = (&backends[..], &observers[..]) else { panic!("{fleet:?}") };
    assert_eq!(backend.failures[..], [failure]);
    assert_eq!(backend.acked, fixture.revision());
    assert_eq!(observing.acked, Revision(0));
    assert_eq!(observing.backend, "watch");
    client.disconnects().await.unwrap();
    observer.disconnects().await.unwrap();
    assert_eq!(fixture.frontend.context.streams.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_looked_up_and_reported_are_bounded() {
    let fixture = Fixture::of(small()).await;
    let mut client = fixture.joined("node-0").await;
    let key = client.replica.state.services.keys().next().unwrap().clone();
    let mut reports = fixture.frontend.context.events.receiver().unwrap();
    let failure = |number| proto::model::ServicePortFailure::rejected(key.clone(), format!("error {number}"));
    client.ack_with((0..1_000).map(failure).collect()).await;
    client.is_up_to_date().await;
    assert_eq!(fixture.frontend.context.streams.fleet().backends().next().unwrap().failures.len(), 1_000);
    assert_eq!(std::iter::from_fn(|| reports.try_recv().ok()).count(), 512);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_work_on_a_node_is_bounded() {
    let fixture = Fixture::of(small()).await;
    let mut reports = fixture.frontend.context.events.receiver().unwrap();
    let mut client = fixture.joined("node-0").await;
    client.ack().await;
    let degraded: Vec<String> = (0..100).map(|number| format!("{number}{}", "ü".repeat(1_000))).collect();
    let ack = Ack { degraded, ..client.ack_of(None, Vec::new()) };
    // The second one changes nothing.
    client.send(ClientMessage::Ack(ack.clone())).await;
    client.send(ClientMessage::Ack(ack)).await;
    client.is_up_to_date().await;
    let fleet = fixture.frontend.context.streams.fleet();
    let degraded: Vec<usize> = fleet.backends().flat_map(|status| &status.degraded).map(String::len).collect();
    // One byte less than the limit: a character has two.
    assert_eq!(degraded, [511; 8]);
    let Ok(EventReport::Degraded(_, text)) = reports.try_recv() else { panic!("no report") };
    assert!(text.starts_with('0') && text.len() <= 512, "{}", text.len());
    assert!(reports.try_recv().is_err(), "one report");
    client.disconnects().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn start_event_is_created_for_backends_of_cluster_nodes() {
    let fixture = Fixture::of(small()).await;
    let mut reports = fixture.frontend.context.events.receiver().unwrap();
    let now = SystemTime::now();
    let hour_ago = now - Duration::from_secs(3600);
    let cases = [
        ("node-0", Role::Backend, Some(now), true),
        ("node-0", Role::Backend, Some(hour_ago), false),
        ("node-0", Role::Backend, None, false),
        ("node-0", Role::Observer, Some(now), false),
        ("made-up", Role::Backend, Some(now), false),
    ];
    for (node, role, started, is_reported) in cases {
        let mut client = fixture.connect(Hello { role, started, ..hello(node) }).await;
        client.welcome().await;
        let report = reports.try_recv().ok();
        let of_it = matches!(&report, Some(EventReport::Started(start)) if &*start.node == node && start.at == now);
        assert_eq!((report.is_some(), of_it), (is_reported, is_reported), "{node} {role:?} {started:?}: {report:?}");
        client.disconnects().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn client_in_the_same_process_receives_values() {
    let fixture = Fixture::of(small()).await;
    let (to_session, mut updates) = fixture.frontend.attach(hello("node-0"), fixture.shutdown.clone());
    assert!(matches!(updates.recv().await, Some(ServerMessage::Welcome(_))));
    let Some(ServerMessage::Batch(batch)) = updates.recv().await else { panic!("no batch") };
    let mut replica = Client::replica_of("node-0");
    batch.operations.into_iter().for_each(|operation| replica.state.apply(operation));
    assert!(batch.commit);
    assert_eq!(replica.state.digests(), fixture.frontend.context.cluster.log().digests("node-0"));
    drop(to_session);
    assert!(updates.recv().await.is_none());
    let (_events, updates) = fixture.frontend.attach(hello("node-0"), fixture.shutdown.clone());
    drop(updates);
    while fixture.frontend.context.streams.fleet().backends().next().is_some() {
        tokio::task::yield_now().await;
    }
}

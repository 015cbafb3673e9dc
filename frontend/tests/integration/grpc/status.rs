//! The call `Status` over real connections: lag, disconnected nodes, and waiting for a revision.

use std::time::{Duration, Instant};

use fairlead_frontend::{
    Config,
    object::{ClusterObject, ObjectKind, ObjectName, Origin, ParsedObject, SourceUpdate},
};
use proto::{
    model::NodeInfo,
    v1::{self, client_message, fairlead_client::FairleadClient},
};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::{Server, Stream, TIMEOUT, Transport, cluster, hello, slice};

/// Far longer than any test here takes.
const LONG: Duration = Duration::from_secs(60);

fn node(name: &str) -> ParsedObject {
    let node = NodeInfo { eligible: true, ..NodeInfo::unknown(name) };
    ParsedObject {
        kind: ObjectKind::Node,
        name: ObjectName::new("", name),
        object: Some(ClusterObject::Node(node.into())),
        problems: Vec::new(),
        origin: Origin::default(),
    }
}

/// A cluster with these nodes, none of them connected.
async fn server(nodes: &[&str]) -> Server {
    let mut updates = cluster(3);
    updates[0] = SourceUpdate::Replace(ObjectKind::Node, nodes.iter().map(|name| node(name)).collect());
    let server = Server::start(Transport::Unix, Config::default(), updates).await;
    until(&server, |status| status.ready).await;
    server
}

async fn ask(server: &Server, request: v1::StatusRequest) -> Result<v1::StatusResponse, tonic::Status> {
    let mut client = FairleadClient::new(server.channel.clone());
    let answer = timeout(TIMEOUT, client.status(request)).await.expect("no answer");
    answer.map(tonic::Response::into_inner)
}

/// Requests the status until it is as wanted.
async fn until(server: &Server, wanted: impl Fn(&v1::StatusResponse) -> bool) -> v1::StatusResponse {
    let reached = async {
        loop {
            let status = server.status().await;
            if wanted(&status) {
                return status;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TIMEOUT, reached).await.expect("wrong status")
}

fn of<'a>(status: &'a v1::StatusResponse, node: &str) -> &'a v1::NodeStatus {
    status.nodes.iter().find(|status| status.node == node).unwrap()
}

/// Waits at most `wait` for a revision.
fn wait(until_revision: u64, wait: Duration) -> v1::StatusRequest {
    let wait_millis = u32::try_from(wait.as_millis()).unwrap();
    v1::StatusRequest { wait_millis, until_revision, ..v1::StatusRequest::default() }
}

/// Receives everything up to a commit, without acknowledging it.
async fn receive(stream: &mut Stream) -> u64 {
    stream.receive().await.unwrap().last().unwrap().target_revision
}

async fn ack(stream: &Stream, failures: Vec<v1::ServicePortFailure>) {
    let ack = v1::Ack { failures, ..super::ack(stream.number) };
    stream.send(client_message::Message::Ack(ack)).await;
}

#[tokio::test]
async fn disconnected_nodes_are_listed() {
    let server = server(&["node-1", "node-2"]).await;
    let status = server.status().await;
    assert_eq!((status.nodes_without_backend, status.programmed_on_all_nodes), (2, None));
    assert!(status.nodes.iter().all(|node| !node.connected && node.lag_micros > 0), "{:?}", status.nodes);
    let mut stream = server.hello(hello("node-2")).await;
    stream.commit().await;
    let status = until(&server, |status| of(status, "node-2").lag_micros == 0).await;
    assert_eq!(status.nodes_without_backend, 1);
    let names: Vec<_> = status.nodes.iter().map(|node| (node.node.as_str(), node.connected)).collect();
    assert_eq!(names, [("node-2", true), ("node-1", false)]);
    // A node that was removed from the cluster is no longer listed; one that disconnects is.
    server.updates.send(SourceUpdate::Delete(ObjectKind::Node, ObjectName::new("", "node-1"))).await.unwrap();
    until(&server, |status| status.nodes_without_backend == 0).await;
    let begun = Instant::now();
    drop(stream);
    let status = until(&server, |status| status.nodes_without_backend == 1).await;
    let lag = Duration::from_micros(of(&status, "node-2").lag_micros);
    assert!(lag <= begun.elapsed(), "{lag:?}");
}

#[tokio::test]
async fn observer_does_not_count_as_backend() {
    let server = server(&["node-1"]).await;
    let mut stream = server.hello(v1::Hello { role: v1::Role::Observer.into(), ..hello("node-1") }).await;
    receive(&mut stream).await;
    let status = until(&server, |status| status.nodes.len() == 2).await;
    assert_eq!((status.nodes_without_backend, status.programmed_on_all_nodes), (1, None));
    assert_eq!(status.nodes[0].role(), v1::Role::Observer);
}

#[tokio::test]
async fn node_without_ack_lags_since_the_commit() {
    let server = server(&["node-1", "node-2"]).await;
    let (mut acking, mut silent) = (server.hello(hello("node-1")).await, server.hello(hello("node-2")).await);
    acking.commit().await;
    silent.commit().await;
    let before = until(&server, |status| status.nodes.iter().all(|node| node.lag_micros == 0)).await;
    assert_eq!(before.programmed_on_all_nodes, Some(before.revision));
    let begun = Instant::now();
    server.updates.send(SourceUpdate::Apply(slice(1, 5))).await.unwrap();
    acking.commit().await;
    let revision = receive(&mut silent).await;
    let status = until(&server, |status| of(status, "node-1").programmed_revision == revision).await;
    assert_eq!(status.programmed_on_all_nodes, Some(before.revision));
    assert_eq!((of(&status, "node-1").lag_micros, of(&status, "node-2").acked_revision), (0, before.revision));
    // Later changes do not shorten the lag, which keeps growing.
    server.updates.send(SourceUpdate::Apply(slice(1, 6))).await.unwrap();
    acking.commit().await;
    let lag = |status: &v1::StatusResponse| Duration::from_micros(of(status, "node-2").lag_micros);
    let first = lag(&server.status().await);
    sleep(Duration::from_millis(20)).await;
    let second = lag(&server.status().await);
    assert!(second >= first + Duration::from_millis(20), "{first:?}, then {second:?}");
    assert!(second <= begun.elapsed());
    // The next change is sent once the first is acknowledged.
    ack(&silent, Vec::new()).await;
    silent.commit().await;
    let after = until(&server, |status| status.programmed_on_all_nodes == Some(status.revision)).await;
    assert_eq!(of(&after, "node-2").lag_micros, 0);
}

#[tokio::test]
async fn change_without_effect_on_a_node_counts_as_programmed() {
    let server = server(&["node-1"]).await;
    let mut stream = server.hello(hello("node-1")).await;
    stream.commit().await;
    let before = until(&server, |status| of(status, "node-1").lag_micros == 0).await;
    server.updates.send(SourceUpdate::Apply(node("node-2"))).await.unwrap();
    let after = until(&server, |status| status.revision > before.revision).await;
    let after = ask(&server, wait(after.revision, LONG)).await.unwrap();
    assert_eq!(after.programmed_on_all_nodes, Some(after.revision));
    let node = of(&after, "node-1");
    assert_eq!((node.acked_revision, node.programmed_revision), (before.revision, after.revision));
}

#[tokio::test]
async fn response_waits_until_the_revision_is_programmed() {
    let server = server(&["node-1"]).await;
    let mut stream = server.hello(hello("node-1")).await;
    let revision = receive(&mut stream).await;
    until(&server, |status| of(status, "node-1").connected).await;
    let begun = Instant::now();
    let late = ask(&server, wait(revision, Duration::from_millis(50))).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(late.programmed_on_all_nodes, Some(0));
    let waiting = ask(&server, wait(0, LONG));
    let acking = async {
        sleep(Duration::from_millis(20)).await;
        ack(&stream, Vec::new()).await;
    };
    let (reached, ()) = tokio::join!(waiting, acking);
    assert_eq!(reached.unwrap().programmed_on_all_nodes, Some(revision));
    assert_eq!(ask(&server, wait(revision, LONG)).await.unwrap().programmed_on_all_nodes, Some(revision));
    // A future revision is waited for too.
    let waiting = ask(&server, wait(revision + 1, LONG));
    let changing = async {
        server.updates.send(SourceUpdate::Apply(slice(1, 5))).await.unwrap();
        stream.commit().await;
    };
    let (reached, _) = tokio::join!(waiting, changing);
    assert_eq!(reached.unwrap().programmed_on_all_nodes, Some(revision + 1));
}

#[tokio::test]
async fn waiting_ends_for_another_epoch_and_at_the_shutdown() {
    let server = server(&["node-1"]).await;
    let epoch = server.status().await.epoch;
    let other = v1::StatusRequest { until_epoch: epoch ^ 1, ..wait(1, LONG) };
    assert_eq!(ask(&server, other).await.unwrap_err().code(), Code::FailedPrecondition);
    let own = v1::StatusRequest { until_epoch: epoch, ..wait(1 << 40, LONG) };
    let stopping = async {
        sleep(Duration::from_millis(20)).await;
        server.trigger.fire();
    };
    let (answer, ()) = tokio::join!(ask(&server, own), stopping);
    assert!(answer.unwrap().programmed_on_all_nodes < Some(1 << 40));
}

#[tokio::test]
async fn failures_are_listed_completely_for_a_single_node() {
    let server = server(&["node-1", "node-2"]).await;
    let mut stream = server.hello(hello("node-1")).await;
    receive(&mut stream).await;
    let failure = |number: usize| v1::ServicePortFailure {
        key: Some(v1::ServicePortKey {
            namespace: "ns".to_owned(),
            name: format!("s{number}"),
            port_name: String::new(),
            protocol: v1::Protocol::Tcp.into(),
        }),
        reason: "no such module".to_owned(),
        retryable: number.is_multiple_of(2),
        kind: v1::FailureKind::Program.into(),
    };
    ack(&stream, (0..25).map(failure).collect()).await;
    let all = until(&server, |status| of(status, "node-1").failure_count > 0).await;
    let node = of(&all, "node-1");
    assert_eq!((node.failure_count, node.failures.len()), (25, 10));
    assert_eq!(node.failures[3], failure(3));
    let one = v1::StatusRequest { node: "node-1".to_owned(), ..v1::StatusRequest::default() };
    let one = ask(&server, one).await.unwrap();
    assert_eq!((one.nodes.len(), one.nodes[0].failures.len()), (1, 25));
}

#[tokio::test]
async fn last_error_is_kept_until_the_next_ack() {
    let server = server(&["node-1"]).await;
    let mut stream = server.hello(hello("node-1")).await;
    receive(&mut stream).await;
    stream.send(client_message::Message::Hello(hello("node-1"))).await;
    let status = until(&server, |status| !of(status, "node-1").last_error.is_empty()).await;
    assert_eq!(of(&status, "node-1").last_error, "a second Hello on one stream: open another stream instead");
    let mut stream = server.hello(hello("node-1")).await;
    receive(&mut stream).await;
    assert_ne!(of(&server.status().await, "node-1").last_error, "");
    ack(&stream, Vec::new()).await;
    until(&server, |status| of(status, "node-1").last_error.is_empty()).await;
}

/// Its node would connect again and again without a reason.
#[tokio::test]
async fn message_that_cannot_be_read_ends_the_stream_with_an_error() {
    let server = server(&["node-1"]).await;
    let mut stream = server.hello(hello("node-1")).await;
    receive(&mut stream).await;
    let failure = v1::ServicePortFailure { reason: "x".repeat(2 << 20), ..v1::ServicePortFailure::default() };
    ack(&stream, vec![failure]).await;
    let rejected = stream.rejected().await;
    assert_eq!(rejected.code(), Code::OutOfRange, "{rejected}");
    let status = until(&server, |status| !of(status, "node-1").last_error.is_empty()).await;
    assert_eq!(of(&status, "node-1").last_error, rejected.message());

    // A string where a ClientMessage has the Hello.
    let malformed = v1::Problem { object: "x".to_owned(), ..v1::Problem::default() };
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/fairlead.v1.Fairlead/Watch");
    let codec = tonic_prost::ProstCodec::<v1::Problem, v1::ServerMessage>::default();
    let call = client.streaming(tonic::Request::new(tokio_stream::once(malformed)), path, codec);
    let rejected = call.await.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(rejected.code(), Code::InvalidArgument, "{rejected}");
}

#[tokio::test]
async fn newest_stream_represents_the_node() {
    let server = server(&["node-1"]).await;
    let mut old = server.hello(hello("node-1")).await;
    receive(&mut old).await;
    let mut new = server.hello(hello("node-1")).await;
    new.commit().await;
    let status = until(&server, |status| status.programmed_on_all_nodes == Some(status.revision)).await;
    assert_eq!((status.nodes.len(), status.nodes_without_backend), (2, 0));
    // When it ends, the older one does.
    drop(new);
    let status = until(&server, |status| status.nodes.len() == 1).await;
    assert_eq!((status.programmed_on_all_nodes, status.nodes_without_backend), (Some(0), 0));
}

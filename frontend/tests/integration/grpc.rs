//! Streams over real connections: a unix socket and loopback TCP.

mod catch_up;
mod endpoints;
mod metrics;
mod missing_nodes;
mod rebuild_queue;
mod status;

use std::{path::PathBuf, time::Duration};

use fairlead_frontend::{
    Config, Frontend, Listener,
    object::{ClusterObject, ObjectName, ObjectProblem, ParsedObject, SourceUpdate},
};
use hyper_util::rt::TokioIo;
use proto::v1::{self, client_message, fairlead_client::FairleadClient, server_message};
use runtime::Trigger;
use tokio::{net::UnixStream, sync::mpsc, task::JoinHandle, time::timeout};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use crate::{
    cluster::{ack, cluster_on, hello, service, slice_on},
    running::RunningFrontend,
    stream::Stream,
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The node of all endpoints.
const ENDPOINT_NODE: &str = "node-1";
const SOCKET: &str = "frontend.sock";

struct Server {
    frontend: Frontend,
    updates: mpsc::Sender<SourceUpdate>,
    trigger: Trigger,
    serving: JoinHandle<anyhow::Result<()>>,
    channel: Channel,
    directory: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Unix,
    Tcp,
}

fn slice(number: u8, endpoints: u16) -> ParsedObject {
    slice_on(ENDPOINT_NODE, number, endpoints)
}

fn cluster(services: u8) -> Vec<SourceUpdate> {
    cluster_on(ENDPOINT_NODE, services)
}

async fn unix_channel(path: PathBuf) -> Channel {
    let connect = move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    let connector = tower::service_fn(connect);
    Endpoint::from_static("http://frontend").connect_with_connector(connector).await.unwrap()
}

impl Server {
    async fn start(transport: Transport, config: Config, updates: Vec<SourceUpdate>) -> Self {
        let running = RunningFrontend::start(config);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SOCKET);
        let address = match transport {
            Transport::Unix => format!("unix:{}", path.display()),
            Transport::Tcp => "127.0.0.1:0".to_owned(),
        };
        let listener = Listener::bind(&address).await.unwrap();
        let tcp = if let Listener::Tcp(_, address) = &listener { Some(*address) } else { None };
        let serving = running.serve(listener);
        let channel = match tcp {
            Some(address) => Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap(),
            None => unix_channel(path).await,
        };
        running.send(updates).await;
        let RunningFrontend { frontend, updates, trigger, .. } = running;
        Self { frontend, updates, trigger, serving, channel, directory }
    }

    async fn of(services: u8) -> Self {
        Self::start(Transport::Unix, Config::default(), cluster(services)).await
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    async fn hello(&self, hello: v1::Hello) -> Stream {
        Stream::hello(self.channel.clone(), hello).await.unwrap()
    }

    async fn status(&self) -> v1::StatusResponse {
        let mut client = FairleadClient::new(self.channel.clone());
        client.status(v1::StatusRequest::default()).await.unwrap().into_inner()
    }
}

/// The next batch, which must commit; bookmarks before it are acknowledged.
async fn change(stream: &mut Stream) -> v1::Batch {
    loop {
        match stream.next().await.unwrap().unwrap() {
            server_message::Message::Batch(batch) if batch.commit => return batch,
            server_message::Message::Bookmark(_) => drop(stream.ack().await),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn streams_receive_changes_over_both_transports() {
    for transport in [Transport::Unix, Transport::Tcp] {
        let server = Server::start(transport, Config::default(), cluster(2)).await;
        let mut stream = server.hello(hello("node-1")).await;
        let Some(server_message::Message::Welcome(welcome)) = stream.next().await.unwrap() else {
            panic!("no welcome")
        };
        assert_eq!((welcome.mode(), welcome.protocol_version), (v1::SyncMode::Snapshot, 1));
        let snapshot = stream.commit().await;
        server.updates.send(SourceUpdate::Apply(slice(1, 1001))).await.unwrap();
        let change = stream.commit().await;
        assert_eq!(change[0].base_revision, snapshot[0].target_revision);
        assert_eq!(change[0].operations.len(), 2, "the cluster pool and the local one");
    }
}

#[tokio::test]
async fn other_protocol_version_is_rejected() {
    let server = Server::of(1).await;
    let newer = v1::Hello { protocol_version: 2, ..hello("node-1") };
    let status = server.hello(newer).await.rejected().await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(
        status.message(),
        "no common protocol version: the client supports version 2, this frontend version 1; upgrade the frontend"
    );
}

#[tokio::test]
async fn hello_without_a_node_is_rejected() {
    let server = Server::of(1).await;
    let status = server.hello(hello("")).await.rejected().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "hello.node: is empty: set the name of the node");
}

#[tokio::test]
async fn protocol_error_ends_the_stream_with_a_status() {
    let server = Server::of(1).await;
    let mut stream = server.hello(hello("node-1")).await;
    stream.commit().await;
    stream.send(client_message::Message::Hello(hello("node-1"))).await;
    let status = stream.rejected().await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "a second Hello on one stream: open another stream instead")
    );
}

#[tokio::test]
async fn client_without_hello_is_rejected() {
    let config = Config { hello_deadline: Duration::from_millis(50), ..Config::default() };
    let server = Server::start(Transport::Tcp, config, cluster(1)).await;
    let status = Stream::open(server.channel.clone()).await.rejected().await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::DeadlineExceeded, "no Hello within 50ms: send Hello as soon as the stream is open")
    );
}

#[tokio::test]
async fn client_that_does_not_read_does_not_delay_others() {
    let config = Config {
        max_drain_delay: Duration::from_millis(100),
        drain_grace: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(Transport::Unix, config, cluster(200)).await;
    // Each has its own connection, as nodes have: on one connection they would share a flow-control window.
    let mut stuck = Vec::new();
    for _ in 0..3 {
        let channel = unix_channel(server.socket()).await;
        stuck.push(Stream::hello(channel, hello("node-1")).await.unwrap());
    }
    let mut stream = server.hello(hello("node-2")).await;
    stream.commit().await;
    for endpoints in 900..950 {
        server.updates.send(SourceUpdate::Apply(slice(7, endpoints))).await.unwrap();
        let batches = stream.commit().await;
        assert_eq!(batches.len(), 1);
    }
    let status = server.status().await;
    assert_eq!(status.nodes.len(), 4);
    let behind = status.nodes.iter().filter(|node| node.node == "node-1");
    assert!(behind.clone().all(|node| node.acked_revision == 0), "they did not read: {:?}", behind.collect::<Vec<_>>());
    server.trigger.fire();
    drop(stream);
    timeout(TIMEOUT, server.serving).await.expect("the server has not stopped").unwrap().unwrap();
}

#[tokio::test]
async fn status_has_counts_streams_and_problems() {
    let mut taken = service(1);
    taken.name = ObjectName::new("ns", "zz");
    taken.problems =
        vec![ObjectProblem { field: "spec.externalIPs[0]".to_owned(), message: "is no address".to_owned() }];
    if let Some(ClusterObject::Service(service)) = &mut taken.object {
        service.name = taken.name.clone();
    }
    let server = Server::of(3).await;
    server.updates.send(SourceUpdate::Apply(taken)).await.unwrap();
    let mut stream = server.hello(v1::Hello { role: v1::Role::Observer.into(), ..hello("node-1") }).await;
    stream.commit().await;
    // A second commit is only sent after the first ack has been read.
    server.updates.send(SourceUpdate::Apply(slice(1, 5))).await.unwrap();
    stream.commit().await;
    let status = server.status().await;
    assert_eq!((status.service_ports, status.endpoints), (4, 2005));
    assert_ne!(status.epoch, 0);
    let [node] = &status.nodes[..] else { panic!("{:?}", status.nodes) };
    assert_eq!((node.node.as_str(), node.role(), node.mode()), ("node-1", v1::Role::Observer, v1::SyncMode::Snapshot));
    assert!(node.acked_revision > 0 && node.connected_micros > 0);
    let problems: Vec<_> = status.problems.iter().map(|problem| (&*problem.object, &*problem.field)).collect();
    assert_eq!(problems, [("Service ns/zz", "spec.clusterIPs"), ("Service ns/zz", "spec.externalIPs[0]")]);
}

#[tokio::test]
async fn shutdown_drains_streams() {
    let config = Config {
        max_drain_delay: Duration::from_millis(200),
        drain_grace: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(Transport::Tcp, config, cluster(1)).await;
    let mut stays = server.hello(hello("node-1")).await;
    let mut leaves = server.hello(hello("node-2")).await;
    stays.commit().await;
    leaves.commit().await;
    server.trigger.fire();
    for stream in [&mut stays, &mut leaves] {
        let answer = stream.next().await.unwrap();
        let Some(server_message::Message::Drain(drain)) = answer else { panic!("{answer:?}") };
        assert_eq!(drain.max_delay_millis, 0, "it has waited already");
    }
    drop(leaves);
    timeout(TIMEOUT, server.serving).await.expect("the server has not stopped").unwrap().unwrap();
    let status = stays.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().starts_with("the frontend shuts down"), "{status}");
}

#[tokio::test]
async fn socket_file_is_replaced_only_if_no_process_listens() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", directory.path().join("run/frontend.sock").display());
    let listener = Listener::bind(&address).await.unwrap();
    let error = format!("{:#}", Listener::bind(&address).await.unwrap_err());
    let expected =
        format!("another process (pid {}) listens there; set another address with --listen", std::process::id());
    assert!(error.ends_with(&expected), "{error}");
    drop(listener);
    Listener::bind(&address).await.unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = format!("{:#}", Listener::bind(&format!("unix:{}", file.display())).await.unwrap_err());
    assert!(error.contains("the file exists and is not a socket; set another"), "{error}");
}

//! The gRPC client with a real server, over a Unix socket and over loopback.

mod tls;

use std::{
    convert::Infallible,
    path::PathBuf,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use proto::{
    PROTOCOL_VERSION,
    digest::Digest,
    encoded::EncodedMessage,
    model::{Ack, Batch, Bookmark, Epoch, Operation, Revision, ServerMessage, SourceVersion, SyncMode, Welcome},
    v1::{self, server},
};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::Barrier,
};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    metadata::MetadataMap,
    server::NamedService,
    transport::Server,
};

use super::*;
use crate::testing::{mk_state, operations_between, synthetic};

/// A service that hands each stream to the test.
struct Scripted(mpsc::UnboundedSender<Peer>);

struct Peer {
    metadata: MetadataMap,
    received: Streaming<v1::ClientMessage>,
    sender: mpsc::Sender<Result<EncodedMessage, Status>>,
}

#[tonic::async_trait]
impl server::Fairlead for Scripted {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<EncodedMessage, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, messages) = mpsc::channel(64);
        let peer = Peer { metadata: request.metadata().clone(), received: request.into_inner(), sender };
        self.0.send(peer).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("not part of the test"))
    }
}

/// A server on a Unix socket, and its address.
struct Frontend {
    _dir: tempfile::TempDir,
    address: String,
    peers: mpsc::UnboundedReceiver<Peer>,
    task: tokio::task::JoinHandle<()>,
}

fn serve() -> Frontend {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("fairlead.sock");
    let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let (opened, peers) = mpsc::unbounded_channel();
    let server = Server::builder().add_service(server::FairleadServer::new(Scripted(opened)));
    let task = tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
    Frontend { address: format!("unix:{}", path.display()), _dir: dir, peers, task }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Frontend {
    async fn session(&mut self, grpc: &mut Grpc) -> (Session, Peer) {
        let session = grpc.connect(mk_hello()).await.unwrap();
        (session, self.peers.recv().await.unwrap())
    }
}

impl Peer {
    async fn receive(&mut self) -> ClientMessage {
        self.received.message().await.unwrap().unwrap().try_into().unwrap()
    }

    async fn send(&self, message: &ServerMessage) {
        self.sender.send(Ok(EncodedMessage::new(message))).await.unwrap();
    }
}

async fn next_message(session: &mut Session) -> Option<ServerMessage> {
    session.messages.recv().await
}

fn mk_hello() -> Hello {
    let state = mk_state().build();
    Hello {
        version: PROTOCOL_VERSION,
        node: "node-1".into(),
        role: Default::default(),
        backend: "fake".to_owned(),
        backend_version: "1".to_owned(),
        resume: Some((Epoch(3), Revision(4))),
        digests: Some(Box::new(state.digests().clone())),
        source_version: SourceVersion(7),
        kind_versions: proto::model::KindVersions::default(),
        started: None,
    }
}

fn mk_welcome() -> ServerMessage {
    ServerMessage::Welcome(Welcome {
        epoch: Epoch(9),
        mode: SyncMode::Repair,
        source_version: SourceVersion(0),
        kind_versions: proto::model::KindVersions::default(),
        is_outdated: false,
    })
}

fn mk_grpc(endpoints: &[&str]) -> Grpc {
    let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    Grpc::new(GrpcOptions { endpoints, ..GrpcOptions::default() }).unwrap()
}

fn batch(operations: Vec<Operation>) -> ServerMessage {
    let (base, target) = (Revision(0), Revision(1));
    ServerMessage::Batch(Batch { base, target, operations, commit: true, ..Batch::default() })
}

#[tokio::test]
async fn messages_pass_in_both_directions() {
    let mut frontend = serve();
    let (mut session, mut peer) = frontend.session(&mut mk_grpc(&[&frontend.address.clone()])).await;
    assert_eq!(peer.receive().await, ClientMessage::Hello(mk_hello()));
    let operations = operations_between(&mk_state().build(), &synthetic(500, 4, crate::testing::Stack::Dual));
    let messages = [
        mk_welcome(),
        batch(operations),
        ServerMessage::Bookmark(Bookmark::new(Revision(1), Digest(5))),
        ServerMessage::DigestRequest,
        ServerMessage::Drain(Duration::from_secs(3)),
    ];
    for message in messages {
        peer.send(&message).await;
        assert_eq!(session.messages.recv().await, Some(message));
    }
    let state = mk_state().build();
    let replies = [
        ClientMessage::Ack(Ack { apply_time: Duration::from_micros(17), ..Ack::complete(1, Some(Digest(5))) }),
        ClientMessage::DigestResponse(Revision(1), Box::new(state.digests().clone())),
    ];
    for reply in replies {
        session.replies.send(reply.clone()).await.unwrap();
        assert_eq!(peer.receive().await, reply);
    }
}

#[tokio::test]
async fn either_end_can_end_the_session() {
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&frontend.address.clone()]);
    let (mut session, peer) = frontend.session(&mut grpc).await;
    drop(peer);
    assert_eq!(session.messages.recv().await, None);

    let (session, mut peer) = frontend.session(&mut grpc).await;
    peer.receive().await;
    drop(session);
    peer.sender.closed().await;
}

#[tokio::test]
async fn invalid_message_ends_the_session() {
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&frontend.address.clone()]);
    let good = Operation::ResetBucket(1);
    let bad = [
        // No digest bucket.
        EncodedMessage::new(&batch(vec![good.clone(), Operation::ResetBucket(200)])),
        // No protobuf.
        EncodedMessage::from_bytes([0xff; 16].as_slice().into()),
        // Above the decode limit.
        EncodedMessage::new(&batch(vec![good; 1 << 19])),
    ];
    for message in bad {
        let (mut session, peer) = frontend.session(&mut grpc).await;
        peer.send(&ServerMessage::DigestRequest).await;
        peer.sender.send(Ok(message)).await.unwrap();
        assert_eq!(next_message(&mut session).await, Some(ServerMessage::DigestRequest));
        assert_eq!(session.messages.recv().await, None);
    }
}

#[tokio::test]
async fn unreachable_frontends_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let unreachable = format!("unix:{}", dir.path().join("unreachable.sock").display());
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&unreachable, &frontend.address.clone(), &unreachable]);
    for _ in 0..4 {
        frontend.session(&mut grpc).await;
    }
    frontend.task.abort();
    frontend.peers.close();
    let error = mk_grpc(&[&unreachable]).connect(mk_hello()).await.unwrap_err();
    assert!(format!("{error:#}").contains("unreachable.sock"), "{error:#}");
}

#[tokio::test]
async fn successive_sessions_use_all_frontends() {
    let (mut one, mut two) = (serve(), serve());
    let mut grpc = mk_grpc(&[&one.address, &two.address]);
    for _ in 0..4 {
        grpc.connect(mk_hello()).await.unwrap();
    }
    for frontend in [&mut one, &mut two] {
        assert!(frontend.peers.recv().await.is_some());
        assert!(frontend.peers.recv().await.is_some());
    }
}

/// A frontend that is still listing objects accepts the stream and sends nothing.
#[tokio::test]
async fn ready_frontend_is_preferred() {
    let (mut not_ready, mut ready) = (serve(), serve());
    let welcome = mk_welcome();
    for _ in 0..3 {
        let mut grpc = mk_grpc(&[&not_ready.address, &ready.address]);
        let welcomed = async {
            let peer = ready.peers.recv().await.unwrap();
            peer.send(&welcome).await;
            peer
        };
        let (session, _peer) = tokio::join!(grpc.connect(mk_hello()), welcomed);
        assert_eq!(next_message(&mut session.unwrap()).await, Some(welcome.clone()));
    }
    // Without another frontend it is used.
    let mut grpc = mk_grpc(&[&not_ready.address]);
    let mut session = grpc.connect(mk_hello()).await.unwrap();
    let mut last = None;
    while let Ok(peer) = not_ready.peers.try_recv() {
        last = Some(peer);
    }
    last.unwrap().send(&welcome).await;
    assert_eq!(next_message(&mut session).await, Some(welcome));
}

/// A discovery with configured results, which counts its calls. Without a result it never answers.
#[derive(Debug, Default)]
struct FakeDiscovery(Mutex<(usize, Option<Vec<FrontendAddress>>)>);

impl FakeDiscovery {
    fn set(&self, found: &[&Frontend]) {
        let address = |frontend: &&Frontend| FrontendAddress { uri: frontend.address.clone(), server_name: None };
        self.0.lock().unwrap().1 = Some(found.iter().map(address).collect());
    }
}

impl std::fmt::Display for FakeDiscovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("kubernetes:kube-system/fairlead")
    }
}

impl Discover for FakeDiscovery {
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>> {
        let (calls, found) = &mut *self.0.lock().unwrap();
        *calls += 1;
        match found.clone() {
            Some(found) => Box::pin(future::ready(Ok(found))),
            None => Box::pin(future::pending()),
        }
    }
}

#[tokio::test]
async fn working_addresses_are_not_resolved_again() {
    let mut frontend = serve();
    let found = Arc::new(FakeDiscovery::default());
    found.set(&[&frontend]);
    let mut grpc = Grpc::new(GrpcOptions { discovery: vec![found.clone()], ..GrpcOptions::default() }).unwrap();
    frontend.session(&mut grpc).await;
    frontend.session(&mut grpc).await;
    assert_eq!(found.0.lock().unwrap().0, 1);
}

#[tokio::test]
async fn replacement_of_the_only_frontend_is_found_at_once() {
    let (mut old, mut new) = (serve(), serve());
    let found = Arc::new(FakeDiscovery::default());
    found.set(&[&old]);
    let mut grpc = Grpc::new(GrpcOptions { discovery: vec![found.clone()], ..GrpcOptions::default() }).unwrap();
    let session = old.session(&mut grpc).await;
    found.set(&[&new]);
    drop((session, old));
    new.session(&mut grpc).await;
    assert_eq!(found.0.lock().unwrap().0, 2, "resolved when the known address had failed");
}

#[tokio::test]
async fn known_frontend_is_used_while_discovery_does_not_answer() {
    let mut frontend = serve();
    let found = Arc::new(FakeDiscovery::default());
    found.set(&[&frontend]);
    let mut grpc = Grpc::new(GrpcOptions { discovery: vec![found.clone()], ..GrpcOptions::default() }).unwrap();
    frontend.session(&mut grpc).await;
    found.0.lock().unwrap().1 = None;
    let address = grpc.addresses().in_order().remove(0);
    for _ in 0..3 {
        grpc.addresses().failed(&address);
        frontend.session(&mut grpc).await;
    }
    assert_eq!(found.0.lock().unwrap().0, 2, "one question at a time");
}

/// A pod may hang up while it waits for the answer whether it is drained.
#[tokio::test]
async fn lookup_that_is_given_up_hinders_no_other() {
    let mut frontend = serve();
    let found = Arc::new(FakeDiscovery::default());
    let mut grpc = Grpc::new(GrpcOptions { discovery: vec![found.clone()], ..GrpcOptions::default() }).unwrap();
    timeout(Duration::from_millis(10), grpc.drains("node-1").resolve()).await.unwrap_err();
    found.set(&[&frontend]);
    let connected = async {
        while grpc.connect(mk_hello()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(2 * LOOKUP_TIMEOUT, connected).await.unwrap();
    assert!(frontend.peers.recv().await.is_some());
}

/// It accepts connections and says nothing, as a process that is stopped.
#[tokio::test]
async fn a_silent_frontend_does_not_keep_a_node_from_the_others() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for scheme in ["http", "https"] {
        let silent = format!("{scheme}://{}", silent.local_addr().unwrap());
        let mut frontend = serve();
        let mut grpc = mk_grpc(&[&silent, &frontend.address]);
        grpc.resolve().await;
        let addresses = grpc.addresses().in_order();
        let last = addresses.into_iter().find(|address| address.uri == frontend.address).unwrap();
        grpc.addresses().succeeded(&last);
        timeout(Duration::from_secs(10), frontend.session(&mut grpc)).await.unwrap();
        assert_eq!(grpc.addresses().in_order().pop().unwrap().uri, silent, "it failed");
    }
}

#[tokio::test]
async fn a_frontend_that_does_not_follow_the_api_is_used_if_there_is_no_other() {
    async fn accept(frontend: &mut Frontend, welcome: &ServerMessage) -> Peer {
        let peer = frontend.peers.recv().await.unwrap();
        peer.send(welcome).await;
        peer
    }
    let (mut outdated, mut fresh) = (serve(), serve());
    let mut grpc = mk_grpc(&[&outdated.address, &fresh.address]);
    let ServerMessage::Welcome(welcome) = mk_welcome() else { unreachable!() };
    let of_outdated = ServerMessage::Welcome(Welcome { is_outdated: true, ..welcome });
    let of_fresh = mk_welcome();
    grpc.resolve().await;
    let addresses = grpc.addresses().in_order();
    let last = addresses.into_iter().find(|address| address.uri == fresh.address).unwrap();
    grpc.addresses().succeeded(&last);
    let connecting = grpc.connect(mk_hello());
    let (session, _outdated, _fresh) =
        tokio::join!(connecting, accept(&mut outdated, &of_outdated), accept(&mut fresh, &of_fresh));
    assert_eq!(next_message(&mut session.unwrap()).await, Some(mk_welcome()));
    drop(fresh);
    let connecting = grpc.connect(mk_hello());
    let (session, _outdated) = tokio::join!(connecting, accept(&mut outdated, &of_outdated));
    assert_eq!(next_message(&mut session.unwrap()).await, Some(of_outdated));
}

/// A server that refuses calls when so many are open, and counts connections.
#[derive(Clone)]
struct Refusing(Arc<Barrier>);

impl NamedService for Refusing {
    const NAME: &'static str = "fairlead.v1.Fairlead";
}

impl Service<http::Request<Body>> for Refusing {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let barrier = self.0.clone();
        Box::pin(async move {
            barrier.wait().await;
            Ok(Status::unavailable("all have asked").into_http())
        })
    }
}

#[tokio::test]
async fn levels_of_the_own_frontend_share_the_connection_of_the_session() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = accepted.clone();
    let incoming = TcpListenerStream::new(listener).inspect(move |_| {
        counter.fetch_add(1, Relaxed);
    });
    let (opened, mut peers) = mpsc::unbounded_channel();
    let server = Server::builder().add_service(server::FairleadServer::new(Scripted(opened)));
    let task = tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
    let mut grpc = mk_grpc(&[&address]);
    let drains = grpc.drains("node-1");
    assert_eq!(drains.own(), None);

    let session = grpc.connect(mk_hello()).await.unwrap();
    let _peer = peers.recv().await.unwrap();
    let own = drains.own().unwrap();
    let error = drains.open(&own).await.err().unwrap().to_string();
    assert!(error.starts_with("Unimplemented"), "{error}");
    assert_eq!(accepted.load(Relaxed), 1);

    // It does not outlive the session.
    drop(session);
    while drains.own().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(drains.open(&own).await.is_err());
    assert_eq!(accepted.load(Relaxed), 2);
    task.abort();
}

/// A request that one frontend could not answer is not sent to the next.
#[tokio::test]
async fn plan_is_sent_to_one_frontend() {
    let asked = Arc::new(AtomicUsize::new(0));
    let serve = async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let counter = asked.clone();
        let incoming = TcpListenerStream::new(listener).inspect(move |_| {
            counter.fetch_add(1, Relaxed);
        });
        let server = Server::builder().add_service(Refusing(Arc::new(Barrier::new(1))));
        (address, tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() }))
    };
    let dir = tempfile::tempdir().unwrap();
    let unreachable = format!("unix:{}", dir.path().join("unreachable.sock").display());
    let ((one, first), (two, second)) = (serve().await, serve().await);
    let grpc = mk_grpc(&[&unreachable, &one, &two]);
    let error = grpc.plan(&v1::PlanRequest::default(), Duration::from_secs(10)).await.unwrap_err();
    assert!(format!("{error:#}").contains("all have asked"), "{error:#}");
    assert_eq!(asked.load(Relaxed), 1);
    first.abort();
    second.abort();
}

#[tokio::test]
async fn rejection_is_an_error_with_its_reason() {
    struct Closed;

    #[tonic::async_trait]
    impl server::Fairlead for Closed {
        type WatchStream = Pin<Box<dyn Stream<Item = Result<EncodedMessage, Status>> + Send>>;

        async fn watch(&self, _: Request<Streaming<v1::ClientMessage>>) -> Result<Response<Self::WatchStream>, Status> {
            Err(Status::permission_denied("not your node"))
        }

        async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
            Err(Status::unimplemented("not part of the test"))
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(server::FairleadServer::new(Closed));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let error = mk_grpc(&[&address]).connect(mk_hello()).await.unwrap_err();
    assert!(error.is::<Rejected>());
    let text = format!("{error:#}");
    for part in ["not your node", address.as_str(), "check that --node-name"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[tokio::test]
async fn refused_connection_names_the_address_and_what_to_do() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let address = format!("http://{address}");
    let error = mk_grpc(&[&address]).connect(mk_hello()).await.unwrap_err().to_string();
    for part in [address.as_str(), "Connection refused", "nothing listens on that port", "--frontend"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
}

#[tokio::test]
async fn refused_connection_to_a_socket_is_explained_without_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fairlead.sock");
    // A process that was killed leaves its socket behind.
    drop(UnixListener::bind(&path).unwrap());
    let address = format!("unix:{}", path.display());
    let error = mk_grpc(&[&address]).connect(mk_hello()).await.unwrap_err().to_string();
    for part in [address.as_str(), "Connection refused", "the socket in --frontend"] {
        assert!(error.contains(part), "no {part} in {error}");
    }
    assert!(!error.contains("host and port"), "{error}");
}

#[test]
fn options_are_checked() {
    assert!(Grpc::new(GrpcOptions::default()).is_err());
    for wrong in ["no address", "frontend:7600", "unix"] {
        let options = GrpcOptions { endpoints: vec![wrong.to_owned()], ..GrpcOptions::default() };
        let error = Grpc::new(options).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

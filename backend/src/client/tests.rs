//! Tests of the gRPC client against a real server, over a Unix socket and over loopback.

mod tls;

use std::{path::PathBuf, pin::Pin, time::Duration};

use futures::Stream;
use proto::{
    digest::Digest,
    encoded::EncodedMessage,
    model::{Ack, Batch, Epoch, Operation, Revision, SourceVersion, SyncMode, Welcome},
    v1::{self, server},
};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, metadata::MetadataMap, transport::Server};

use super::*;
use crate::testing::{mk_state, operations_between, synthetic};

/// Hands each stream to the test: what the client says, and where to answer.
struct Scripted(mpsc::UnboundedSender<Peer>);

struct Peer {
    metadata: MetadataMap,
    heard: Streaming<v1::ClientMessage>,
    say: mpsc::Sender<Result<EncodedMessage, Status>>,
}

#[tonic::async_trait]
impl server::Fairlead for Scripted {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<EncodedMessage, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (say, said) = mpsc::channel(64);
        let peer = Peer { metadata: request.metadata().clone(), heard: request.into_inner(), say };
        self.0.send(peer).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(said))))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
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

impl Frontend {
    async fn session(&mut self, grpc: &mut Grpc) -> (Session, Peer) {
        let session = grpc.connect(mk_hello()).await.unwrap();
        (session, self.peers.recv().await.unwrap())
    }
}

impl Peer {
    async fn hear(&mut self) -> ClientMessage {
        self.heard.message().await.unwrap().unwrap().try_into().unwrap()
    }

    async fn say(&self, event: &ServerMessage) {
        self.say.send(Ok(EncodedMessage::new(event))).await.unwrap();
    }
}

fn mk_hello() -> Hello {
    let state = mk_state().build();
    Hello {
        node: "node-1".into(),
        role: Default::default(),
        backend: "fake".to_owned(),
        backend_version: "1".to_owned(),
        resume: Some((Epoch(3), Revision(4))),
        digests: Some(Box::new(state.digests().clone())),
        source_version: SourceVersion(7),
        started: None,
    }
}

fn mk_grpc(endpoints: &[&str]) -> Grpc {
    let endpoints = endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect();
    Grpc::new(GrpcOptions { endpoints, ..GrpcOptions::default() }).unwrap()
}

fn batch(operations: Vec<Operation>) -> ServerMessage {
    let (base, target) = (Revision(0), Revision(1));
    ServerMessage::Batch(Batch {
        base,
        target,
        operations,
        commit: true,
        oldest_trigger: None,
        source_version: SourceVersion(0),
    })
}

#[tokio::test]
async fn everything_goes_through_both_ways() {
    let mut frontend = serve();
    let (mut session, mut peer) = frontend.session(&mut mk_grpc(&[&frontend.address.clone()])).await;
    assert_eq!(peer.hear().await, ClientMessage::Hello(mk_hello()));
    let operations = operations_between(&mk_state().build(), &synthetic(500, 4, crate::testing::Stack::Dual));
    let events = [
        ServerMessage::Welcome(Welcome { epoch: Epoch(9), mode: SyncMode::Repair, source_version: SourceVersion(0) }),
        batch(operations),
        ServerMessage::Bookmark(Revision(1), Digest(5)),
        ServerMessage::DigestRequest,
        ServerMessage::Drain(Duration::from_secs(3)),
    ];
    for event in events {
        peer.say(&event).await;
        assert_eq!(session.events.recv().await, Some(event));
    }
    let state = mk_state().build();
    let replies = [
        ClientMessage::Ack(Ack {
            revision: Revision(1),
            digest: Some(Digest(5)),
            apply_time: Duration::from_micros(17),
            failures: vec![],
        }),
        ClientMessage::DigestResponse(Revision(1), Box::new(state.digests().clone())),
    ];
    for reply in replies {
        session.replies.send(reply.clone()).await.unwrap();
        assert_eq!(peer.hear().await, reply);
    }
}

#[tokio::test]
async fn either_end_ends_the_session() {
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&frontend.address.clone()]);
    let (mut session, peer) = frontend.session(&mut grpc).await;
    drop(peer);
    assert_eq!(session.events.recv().await, None);

    let (session, mut peer) = frontend.session(&mut grpc).await;
    peer.hear().await;
    drop(session);
    peer.say.closed().await;
}

#[tokio::test]
async fn what_cannot_be_read_ends_the_session_and_nothing_of_it_arrives() {
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&frontend.address.clone()]);
    let good = Operation::ResetBucket(1);
    let bad = [
        // No such bucket.
        EncodedMessage::new(&batch(vec![good.clone(), Operation::ResetBucket(200)])),
        // No protobuf.
        EncodedMessage::from_bytes([0xff; 16].as_slice().into()),
        // Above the decode limit.
        EncodedMessage::new(&batch(vec![good; 1 << 19])),
    ];
    for message in bad {
        let (mut session, peer) = frontend.session(&mut grpc).await;
        peer.say(&ServerMessage::DigestRequest).await;
        peer.say.send(Ok(message)).await.unwrap();
        assert_eq!(session.events.recv().await, Some(ServerMessage::DigestRequest));
        assert_eq!(session.events.recv().await, None);
    }
}

#[tokio::test]
async fn frontends_that_are_away_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = format!("unix:{}", dir.path().join("nobody.sock").display());
    let mut frontend = serve();
    let mut grpc = mk_grpc(&[&nobody, &frontend.address.clone(), &nobody]);
    for _ in 0..4 {
        frontend.session(&mut grpc).await;
    }
    frontend.task.abort();
    frontend.peers.close();
    let error = mk_grpc(&[&nobody]).connect(mk_hello()).await.unwrap_err();
    assert!(format!("{error:#}").contains("nobody.sock"), "{error:#}");
}

#[tokio::test]
async fn sessions_in_turn_go_to_all_frontends() {
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

/// One that waits for its own objects takes the stream and says nothing.
#[tokio::test]
async fn a_frontend_that_is_complete_is_preferred_to_one_that_is_not() {
    let (mut silent, mut complete) = (serve(), serve());
    let welcome =
        ServerMessage::Welcome(Welcome { epoch: Epoch(9), mode: SyncMode::Repair, source_version: SourceVersion(0) });
    for _ in 0..3 {
        let mut grpc = mk_grpc(&[&silent.address, &complete.address]);
        let welcomed = async {
            let peer = complete.peers.recv().await.unwrap();
            peer.say(&welcome).await;
            peer
        };
        let (session, _peer) = tokio::join!(grpc.connect(mk_hello()), welcomed);
        assert_eq!(session.unwrap().events.recv().await, Some(welcome.clone()));
    }
    // Alone it will do.
    let mut grpc = mk_grpc(&[&silent.address]);
    let mut session = grpc.connect(mk_hello()).await.unwrap();
    let mut heard = None;
    while let Ok(peer) = silent.peers.try_recv() {
        heard = Some(peer);
    }
    heard.unwrap().say(&welcome).await;
    assert_eq!(session.events.recv().await, Some(welcome));
}

/// Finds what it is told, and says how often it was asked.
#[derive(Debug, Default)]
struct Found(Mutex<(usize, Vec<FrontendAddress>)>);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("kubernetes:kube-system/fairlead")
    }
}

impl Discover for Found {
    fn discover(&self) -> BoxFuture<'_, Result<Vec<FrontendAddress>>> {
        let (asked, found) = &mut *self.0.lock().unwrap();
        *asked += 1;
        Box::pin(future::ready(Ok(found.clone())))
    }
}

#[tokio::test]
async fn what_was_discovered_is_used_and_found_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut frontend = serve();
    let found = Arc::new(Found::default());
    found.0.lock().unwrap().1 = vec![FrontendAddress { address: frontend.address.clone(), name: None }];
    let options = GrpcOptions {
        discovery: vec![found.clone()],
        known: Some(dir.path().join("frontends")),
        ..GrpcOptions::default()
    };
    let mut grpc = Grpc::new(options.clone()).unwrap();
    frontend.session(&mut grpc).await;
    frontend.session(&mut grpc).await;
    assert_eq!(found.0.lock().unwrap().0, 1, "what works need not be looked up again");
    // Nobody says where it is any more.
    found.0.lock().unwrap().1.clear();
    frontend.session(&mut Grpc::new(options).unwrap()).await;
    assert_eq!(found.0.lock().unwrap().0, 2);
}

#[tokio::test]
async fn refusal_is_an_error_with_its_reason() {
    struct Closed;

    #[tonic::async_trait]
    impl server::Fairlead for Closed {
        type WatchStream = Pin<Box<dyn Stream<Item = Result<EncodedMessage, Status>> + Send>>;

        async fn watch(&self, _: Request<Streaming<v1::ClientMessage>>) -> Result<Response<Self::WatchStream>, Status> {
            Err(Status::permission_denied("not your node"))
        }

        async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
            Err(Status::unimplemented("not asked here"))
        }
    }

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(server::FairleadServer::new(Closed));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let error = mk_grpc(&[&address]).connect(mk_hello()).await.unwrap_err();
    let text = format!("{error:#}");
    for part in ["not your node", address.as_str(), "check that --node-name"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
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

//! The gRPC edge: hands each stream that a client begins to the script, which says what it is answered.

use std::{fmt, path::PathBuf};

use anyhow::{Context as _, Result};
use proto::{
    MAX_MESSAGE_BYTES,
    encoded::EncodedMessage,
    model::ClientMessage,
    v1::{
        self,
        server::{Fairlead, FairleadServer},
    },
};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server as Transport};

/// How many messages a client may be behind with reading.
const QUEUE: usize = 16;

/// A frontend without a will of its own. Dropping it closes its address and all connections.
#[derive(Debug)]
pub struct Server {
    address: Address,
    streams: mpsc::UnboundedReceiver<Peer>,
    _serving: JoinSet<()>,
}

#[derive(Clone, Debug)]
enum Address {
    Tcp(std::net::SocketAddr),
    Unix(PathBuf),
}

/// One stream of a client. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Peer {
    messages: Streaming<v1::ClientMessage>,
    answers: mpsc::Sender<Result<EncodedMessage, Status>>,
    /// When it began.
    pub(crate) since: Instant,
}

/// What a client did.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It said something that can be read.
    Event(Box<ClientMessage>),
    /// It said something else.
    Unreadable(String),
    /// It ended the stream, or has gone.
    Ended,
}

struct Door(mpsc::UnboundedSender<Peer>);

// === impl Server ===

impl Server {
    /// Listens at `unix:/PATH` or HOST:PORT, without TLS.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn listen(address: &str) -> Result<Self> {
        let (door, streams) = mpsc::unbounded_channel();
        let service = FairleadServer::new(Door(door)).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let router = Transport::builder().add_service(service);
        let mut serving = JoinSet::new();
        let address = match address.strip_prefix("unix:") {
            Some(path) => {
                let listener = UnixListener::bind(path).with_context(|| format!("bind {address}"))?;
                let incoming = UnixListenerStream::new(listener);
                serving.spawn(async { drop(router.serve_with_incoming(incoming).await) });
                Address::Unix(path.into())
            }
            None => {
                let bound = TcpListener::bind(address).await;
                let listener = bound.with_context(|| format!("bind {address}"))?;
                let address = listener.local_addr().context("the address that was bound")?;
                let incoming = TcpListenerStream::new(listener);
                serving.spawn(async { drop(router.serve_with_incoming(incoming).await) });
                Address::Tcp(address)
            }
        };
        Ok(Self { address, streams, _serving: serving })
    }

    /// Where it listens, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The next stream that a client begins.
    pub(crate) async fn accept(&mut self) -> Option<Peer> {
        self.streams.recv().await
    }

    /// A stream that has begun and that nobody has taken.
    pub(crate) fn waiting(&mut self) -> Option<Peer> {
        self.streams.try_recv().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Somebody may have removed it before.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Peer ===

impl Peer {
    /// What it does next. May be dropped and called again.
    pub(crate) async fn hear(&mut self) -> Heard {
        match self.messages.message().await {
            Ok(Some(message)) => match ClientMessage::try_from(message) {
                Ok(event) => Heard::Event(Box::new(event)),
                Err(error) => Heard::Unreadable(error.to_string()),
            },
            Ok(None) => Heard::Ended,
            Err(status) if status.code() == tonic::Code::OutOfRange => Heard::Unreadable(status.to_string()),
            Err(_) => Heard::Ended,
        }
    }

    /// Says something. A client that has gone will be heard to.
    pub(crate) async fn say(&self, message: EncodedMessage) {
        let _ = self.answers.send(Ok(message)).await;
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(self, status: Status) {
        let _ = self.answers.send(Err(status)).await;
    }
}

// === impl Door ===

#[tonic::async_trait]
impl Fairlead for Door {
    type WatchStream = ReceiverStream<Result<EncodedMessage, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, said) = mpsc::channel(QUEUE);
        let peer = Peer { messages: request.into_inner(), answers, since: Instant::now() };
        self.0.send(peer).map_err(|_| Status::unavailable("all scenarios have been played"))?;
        Ok(Response::new(ReceiverStream::new(said)))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("this frontend only plays scenarios"))
    }
}

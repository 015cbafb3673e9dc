//! The gRPC server: hands each stream that a client opens to the scripted frontend.

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

use crate::drains::{DrainsService, DrainsStream};

/// The number of messages that wait for a client to read them.
const QUEUE: usize = 16;

/// A listening frontend. Dropping it closes the listener and all connections.
#[derive(Debug)]
pub struct Server {
    /// The address that clients connect to.
    address: String,
    streams: mpsc::UnboundedReceiver<ClientStream>,
    drains: mpsc::UnboundedReceiver<DrainsStream>,
    _serving: JoinSet<()>,
}

/// A stream that a client has opened. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct ClientStream {
    incoming: Streaming<v1::ClientMessage>,
    outgoing: mpsc::Sender<Result<EncodedMessage, Status>>,
    /// When the client opened it.
    pub(crate) opened: Instant,
}

struct WatchService(mpsc::UnboundedSender<ClientStream>);

// === impl Server ===

impl Server {
    /// Listens at `unix:/PATH` or HOST:PORT, without TLS.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn listen(address: &str) -> Result<Self> {
        let (stream_sender, streams) = mpsc::unbounded_channel();
        let (drains_sender, drains) = mpsc::unbounded_channel();
        let watch = FairleadServer::new(WatchService(stream_sender)).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let router = Transport::builder().add_service(DrainsService::new(watch, drains_sender));

        let mut serving = JoinSet::new();
        let address = match address.strip_prefix("unix:") {
            Some(path) => {
                let listener = UnixListener::bind(path).with_context(|| format!("listen at {address}"))?;
                let incoming = UnixListenerStream::new(listener);
                serving.spawn(async { drop(router.serve_with_incoming(incoming).await) });
                address.to_owned()
            }
            None => {
                let bound = TcpListener::bind(address).await;
                let listener = bound.with_context(|| format!("listen at {address}"))?;
                let address = listener.local_addr().context("read the bound address")?;
                let incoming = TcpListenerStream::new(listener);
                serving.spawn(async { drop(router.serve_with_incoming(incoming).await) });
                address.to_string()
            }
        };
        Ok(Self { address, streams, drains, _serving: serving })
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the next stream.
    pub(crate) async fn accept(&mut self) -> Option<ClientStream> {
        self.streams.recv().await
    }

    /// A stream that is open but not accepted yet.
    pub(crate) fn try_accept(&mut self) -> Option<ClientStream> {
        self.streams.try_recv().ok()
    }

    /// Waits for the next stream of `Drains`.
    pub(crate) async fn accept_drains(&mut self) -> Option<DrainsStream> {
        self.drains.recv().await
    }

    /// A stream of `Drains` that is open but not accepted yet.
    pub(crate) fn try_accept_drains(&mut self) -> Option<DrainsStream> {
        self.drains.try_recv().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = self.address.strip_prefix("unix:") {
            // Fails if another process has removed the socket, which is fine.
            let _ = std::fs::remove_file(path);
        }
    }
}

// === impl ClientStream ===

impl ClientStream {
    /// Waits for the next message; `None` at the end of the stream. Cancel safe.
    ///
    /// # Errors
    /// Why the message is invalid.
    pub(crate) async fn receive(&mut self) -> Result<Option<ClientMessage>, String> {
        match self.incoming.message().await {
            Ok(Some(message)) => ClientMessage::try_from(message).map(Some).map_err(|error| error.to_string()),
            Err(status) if status.code() == tonic::Code::OutOfRange => Err(status.to_string()),
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Sends a message. If the client is gone, [`Self::receive`] returns the end of the stream.
    pub(crate) async fn send(&self, message: EncodedMessage) {
        let _ = self.outgoing.send(Ok(message)).await;
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(self, status: Status) {
        let _ = self.outgoing.send(Err(status)).await;
    }
}

// === impl WatchService ===

#[tonic::async_trait]
impl Fairlead for WatchService {
    type WatchStream = ReceiverStream<Result<EncodedMessage, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<v1::ClientMessage>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (outgoing, messages) = mpsc::channel(QUEUE);
        let stream = ClientStream { incoming: request.into_inner(), outgoing, opened: Instant::now() };
        self.0.send(stream).map_err(|_| Status::unavailable("the protocol test has finished"))?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        Err(Status::unimplemented("the protocol test does not serve Status"))
    }
}

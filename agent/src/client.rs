//! Sessions over gRPC: one HTTP/2 connection to one of several frontends, and the task that reads it.

mod advice;
mod credentials;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, future::BoxFuture};
use proto::{
    InvalidUpdate, MAX_MESSAGE_BYTES,
    model::{ClientEvent, Hello, ServerEvent},
    v1::{ClientMessage, ServerMessage, fairlead_client::FairleadClient},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, transport::Endpoint};
use tracing::{error, info, warn};

use crate::{Connect, Session};
pub use credentials::Credentials;

/// A frontend that does not take a connection within this time is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often an HTTP/2 ping is sent, so that a connection that is gone is noticed even if its end was never told.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the answer to such a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Twice what a frontend may send.
const DECODE_LIMIT: usize = 2 * MAX_MESSAGE_BYTES;
/// Messages between the connection and the agent. With more than that the frontend has to wait.
const QUEUE: usize = 8;

/// Where the frontends are, and how to show them who this is.
#[derive(Clone, Debug, Default)]
pub struct GrpcOptions {
    /// `unix:/path`, `https://host:port` or `http://host:port`; tried in turn, beginning somewhere.
    pub endpoints: Vec<String>,
    /// For `https`.
    pub credentials: Credentials,
}

/// Connects to frontends over gRPC.
#[derive(Clone, Debug)]
pub struct Grpc {
    frontends: Vec<Frontend>,
    credentials: Credentials,
    next: usize,
}

/// One frontend.
#[derive(Clone, Debug)]
struct Frontend {
    /// As it was given: the endpoint of a Unix socket does not say which one.
    address: String,
    endpoint: Endpoint,
}

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[from] Status),
    #[error("a message that cannot be read: {0}")]
    Invalid(#[from] InvalidUpdate),
}

// === impl Grpc ===

impl Grpc {
    /// Reads the options. Nothing is connected yet.
    ///
    /// # Errors
    /// When an endpoint is not an address, or there is none.
    pub fn new(options: GrpcOptions) -> Result<Self> {
        let GrpcOptions { endpoints, credentials } = options;
        ensure!(!endpoints.is_empty(), "no frontend to connect to");
        let next = fastrand::usize(..endpoints.len());
        let frontends = endpoints.into_iter().map(Frontend::new).collect::<Result<_>>()?;
        Ok(Self { frontends, credentials, next })
    }
}

impl Connect for Grpc {
    /// Tries every frontend once, beginning with the one after the last that was tried.
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let start = self.next;
        self.next = (start + 1) % self.frontends.len();
        let mut frontends = self.frontends.clone();
        frontends.rotate_left(start);
        let credentials = self.credentials.clone();
        Box::pin(async move {
            let mut last = None;
            for frontend in frontends {
                let address = &frontend.address;
                match frontend.open(&credentials, hello.clone()).await {
                    Ok(session) => {
                        info!(frontend = address, "session with a frontend");
                        return Ok(session);
                    }
                    Err(error) => {
                        let error = error.context(format!("connect to {address}"));
                        if let Some(previous) = last.replace(error) {
                            warn!(error = format!("{previous:#}"), "frontend passed over");
                        }
                    }
                }
            }
            Err(last.context("no frontend to connect to")?)
        })
    }
}

// === impl Frontend ===

impl Frontend {
    fn new(address: String) -> Result<Self> {
        ensure!(
            ["unix:", "http://", "https://"].iter().any(|scheme| address.starts_with(scheme)),
            "{address:?} is no frontend's address: expected unix:/path, https://host:port or http://host:port"
        );
        let endpoint = Endpoint::from_shared(address.clone())
            .with_context(|| format!("{address:?} is no endpoint such as unix:/path or https://host:port"))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        Ok(Self { address, endpoint })
    }

    async fn open(&self, credentials: &Credentials, hello: Hello) -> Result<Session> {
        let (mut endpoint, mut token) = (self.endpoint.clone(), None);
        if endpoint.uri().scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(credentials.tls().await?).context("TLS")?;
            token = credentials.token().await?;
        }
        let channel = endpoint.connect().await.map_err(advised)?;
        let mut client = FairleadClient::new(channel).max_decoding_message_size(DECODE_LIMIT);
        let (replies, outgoing) = mpsc::channel(QUEUE);
        replies.send(ClientEvent::Hello(hello)).await?;
        let mut request =
            Request::new(ReceiverStream::new(outgoing).map(|event| ClientMessage::from(&event)));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token);
        }
        let incoming = client.watch(request).await.map_err(|status| advised(Ended::from(status)))?;
        let incoming = incoming.into_inner();
        let (events, received) = mpsc::channel(QUEUE);
        // Ends with the session: when the stream has ended, or `received` is gone.
        tokio::spawn(async move {
            match read(incoming, &events).await {
                Ok(()) => info!("the frontend closed the stream"),
                Err(error) => match advice::advice(&error) {
                    Some(advice) => error!(%error, advice, "the frontend refuses this stream"),
                    None => warn!(%error, "the stream broke"),
                },
            }
        });
        Ok(Session { events: received, replies })
    }
}

/// An error with what can be done about it.
fn advised(error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
    match advice::advice(&error) {
        Some(advice) => anyhow::Error::new(error).context(advice),
        None => error.into(),
    }
}

/// Reads until the stream or its reader ends.
async fn read(
    mut incoming: Streaming<ServerMessage>,
    events: &mpsc::Sender<ServerEvent>,
) -> Result<(), Ended> {
    loop {
        let message = tokio::select! {
            message = incoming.message() => message?,
            () = events.closed() => None,
        };
        let Some(message) = message else { return Ok(()) };
        if events.send(message.try_into()?).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;

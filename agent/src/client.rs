//! Sessions over gRPC: one HTTP/2 connection to one of several frontends, and the task that reads it.

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
use tonic::{Status, Streaming, transport::Endpoint};
use tracing::{info, warn};

use crate::{Connect, Session};

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

/// Where the frontends are.
#[derive(Clone, Debug, Default)]
pub struct GrpcOptions {
    /// `unix:/path`, `http://host:port`; tried in turn, beginning somewhere.
    pub endpoints: Vec<String>,
}

/// Connects to frontends over gRPC.
#[derive(Clone, Debug)]
pub struct Grpc {
    endpoints: Vec<Endpoint>,
    next: usize,
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
        let GrpcOptions { endpoints } = options;
        ensure!(!endpoints.is_empty(), "no frontend to connect to");
        let next = fastrand::usize(..endpoints.len());
        let endpoints = endpoints.into_iter().map(endpoint).collect::<Result<_>>()?;
        Ok(Self { endpoints, next })
    }
}

fn endpoint(address: String) -> Result<Endpoint> {
    let endpoint = Endpoint::from_shared(address.clone())
        .with_context(|| format!("{address:?} is no endpoint such as unix:/path or http://host:port"))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}

impl Connect for Grpc {
    /// Tries every endpoint once, beginning with the one after the last that was tried.
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let start = self.next;
        self.next = (start + 1) % self.endpoints.len();
        let mut endpoints = self.endpoints.clone();
        endpoints.rotate_left(start);
        Box::pin(async move {
            let mut last = None;
            for endpoint in endpoints {
                match open(&endpoint, hello.clone()).await {
                    Ok(session) => {
                        info!(endpoint = %endpoint.uri(), "session with a frontend");
                        return Ok(session);
                    }
                    Err(error) => {
                        let error = error.context(format!("connect to {}", endpoint.uri()));
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

async fn open(endpoint: &Endpoint, hello: Hello) -> Result<Session> {
    let channel = endpoint.connect().await?;
    let mut client = FairleadClient::new(channel).max_decoding_message_size(DECODE_LIMIT);
    let (replies, outgoing) = mpsc::channel(QUEUE);
    replies.send(ClientEvent::Hello(hello)).await?;
    let outgoing = ReceiverStream::new(outgoing).map(|event| ClientMessage::from(&event));
    let incoming = client.watch(outgoing).await.map_err(Ended::from)?.into_inner();
    let (events, received) = mpsc::channel(QUEUE);
    // Ends with the session: when the stream has ended, or `received` is gone.
    tokio::spawn(async move {
        match read(incoming, &events).await {
            Ok(()) => info!("the frontend closed the stream"),
            Err(error) => warn!(%error, "the stream broke"),
        }
    });
    Ok(Session { events: received, replies })
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

//! Sessions over gRPC: one HTTP/2 connection to one of several frontends, and the task that reads it. Which one: `directory`; where they are:
//! `place`.

mod address;
mod address_list;
mod advice;
mod credentials;
mod endpoints;
mod status;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::{
    StreamExt as _,
    future::{self, BoxFuture},
};
use proto::{
    InvalidMessage, MAX_MESSAGE_BYTES,
    model::{ClientMessage, Hello, ServerMessage},
    v1::{self, fairlead_client::FairleadClient},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tracing::{debug, error, info, warn};

use crate::{Connect, Session};
use address::AddressSource;
pub use address::{Discover, FrontendAddress};
use address_list::AddressList;
pub use credentials::Credentials;

/// A frontend that does not take a connection within this time is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long looking up names and the like may take, before the last known addresses are tried.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// A frontend that says nothing for so long, though it took the stream, is not complete yet: another one may be.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(1);
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
    /// `unix:/path`, `https://host:port` or `http://host:port`; of a name all its addresses.
    pub endpoints: Vec<String>,
    /// Other ways to find frontends.
    pub discovery: Vec<Arc<dyn Discover>>,
    /// Where the addresses that were found last are kept; `None` for nowhere.
    pub known: Option<PathBuf>,
    /// For `https`.
    pub credentials: Credentials,
}

/// Connects to frontends over gRPC.
#[derive(Clone, Debug)]
pub struct Grpc {
    directory: Arc<Mutex<AddressList>>,
    credentials: Credentials,
}

/// The value of an `authorization` header.
type Token = MetadataValue<Ascii>;

/// A session, before anything was heard in it.
struct Opened {
    session: Session,
    /// Ends when the frontend has said something; with an error when it has ended the stream.
    heard: oneshot::Receiver<()>,
}

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{} ({:?})", .0.message(), .0.code())]
    Status(#[from] Status),
    #[error("a message that cannot be read: {0}")]
    Invalid(#[from] InvalidMessage),
}

// === impl Grpc ===

impl Grpc {
    /// Reads the options. Nothing is connected yet.
    ///
    /// # Errors
    /// When an endpoint is not an address, or there is none.
    pub fn new(options: GrpcOptions) -> Result<Self> {
        let GrpcOptions { endpoints, discovery, known, credentials } = options;
        let mut places = endpoints.iter().map(|text| AddressSource::parse(text)).collect::<Result<Vec<_>>>()?;
        places.extend(discovery.into_iter().map(AddressSource::Discovered));
        ensure!(!places.is_empty(), "no frontend to connect to");
        Ok(Self { directory: Arc::new(Mutex::new(AddressList::new(places, known))), credentials })
    }

    fn directory(&self) -> MutexGuard<'_, AddressList> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for frontends where that is due, everywhere at once.
    async fn look_up(&self) {
        let due = self.directory().due();
        let look_ups = due.into_iter().map(async |(number, place)| {
            let found = timeout(LOOKUP_TIMEOUT, place.look_up()).await;
            let found = found.with_context(|| format!("no answer within {LOOKUP_TIMEOUT:?}")).flatten();
            self.directory().looked_up(number, found);
        });
        future::join_all(look_ups).await;
    }

    /// Tries one frontend after the other. One that takes the stream and then says nothing, for it knows nothing yet, is taken only if no
    /// other one does better.
    async fn try_all(&self, hello: Hello) -> Result<Session> {
        self.look_up().await;
        let candidates = self.directory().order();
        let (mut silent, mut last) = (None, None::<anyhow::Error>);
        let is_only = candidates.len() == 1;
        for candidate in candidates {
            let opened = open(&candidate, &self.credentials, hello.clone()).await;
            let opened = match opened {
                Ok(Opened { session, .. }) if is_only => Ok(Some(session)),
                Ok(Opened { session, heard }) => match timeout(WELCOME_TIMEOUT, heard).await {
                    Ok(Ok(())) => Ok(Some(session)),
                    Ok(Err(_)) => Err(anyhow!("it ended the stream")),
                    Err(_) => {
                        debug!(frontend = candidate.address, "nothing heard yet");
                        silent.get_or_insert((session, candidate.clone()));
                        Ok(None)
                    }
                },
                Err(error) => Err(error),
            };
            match opened {
                Ok(Some(session)) => return Ok(self.chosen(session, &candidate)),
                Ok(None) => {}
                Err(error) => {
                    self.directory().failed(&candidate);
                    let error = error.context(format!("connect to {}", candidate.address));
                    if let Some(previous) = last.replace(error) {
                        warn!(error = format!("{previous:#}"), "frontend passed over");
                    }
                }
            }
        }
        match silent {
            Some((session, candidate)) => Ok(self.chosen(session, &candidate)),
            None => Err(last.context("no frontend is known")?),
        }
    }

    fn chosen(&self, session: Session, candidate: &FrontendAddress) -> Session {
        info!(frontend = candidate.address, "session with a frontend");
        self.directory().worked(candidate);
        session
    }
}

impl Connect for Grpc {
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let grpc = self.clone();
        Box::pin(async move { grpc.try_all(hello).await })
    }
}

/// Connects to a frontend. Gives what to show it with each request, too.
async fn connect(candidate: &FrontendAddress, credentials: &Credentials) -> Result<(Channel, Option<Token>)> {
    let mut endpoint = Endpoint::from_shared(candidate.address.clone())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    let mut token = None;
    if endpoint.uri().scheme_str() == Some("https") {
        endpoint = endpoint.tls_config(credentials.tls(candidate.name.as_deref()).await?).context("TLS")?;
        token = credentials.token().await?;
    }
    Ok((endpoint.connect().await.map_err(advised)?, token))
}

/// Connects to a frontend and says hello.
async fn open(candidate: &FrontendAddress, credentials: &Credentials, hello: Hello) -> Result<Opened> {
    let (channel, token) = connect(candidate, credentials).await?;
    let mut client = FairleadClient::new(channel).max_decoding_message_size(DECODE_LIMIT);
    let (replies, outgoing) = mpsc::channel(QUEUE);
    replies.send(ClientMessage::Hello(hello)).await?;
    let mut request = Request::new(ReceiverStream::new(outgoing).map(|event| v1::ClientMessage::from(&event)));
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", token);
    }
    let incoming = client.watch(request).await.map_err(|status| advised(Ended::from(status)))?;
    let incoming = incoming.into_inner();
    let (events, received) = mpsc::channel(QUEUE);
    let (tell, heard) = oneshot::channel();
    // Ends with the session: when the stream has ended, or `received` is gone.
    tokio::spawn(async move {
        match read(incoming, &events, tell).await {
            Ok(()) => info!("the frontend closed the stream"),
            Err(error) => match advice::advice(&error) {
                Some(advice) => error!(%error, advice, "the frontend refuses this stream"),
                None => warn!(%error, "the stream broke"),
            },
        }
    });
    Ok(Opened { session: Session { events: received, replies }, heard })
}

/// An error with what can be done about it.
fn advised(error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
    match advice::advice(&error) {
        Some(advice) => anyhow::Error::new(error).context(advice),
        None => error.into(),
    }
}

/// Reads until the stream or its reader ends. Tells when something was heard for the first time.
async fn read(
    mut incoming: Streaming<v1::ServerMessage>,
    events: &mpsc::Sender<ServerMessage>,
    heard: oneshot::Sender<()>,
) -> Result<(), Ended> {
    let mut heard = Some(heard);
    loop {
        let message = tokio::select! {
            message = incoming.message() => message?,
            () = events.closed() => None,
        };
        let Some(message) = message else { return Ok(()) };
        // Where nobody waits for that, nothing is told.
        let _ = heard.take().map(|heard| heard.send(()));
        if events.send(message.try_into()?).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;

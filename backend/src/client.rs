//! Sessions over gRPC: one HTTP/2 connection to one of several frontends, and the task that reads it.
//!
//! `address` parses and resolves where frontends are; `address_list` decides which frontend is tried first.

mod address;
mod address_list;
mod credentials;
mod drains;
mod error;
mod queries;

use std::{
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::{
    StreamExt as _,
    future::{self, BoxFuture},
};
use proto::{
    MAX_MESSAGE_BYTES,
    encoded::{self, EncodedMessage},
    model::{ClientMessage, Hello, ServerMessage},
    v1,
};
use runtime::{failure::chain, lock};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    codec::CompressionEncoding,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tracing::{debug, error, info, warn};

use crate::{Connect, Rejected, Session};
use address::AddressSource;
pub use address::{Discover, FrontendAddress};
use address_list::{AddressList, MAX_ADDRESS_AGE};
pub use credentials::Credentials;
use error::{OwnCertificate, StreamError, advice, explained, explained_call};
use queries::within;

/// How long a TCP connection and its TLS handshake may take, as long as a frontend waits for it. The next frontend is
/// tried then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a frontend has to answer the request for a stream: it may have a token reviewed, which takes 5 s at most.
const OPEN_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a resolver may take to answer; after that the last known addresses are used.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an attempt waits for addresses that are resolved again before it uses the last known ones: DNS may be a
/// Service that this node cannot reach.
const LOOKUP_PATIENCE: Duration = Duration::from_millis(500);
/// A frontend that accepts the stream and sends no Welcome within this time is still starting: another one may be
/// ready.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(1);
/// How often an HTTP/2 ping is sent, to detect a lost connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the answer to a ping may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most messages that wait between the connection and its follower, and the most replies. Beyond it the stream's
/// flow control stops the frontend. Few wait, because a message in memory can be many times larger than on the wire.
const QUEUED_MESSAGES: usize = 2;

/// Where the frontends are, and how to authenticate.
#[derive(Clone, Debug, Default)]
pub struct GrpcOptions {
    /// `unix:/path`, `https://host:port` or `http://host:port`. All addresses of a DNS name are used.
    pub endpoints: Vec<String>,
    /// Other ways to discover frontends.
    pub discovery: Vec<Arc<dyn Discover>>,
    /// For `https`.
    pub credentials: Credentials,
}

/// Connects to frontends over gRPC.
#[derive(Clone, Debug)]
pub struct Grpc {
    addresses: Arc<Mutex<AddressList>>,
    credentials: Credentials,
    /// The connection of the current session, as long as that lasts.
    own: Arc<Mutex<Weak<OwnConnection>>>,
}

/// The connection of a session, which other calls to its frontend share.
#[derive(Debug)]
struct OwnConnection {
    address: FrontendAddress,
    connection: Connection,
}

/// A session that a frontend has accepted.
struct OpenedSession {
    session: Session,
    connection: Arc<OwnConnection>,
}

/// The attempts to open one session.
#[derive(Default)]
struct Attempts {
    tried: Vec<FrontendAddress>,
    errors: Vec<String>,
    /// Whether any of the errors is not a rejection, so that another attempt may succeed.
    may_succeed_later: bool,
    /// The session with the first frontend that accepted the stream and is not ready.
    not_ready: Option<OpenedSession>,
}

/// The value of an `authorization` header.
type Token = MetadataValue<Ascii>;

/// A connection to a frontend, and the credentials of its calls.
#[derive(Clone, Debug)]
struct Connection {
    channel: Channel,
    /// Sent with each request.
    token: Option<Token>,
    own_certificate: Option<OwnCertificate>,
}

impl Grpc {
    /// Parses the options. Does not connect.
    ///
    /// # Errors
    /// When an endpoint is not a valid address, or there is none.
    pub fn new(options: GrpcOptions) -> Result<Self> {
        let GrpcOptions { endpoints, discovery, credentials } = options;
        let mut sources = endpoints.iter().map(|text| AddressSource::parse(text)).collect::<Result<Vec<_>>>()?;
        sources.extend(discovery.into_iter().map(AddressSource::Discovered));
        ensure!(!sources.is_empty(), "no address of a frontend is configured");
        let addresses = Arc::new(Mutex::new(AddressList::new(sources)));
        Ok(Self { addresses, credentials, own: Arc::default() })
    }

    fn addresses(&self) -> MutexGuard<'_, AddressList> {
        lock(&self.addresses)
    }

    /// Resolves the sources that are due, all at once. Returns whether there were any.
    async fn resolve(&self) -> bool {
        self.resolve_older_than(MAX_ADDRESS_AGE).await
    }

    async fn resolve_older_than(&self, age: Duration) -> bool {
        let due = self.addresses().due(age);
        let has_due = !due.is_empty();
        let lookups = due.into_iter().map(async |(index, source, _lookup)| {
            let found = look_up(&source).await;
            self.addresses().resolved(index, found);
        });
        future::join_all(lookups).await;
        has_due
    }

    /// Resolves the sources that are due. If addresses are known, a resolver that does not answer delays their use for
    /// [`LOOKUP_PATIENCE`] only, and its answer is for the next attempt.
    async fn resolve_before_use(&self) -> bool {
        let patience = if self.addresses().is_empty() { 2 * LOOKUP_TIMEOUT } else { LOOKUP_PATIENCE };
        let grpc = self.clone();
        // A task of its own, so that it ends also if this attempt is given up.
        let resolving = tokio::spawn(async move { grpc.resolve().await });
        timeout(patience, resolving).await.is_ok_and(|resolved| resolved.unwrap_or_default())
    }

    /// Tries one frontend after the other, until one is ready. A frontend that accepts the stream and sends nothing, or
    /// does not follow the API, is used only if no other one is ready; not at all if `needs_fresh`, unless it is the
    /// only one.
    async fn connect_any(&self, hello: Hello, needs_fresh: bool) -> Result<Session> {
        let mut attempts = Attempts::default();
        let was_resolved = self.resolve_before_use().await;
        let mut opened = self.open_any(&hello, &mut attempts).await;
        if opened.is_none() && attempts.not_ready.is_none() && !was_resolved {
            // The only frontend may have been replaced by one at another address.
            self.resolve_before_use().await;
            opened = self.open_any(&hello, &mut attempts).await;
        }

        if let Some(not_ready) = attempts.not_ready.take()
            && opened.is_none()
        {
            ensure!(!needs_fresh, "no other frontend follows the API");
            opened = Some(not_ready);
        }
        match opened {
            Some(opened) => Ok(self.chosen(opened, &attempts.errors)),
            None => Err(attempts.into_error()),
        }
    }

    /// Opens a session with the first frontend that is ready, of those that were not tried yet.
    async fn open_any(&self, hello: &Hello, attempts: &mut Attempts) -> Option<OpenedSession> {
        let mut untried = self.addresses().in_order();
        untried.retain(|address| !attempts.tried.contains(address));
        let is_only = attempts.tried.is_empty() && untried.len() == 1;

        for address in untried {
            let opened = async {
                let (opened, first_message) = open(&address, &self.credentials, hello.clone()).await?;
                let is_ready = is_only || is_ready(first_message).await?;
                anyhow::Ok((opened, is_ready))
            };
            match within(OPEN_TIMEOUT, opened).await {
                Ok((opened, true)) => return Some(opened),
                Ok((opened, false)) => {
                    debug!(frontend = address.uri, "frontend accepted the stream but is not ready");
                    attempts.not_ready.get_or_insert(opened);
                }
                Err(error) => {
                    self.addresses().failed(&address);
                    attempts.failed(&address, &error);
                }
            }
            attempts.tried.push(address);
        }
        None
    }

    fn chosen(&self, OpenedSession { session, connection }: OpenedSession, errors: &[String]) -> Session {
        let address = &connection.address;
        for error in errors {
            warn!(error, "cannot connect to one of the frontends, using another one");
        }
        info!(frontend = address.uri, "connected to a frontend");
        self.addresses().succeeded(address);
        *lock(&self.own) = Arc::downgrade(&connection);
        session
    }
}

impl Attempts {
    fn failed(&mut self, address: &FrontendAddress, error: &anyhow::Error) {
        self.may_succeed_later |= !error.is::<Rejected>();
        self.errors.push(format!("{}: {}", address.uri, chain(error.as_ref())));
    }

    fn into_error(mut self) -> anyhow::Error {
        if self.errors.is_empty() {
            return anyhow!("no address of a frontend is known");
        }

        // The frontends were tried in random order.
        self.errors.sort();
        let errors = self.errors.join("; ");
        if self.may_succeed_later { anyhow!(errors) } else { Rejected(errors).into() }
    }
}

impl Connect for Grpc {
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let grpc = self.clone();
        Box::pin(async move { grpc.connect_any(hello, false).await })
    }

    fn connect_to_fresh(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let grpc = self.clone();
        Box::pin(async move { grpc.connect_any(hello, true).await })
    }
}

async fn look_up(source: &AddressSource) -> Result<Vec<FrontendAddress>> {
    let found = timeout(LOOKUP_TIMEOUT, source.resolve()).await;
    found.with_context(|| {
        format!("no answer within {LOOKUP_TIMEOUT:?}: check --frontend, and DNS and routes of this host")
    })?
}

/// Connects to a frontend.
async fn connect(address: &FrontendAddress, credentials: &Credentials) -> Result<Connection> {
    let mut endpoint = Endpoint::from_shared(address.uri.clone())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    let mut own_certificate = None;
    if address.is_https() {
        (endpoint, own_certificate) = credentials.configure(endpoint, address.server_name.as_deref()).await?;
    }
    let token = credentials.token_for(address).await?;

    let channel = endpoint.connect().await.map_err(|error| {
        if !address.is_unix() {
            return explained(&error);
        }
        anyhow!("{} (check that the frontend is running, and the socket in --frontend)", chain(&error))
    })?;
    Ok(Connection { channel, token, own_certificate })
}

impl Connection {
    /// The request of a call.
    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// The error of a call.
    fn error(&self, status: Status) -> anyhow::Error {
        explained_call(status, self.own_certificate.as_ref())
    }
}

/// Connects to a frontend and sends the hello. The receiver completes with the first message, whether the frontend does
/// not follow the API, and fails when the stream ends before.
async fn open(
    address: &FrontendAddress,
    credentials: &Credentials,
    hello: Hello,
) -> Result<(OpenedSession, oneshot::Receiver<bool>)> {
    let connection = connect(address, credentials).await?;
    let own = Arc::new(OwnConnection { address: address.clone(), connection: connection.clone() });

    let (replies, outgoing) = mpsc::channel(QUEUED_MESSAGES);
    replies.send(ClientMessage::Hello(hello)).await?;
    let outgoing = ReceiverStream::new(outgoing).map(|message| v1::ClientMessage::from(&message));

    // On one machine, compressing would take longer than copying.
    let compression = if address.is_unix() { None } else { Some(CompressionEncoding::Gzip) };
    let request = connection.request(outgoing);
    let incoming = encoded::watch(connection.channel.clone(), request, MAX_MESSAGE_BYTES, compression).await;
    let incoming = incoming.map_err(|status| {
        let is_rejection = StreamError::Status(status.clone()).is_rejection();
        let error = connection.error(status);
        if is_rejection { Rejected(error.to_string()).into() } else { error }
    })?;

    let (messages, received) = mpsc::channel(QUEUED_MESSAGES);
    let (notify, first_message) = oneshot::channel();
    tokio::spawn(read_session(incoming.into_inner(), messages, notify, own.clone()));
    Ok((OpenedSession { session: Session { messages: received, replies }, connection: own }, first_message))
}

/// Reads until the session ends: the stream has ended, or the receiver of the messages is dropped. Logs why, and holds
/// the connection until then.
async fn read_session(
    incoming: Streaming<EncodedMessage>,
    messages: mpsc::Sender<ServerMessage>,
    first_message: oneshot::Sender<bool>,
    _held: Arc<OwnConnection>,
) {
    let Err(error) = read(incoming, &messages, first_message).await else {
        debug!("the stream ended");
        return;
    };
    if error.is_orderly() {
        info!(reason = chain(&error), "the frontend ended the stream");
        return;
    }

    match advice(&error) {
        Some(advice) => error!(error = chain(&error), advice, "the frontend rejected the stream"),
        None => warn!(error = chain(&error), "the stream failed"),
    }
}

/// Waits for the first message of a session. Returns false if the frontend has not sent one in time, or says that it
/// does not follow the API.
async fn is_ready(is_outdated: oneshot::Receiver<bool>) -> Result<bool> {
    match timeout(WELCOME_TIMEOUT, is_outdated).await {
        Ok(Ok(is_outdated)) => Ok(!is_outdated),
        Ok(Err(_)) => Err(Rejected("the frontend ended the stream".to_owned()).into()),
        Err(_) => Ok(false),
    }
}

/// Reads until the stream or its reader ends. Notifies of the first message, with whether the frontend does not follow
/// the API. After a Drain, the end of the stream is no error, however it ends.
async fn read(
    mut incoming: Streaming<EncodedMessage>,
    messages: &mpsc::Sender<ServerMessage>,
    first_message: oneshot::Sender<bool>,
) -> Result<(), StreamError> {
    let mut first_message = Some(first_message);
    let mut is_drained = false;
    loop {
        let message = tokio::select! {
            message = incoming.message() => match message {
                Err(status) if is_drained => {
                    debug!(error = chain(&status), "the drained stream ended");
                    None
                }
                // The reader has closed the connection, for example a command that has its answer.
                Err(_) if messages.is_closed() => None,
                message => message.map_err(StreamError::Status)?,
            },
            () = messages.closed() => None,
        };
        let Some(message) = message else { return Ok(()) };

        let message = ServerMessage::try_from(message).map_err(StreamError::Invalid)?;
        let is_outdated = matches!(&message, ServerMessage::Welcome(welcome) if welcome.is_outdated);
        // Fails if the receiver no longer waits for it.
        let _ = first_message.take().map(|notify| notify.send(is_outdated));
        is_drained |= matches!(message, ServerMessage::Drain(_));
        if messages.send(message).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;

//! One stream, independent of its transport: a cursor, and at most one message that the client has yet to answer.
//!
//! ```text
//!            Hello                   new revision: batches ──▶ AwaitingAck ──Ack──▶ Idle
//!   client ────────▶ Welcome ─▶ Idle ─ no change: Bookmark ──▶ AwaitingAck ──Ack──▶ Idle
//!                                   └ history too short, or an Ack with a wrong digest:
//!                                     DigestRequest ─▶ AwaitingDigests ──DigestResponse─▶ repair ─▶ AwaitingAck
//! ```
//!
//! The next difference is sent only when the last one has been acknowledged, so a slow node is sent less often, and all
//! commits since at once. Welcome is sent once every kind of object has been listed; nothing is sent before.
//!
//! Snapshots and repairs wait in the rebuild queue (`clients`), which limits how many are sent at the same time, to one
//! client one. A node that asks for them too often is delayed by the rate limiter.
//!
//! `Batch.base` is the last revision that was sent to the client, also when buckets are repaired. It is 0 in the
//! snapshot or repair that a stream starts with.

mod digest_check;
mod progress;
mod sink;
mod state;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use proto::{
    InvalidMessage, MAX_MESSAGE_BYTES,
    model::{ClientMessage, Hello, KindVersions, Revision, Role, ServerMessage, SourceVersion},
};
use runtime::{Rate, Shutdown};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, Span, debug, info, info_span, warn};

use crate::{
    clients::StreamPermit,
    context::FrontendContext,
    excerpt::excerpt,
    identity::{AccessDenied, Identity, is_node_name},
    metrics::Rejection,
};

pub(crate) use self::sink::OutgoingMessage;
use self::{sink::MessageSink, state::Session};

/// The most messages that wait between a session and its connection, in each direction. A longer queue would only take
/// memory: messages are computed as late as possible.
pub(crate) const QUEUED_MESSAGES: usize = 2;
/// How much the age limit of a stream varies, as a fraction of the configured one.
const AGE_JITTER: f64 = 0.2;
/// How long after the shutdown the listeners are certainly closed: a client that reconnects at once must not be
/// accepted again.
const LISTENER_CLOSE_DELAY: Duration = Duration::from_millis(50);
/// The most characters that are kept of the name, and of the version, of a backend: a client chooses them, and status,
/// logs and Events show them.
const MAX_LABEL_CHARS: usize = 64;

/// A protocol error or a refusal that ends a stream.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The client opened a stream and did not send Hello.
    #[error("no Hello within {0:?}: send Hello as soon as the stream is open")]
    NoHello(Duration),
    /// The client sent another message before Hello.
    #[error("the first message must be a Hello")]
    HelloExpected,
    /// The client sent Hello twice.
    #[error("a second Hello on one stream: open another stream instead")]
    SecondHello,
    /// The client sent a message before it received Welcome.
    #[error("a message before the Welcome: after Hello, wait for Welcome")]
    TooEarly,
    /// The client acknowledged another commit or bookmark than the one in flight, or the last one again.
    #[error(
        "ack.received_number: is {number}, but was {acked} in the last Ack: count each commit and bookmark exactly once"
    )]
    UnexpectedAck {
        /// The number in the Ack.
        number: u64,
        /// The number in the last one.
        acked: u64,
    },
    /// The client sent a DigestResponse without a DigestRequest.
    #[error("unexpected DigestResponse: send it only in answer to a DigestRequest")]
    UnexpectedDigests,
    /// The client repeated its last Ack too often.
    #[error("the last Ack was repeated too often: the limit is {} at once, then one per {:?}", .0.burst, .0.every)]
    TooManyRepeats(Rate),
    /// The node has as many streams as it may have.
    #[error("this node already has {0} streams in this role, which is the limit: close one first")]
    TooManyStreams(usize),
    /// The client may not follow this node in this role.
    #[error(transparent)]
    Denied(#[from] AccessDenied),
    /// The frontend serves another node only.
    #[error(
        "hello.node: this process serves node {0} only, as `fairlead local` does: connect to a `fairlead frontend`"
    )]
    OtherNode(Arc<str>),
    /// The client and this frontend support different protocol versions.
    #[error("no common protocol version: {0}")]
    Version(String),
    /// A message of the client is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// A message of the client is not encoded as the protocol says.
    #[error("cannot decode a message: {0}")]
    Undecodable(String),
    /// A message of the client is too large.
    #[error("a message is larger than {} KiB: send only the first 256 KiB of failures", MAX_MESSAGE_BYTES >> 10)]
    TooLarge,
    /// The client did not end its stream after a Drain.
    #[error("{reason}, and the client did not end its stream within {grace:?} of Drain: reconnect")]
    Drained {
        /// Why the stream ends.
        reason: &'static str,
        /// How long the client had.
        grace: Duration,
    },
}

/// How a stream ends.
#[derive(Debug)]
enum SessionEnd {
    /// The client has disconnected, or the engine has ended.
    Disconnected,
    /// The client is to reconnect, for this reason.
    Drained(&'static str),
    /// The client broke the protocol.
    ProtocolError(SessionError),
}

/// One stream: who has opened it, and the messages in both directions.
struct ClientStream<Input> {
    context: Arc<FrontendContext>,
    identity: Identity,
    input: Input,
    output: MessageSink,
}

/// The client of a stream, as log lines and the status of its node name it.
#[derive(Debug)]
struct StreamClient {
    /// Whose share of log lines the stream takes.
    counted_as: Identity,
    /// The node whose status shows errors of the stream. `None` unless the client says that it is the backend of a node
    /// whose name is valid.
    backend_of: Option<Arc<str>>,
    span: Span,
}

/// Runs a stream until `input` ends, the receiver of `output` is dropped, or the shutdown.
///
/// # Errors
/// When the client breaks the protocol, or `input` has an error.
pub(crate) async fn run(
    context: Arc<FrontendContext>,
    identity: Identity,
    input: impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin,
    output: mpsc::Sender<OutgoingMessage>,
    shutdown: Shutdown,
) -> Result<(), SessionError> {
    let mut stream = ClientStream { context: context.clone(), identity, input, output: MessageSink::new(output) };
    let Some(hello) = stream.receive_hello().await? else { return Ok(()) };
    let client = StreamClient::of(&stream.identity, &hello);

    let admitted = admit(&context, &stream.identity, &hello);
    let permit = admitted.inspect_err(|error| client.report(&context, error, "stream rejected"))?;

    let served = async {
        match stream.serve_until_end(hello, permit, shutdown).await {
            SessionEnd::Disconnected => {
                debug!("stream ended");
                Ok(())
            }
            SessionEnd::Drained(reason) => {
                debug!(reason, "draining the stream");
                stream.drain(reason).await
            }
            SessionEnd::ProtocolError(error) => {
                client.report(&context, &error, "stream closed after a protocol error");
                Err(error)
            }
        }
    };
    served.instrument(client.span.clone()).await
}

// === The start of a stream ===

/// Decides whether a stream is accepted: whether the client may follow the node, can be understood, and has a stream
/// left.
fn admit(context: &FrontendContext, identity: &Identity, hello: &Hello) -> Result<StreamPermit, SessionError> {
    let Hello { node, role, .. } = hello;
    if !is_node_name(node) {
        let reason =
            "is not a valid name of a Node, which has at most 253 lower case letters, digits, '-' and '.'".to_owned();
        return Err(InvalidMessage { field: "hello.node".to_owned(), reason }.into());
    }

    identity.may_follow(node, *role)?;
    if let Some(only_node) = &context.config.only_node
        && only_node != node
    {
        return Err(SessionError::OtherNode(only_node.clone()));
    }

    hello.check_version().map_err(SessionError::Version)?;

    let streams = context.config.streams_per_node;
    context.rate_limiter.open_stream(hello).ok_or(SessionError::TooManyStreams(streams))
}

/// A Hello with the start of the name and version of the backend.
fn truncated_hello(hello: Hello) -> Hello {
    let start = |text: &str| text.chars().take(MAX_LABEL_CHARS).collect();
    Hello { backend: start(&hello.backend), backend_version: start(&hello.backend_version), ..hello }
}

impl StreamClient {
    fn of(identity: &Identity, hello: &Hello) -> Self {
        let Hello { node, role, .. } = hello;
        if !is_node_name(node) {
            // The name may have any length and any characters.
            let span = stream_span(&excerpt(&format!("{node:?}")), *role);
            return Self { counted_as: identity.clone(), backend_of: None, span };
        }

        let is_backend = *role == Role::Backend;
        Self {
            counted_as: identity.counted_as(node),
            backend_of: is_backend.then(|| node.clone()),
            span: stream_span(node, *role),
        }
    }

    /// Logs and counts an error that ends the stream, and shows it in the status of the node.
    fn report(&self, context: &FrontendContext, error: &SessionError, text: &str) {
        match context.count_session_error(&self.counted_as) {
            Some(count) => info!(parent: &self.span, error = excerpt(error), count, "{text}"),
            None => debug!(parent: &self.span, error = excerpt(error), "{text}"),
        }

        if matches!(error, SessionError::Denied(_)) {
            // Its status stays, because the client may not act as the backend of this node.
            context.metrics.rejected(Rejection::NotPermitted);
            return;
        }

        context.metrics.rejected(Rejection::Protocol);
        if let Some(node) = &self.backend_of {
            context.streams.set_error(node, excerpt(error));
        }
    }
}

fn stream_span(node: &str, role: Role) -> Span {
    info_span!("stream", %node, ?role)
}

// === Serving a stream ===

impl<Input: Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin> ClientStream<Input> {
    /// Waits for the first message of a client, which is its Hello. `None`: it has disconnected instead.
    async fn receive_hello(&mut self) -> Result<Option<Hello>, SessionError> {
        let deadline = self.context.config.hello_deadline;
        let first = timeout(deadline, self.input.next()).await.map_err(|_| SessionError::NoHello(deadline))?;

        match first.transpose()? {
            None => Ok(None),
            Some(ClientMessage::Hello(hello)) => Ok(Some(truncated_hello(hello))),
            Some(_) => Err(SessionError::HelloExpected),
        }
    }

    /// Serves a stream until it ends. Its maximum age and the shutdown interrupt the session wherever it waits, because
    /// the client may have stopped reading.
    async fn serve_until_end(&mut self, hello: Hello, permit: StreamPermit, shutdown: Shutdown) -> SessionEnd {
        let context = self.context.clone();
        let age = context.config.max_stream_age.map(jittered);
        tokio::select! {
            Err(end) = self.serve(hello, permit) => end,
            () = sleep(age.unwrap_or_default()), if age.is_some() => SessionEnd::Drained("the stream is too old"),
            () = until_drain(&context, shutdown) => SessionEnd::Drained("the frontend shuts down"),
        }
    }

    /// Everything after Hello.
    async fn serve(&mut self, hello: Hello, permit: StreamPermit) -> Result<Infallible, SessionEnd> {
        let mut revisions = self.context.cluster.revisions();
        self.before_welcome(until_ready(&mut revisions, &permit)).await?;
        if hello.resume.is_none_or(|(epoch, _)| epoch != self.context.cluster.epoch) {
            self.catch_up(&hello).await?;
        }

        let Self { context, identity, input, output } = self;
        let mut session = Session::start(context.clone(), identity, hello, permit, output).await?;

        // One timer and one listener for the whole stream: creating them for each message would cost more than the
        // message. The timer is reset when it fires before the bookmark is due.
        let timer = sleep_until(session.bookmark_at);
        let closed = session.output.closed();
        tokio::pin!(timer, closed);

        loop {
            revisions.borrow_and_update();
            session.advance().await?;

            let is_idle = session.is_idle();
            let permit_expires_at = session.output.permit.as_ref().map(|permit| permit.expires_at);
            tokio::select! {
                () = &mut closed => return Err(SessionEnd::Disconnected),
                message = input.next() => session.on_message(message.ok_or(SessionEnd::Disconnected)??).await?,
                changed = revisions.changed(), if is_idle => changed.map_err(|_| SessionEnd::Disconnected)?,
                () = runtime::sleep_until(permit_expires_at) => {
                    session.output.permit = None;
                }
                () = &mut timer, if is_idle => {
                    if session.bookmark_at <= Instant::now() {
                        session.bookmark().await?;
                    }
                    timer.as_mut().reset(session.bookmark_at);
                }
            }
        }
    }

    /// Waits for `awaited`. The client must not send anything meanwhile.
    async fn before_welcome<T>(
        &mut self,
        awaited: impl Future<Output = Result<T, SessionEnd>>,
    ) -> Result<T, SessionEnd> {
        tokio::select! {
            result = awaited => result,
            () = self.output.closed() => Err(SessionEnd::Disconnected),
            message = self.input.next() => {
                message.ok_or(SessionEnd::Disconnected)??;
                Err(SessionError::TooEarly.into())
            }
        }
    }

    /// Waits until this frontend has at least the client's source version, also of each kind. Meanwhile a client with
    /// several frontends to choose from, which receives nothing here, connects to another one. After a timeout the
    /// client is served what there is: the API may have been restored from a backup. A client can claim any version as
    /// often as it likes: log lines about it are counted.
    async fn catch_up(&mut self, hello: &Hello) -> Result<(), SessionEnd> {
        let context = self.context.clone();
        let mut versions = context.cluster.kind_versions();
        let kinds = *versions.borrow_and_update();
        let version = kinds.newest();
        if version == SourceVersion::default() || !is_behind(kinds, hello) {
            return Ok(());
        }

        let client = self.identity.counted_as(&hello.node);
        let client_version = hello.source_version;
        let older: Vec<_> = kinds.older_kinds(hello.kind_versions).collect();
        let text = "client has a newer source version than this frontend, waiting to catch up";
        match context.count_newer_version(&client, false) {
            Some(count) => info!(%client_version, %version, ?older, count, "{text}"),
            None => debug!(%client_version, %version, ?older, "{text}"),
        }

        let limit = context.config.catch_up_timeout;
        if self.before_welcome(has_caught_up(versions, hello, limit)).await? {
            return Ok(());
        }

        context.metrics.rollbacks.inc();
        if hello.role == Role::Backend {
            context.streams.rolled_back(&hello.node);
        }
        let text = "did not catch up in time, rolling the client back to an older version";
        match context.count_newer_version(&client, true) {
            Some(count) => warn!(%client_version, %version, ?older, count, "{text}"),
            None => debug!(%client_version, %version, ?older, "{text}"),
        }
        Ok(())
    }

    /// Asks the client to reconnect, and waits for it to end the stream.
    ///
    /// # Errors
    /// When the client does not end the stream in time.
    async fn drain(self, reason: &'static str) -> Result<(), SessionError> {
        let grace = self.context.config.drain_grace;
        timeout(grace, self.drained()).await.map_err(|_| {
            debug!("client did not end its stream in time");
            SessionError::Drained { reason, grace }
        })
    }

    /// Sends Drain, and returns when the client has ended the stream. Its messages are discarded.
    async fn drained(mut self) {
        self.output.permit = None;
        // The delay is zero, because the stream has waited for its turn already.
        let drain = OutgoingMessage::Plain(ServerMessage::Drain(Duration::ZERO));
        if self.output.send(drain).await.is_err() {
            return;
        }

        loop {
            tokio::select! {
                () = self.output.closed() => return,
                message = self.input.next() => {
                    let Some(Ok(_)) = message else { return };
                }
            }
        }
    }
}

/// Waits until every kind of object has been listed, and until the node may be sent its state.
async fn until_ready(
    revisions: &mut watch::Receiver<Option<Revision>>,
    permit: &StreamPermit,
) -> Result<(), SessionEnd> {
    revisions.wait_for(Option::is_some).await.map_err(|_| SessionEnd::Disconnected)?;
    permit.acquire_sync().await;
    Ok(())
}

/// Whether these versions of a frontend are older than those of the client, the newest of all kinds or that of a kind.
fn is_behind(kinds: KindVersions, hello: &Hello) -> bool {
    kinds.newest() < hello.source_version || kinds.older_kinds(hello.kind_versions).next().is_some()
}

/// Waits until this frontend is not behind a client any more. Returns whether that happened within the limit.
async fn has_caught_up(
    mut versions: watch::Receiver<KindVersions>,
    hello: &Hello,
    limit: Duration,
) -> Result<bool, SessionEnd> {
    let caught_up = versions.wait_for(|kinds| !is_behind(*kinds, hello));
    match timeout(limit, caught_up).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(_)) => Err(SessionEnd::Disconnected),
        Err(_) => Ok(false),
    }
}

/// Returns at a random time after the shutdown, so that not all clients reconnect at once: until then each is sent all
/// changes.
async fn until_drain(context: &FrontendContext, mut shutdown: Shutdown) {
    shutdown.recv().await;
    let streams = u32::try_from(context.streams.count()).unwrap_or(u32::MAX);
    sleep(LISTENER_CLOSE_DELAY + context.config.drain_delay(streams).mul_f64(fastrand::f64())).await;
}

/// Varies an age by up to a fifth, so that streams which began together do not end together.
pub(crate) fn jittered(age: Duration) -> Duration {
    age.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fastrand::f64())
}

/// The longest that a stream can live under [`Config::max_stream_age`](crate::Config).
pub(crate) fn max_jittered(age: Duration) -> Duration {
    age.mul_f64(1.0 + AGE_JITTER)
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> Self {
        Self::ProtocolError(error)
    }
}

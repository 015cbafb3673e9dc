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

mod sink;
mod state;
#[cfg(test)]
mod tests;
mod truncated;

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use proto::{
    InvalidMessage, MAX_MESSAGE_BYTES,
    model::{ClientMessage, Hello, KindVersions, Role, ServerMessage, SourceVersion},
};
use runtime::{Rate, Shutdown};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::{
    clients::StreamPermit,
    context::FrontendContext,
    excerpt::excerpt,
    identity::{AccessDenied, Identity, is_node_name},
    metrics::Rejection,
};

pub(crate) use self::sink::OutgoingMessage;
use self::{sink::MessageSink, state::Session, truncated::truncated_hello};

/// The most messages that wait between a session and its connection, in each direction. A longer queue would only take
/// memory: messages are computed as late as possible.
pub(crate) const QUEUED_MESSAGES: usize = 2;
/// How much the age limit of a stream varies, as a fraction of the configured one.
const AGE_JITTER: f64 = 0.2;
/// How long after the shutdown the listeners are certainly closed: a client that reconnects at once must not be
/// accepted again.
const LISTENER_CLOSE_DELAY: Duration = Duration::from_millis(50);

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
    #[error("ack.received_number: is {number}, after {acked} in the last Ack: count each commit and bookmark once")]
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
    #[error("a message is larger than {} KiB: of the failures send the first 256 KiB", MAX_MESSAGE_BYTES >> 10)]
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

#[derive(Debug)]
enum SessionEnd {
    /// The client has disconnected, or the engine has ended.
    Disconnected,
    /// The client is to reconnect, for this reason.
    Drained(&'static str),
    /// The client broke the protocol.
    ProtocolError(SessionError),
}

/// Runs a stream until `input` ends, the receiver of `output` is dropped, or the shutdown.
///
/// # Errors
/// When the client breaks the protocol, or `input` has an error.
pub(crate) async fn run(
    context: Arc<FrontendContext>,
    identity: Identity,
    mut input: impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin,
    output: mpsc::Sender<OutgoingMessage>,
    shutdown: Shutdown,
) -> Result<(), SessionError> {
    let hello = match timeout(context.config.hello_deadline, input.next()).await {
        Err(_) => return Err(SessionError::NoHello(context.config.hello_deadline)),
        Ok(None) => return Ok(()),
        Ok(Some(Ok(ClientMessage::Hello(hello)))) => truncated_hello(hello),
        Ok(Some(Ok(_))) => return Err(SessionError::HelloExpected),
        Ok(Some(Err(error))) => return Err(error),
    };
    let (node, role) = (hello.node.clone(), hello.role);
    let is_valid = is_node_name(&node);
    // An invalid name may have any length and any characters.
    let (shown, client) = if is_valid {
        (node.clone(), identity.counted_as(&node))
    } else {
        (excerpt(&format!("{node:?}")).into(), identity.clone())
    };
    let span = info_span!("stream", node = %shown, role = ?role);
    let permit = (|| {
        if !is_valid {
            let reason =
                "is no name of a Node, which has at most 253 lower case letters, digits, '-' and '.'".to_owned();
            return Err(SessionError::Invalid(InvalidMessage { field: "hello.node".to_owned(), reason }));
        }
        identity.may_follow(&node, role)?;
        if let Some(only_node) = context.config.only_node.as_ref().filter(|only_node| **only_node != node) {
            return Err(SessionError::OtherNode(only_node.clone()));
        }
        hello.check_version().map_err(SessionError::Version)?;
        let streams = context.config.streams_per_node;
        context.rate_limiter.open_stream(&hello).ok_or(SessionError::TooManyStreams(streams))
    })();
    let report = |error: &SessionError, text: &str| {
        match context.count_session_error(&client) {
            Some(count) => info!(parent: &span, error = excerpt(error), count, "{text}"),
            None => debug!(parent: &span, error = excerpt(error), "{text}"),
        }
        let is_denied = matches!(error, SessionError::Denied(_));
        context.metrics.rejected(if is_denied { Rejection::NotPermitted } else { Rejection::Protocol });
        // Only a client that may act as the backend of this node changes its status.
        if is_valid && !is_denied && role == Role::Backend {
            context.streams.set_error(&node, excerpt(error));
        }
    };
    let permit = permit.inspect_err(|error| report(error, "stream rejected"))?;
    async {
        let mut output = MessageSink::new(output);
        let age = context.config.max_stream_age.map(jittered);
        let end = tokio::select! {
            Err(end) = serve(&context, &identity, hello, permit, &mut input, &mut output) => end,
            // Both interrupt a session wherever it waits: its client may have stopped reading.
            () = sleep(age.unwrap_or_default()), if age.is_some() => SessionEnd::Drained("the stream is too old"),
            () = until_drain(&context, shutdown) => SessionEnd::Drained("the frontend shuts down"),
        };
        match end {
            SessionEnd::Disconnected => {
                debug!("stream ended");
                Ok(())
            }
            SessionEnd::Drained(reason) => {
                debug!(reason, "draining the stream");
                drain(&context, reason, input, output).await
            }
            SessionEnd::ProtocolError(error) => {
                report(&error, "stream closed after a protocol error");
                Err(error)
            }
        }
    }
    .instrument(span.clone())
    .await
}

/// Everything after Hello.
async fn serve(
    context: &Arc<FrontendContext>,
    identity: &Identity,
    hello: Hello,
    permit: StreamPermit,
    input: &mut (impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin),
    output: &mut MessageSink,
) -> Result<std::convert::Infallible, SessionEnd> {
    let mut revisions = context.cluster.revisions();
    let ready = async {
        revisions.wait_for(Option::is_some).await.map_err(|_| SessionEnd::Disconnected)?;
        permit.acquire_sync().await;
        Ok(())
    };
    before_welcome(ready, input, output).await?;
    if hello.resume.is_none_or(|(epoch, _)| epoch != context.cluster.epoch) {
        catch_up(context, &identity.counted_as(&hello.node), &hello, input, output).await?;
    }
    let mut session = Session::start(context.clone(), identity, hello, permit, output).await?;
    // One timer and one listener for the whole stream: creating them for each message would cost more than the message.
    // The timer is reset when it fires before the bookmark is due.
    let timer = sleep_until(session.bookmark_at);
    let closed = session.output.closed();
    tokio::pin!(timer, closed);
    loop {
        revisions.borrow_and_update();
        session.advance().await?;
        let idle = session.is_idle();
        let permit_expires_at = session.output.permit.as_ref().map(|permit| permit.expires_at);
        tokio::select! {
            () = &mut closed => return Err(SessionEnd::Disconnected),
            message = input.next() => session.on_message(message.ok_or(SessionEnd::Disconnected)??).await?,
            changed = revisions.changed(), if idle => changed.map_err(|_| SessionEnd::Disconnected)?,
            () = runtime::sleep_until(permit_expires_at) => {
                session.output.permit = None;
            }
            () = &mut timer, if idle => {
                if session.bookmark_at <= Instant::now() {
                    session.bookmark().await?;
                }
                timer.as_mut().reset(session.bookmark_at);
            }
        }
    }
}

/// Waits until this frontend has at least the client's source version, also of each kind. Meanwhile a client with
/// several frontends to choose from, which receives nothing here, connects to another one. After a timeout the client
/// is served what there is: the API may have been restored from a backup. A client can claim any version as often as it
/// likes: log lines about it are counted.
async fn catch_up(
    context: &FrontendContext,
    client: &Identity,
    hello: &Hello,
    input: &mut (impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin),
    output: &MessageSink,
) -> Result<(), SessionEnd> {
    let (client_version, client_kinds) = (hello.source_version, hello.kind_versions);
    let mut versions = context.cluster.kind_versions();
    let kinds = *versions.borrow_and_update();
    let version = kinds.newest();
    let is_behind =
        |kinds: KindVersions| kinds.newest() < client_version || kinds.older_kinds(client_kinds).next().is_some();
    if version == SourceVersion::default() || !is_behind(kinds) {
        return Ok(());
    }
    let older: Vec<_> = kinds.older_kinds(client_kinds).collect();
    let text = "client has a newer source version than this frontend, waiting to catch up";
    match context.count_newer_version(client, false) {
        Some(count) => info!(%client_version, %version, ?older, count, "{text}"),
        None => debug!(%client_version, %version, ?older, "{text}"),
    }
    let caught_up = versions.wait_for(|versions| !is_behind(*versions));
    let caught_up = async {
        if let Ok(caught_up) = timeout(context.config.catch_up_timeout, caught_up).await {
            return caught_up.map(drop).map_err(|_| SessionEnd::Disconnected);
        }
        context.metrics.rollbacks.inc();
        if hello.role == Role::Backend {
            context.streams.rolled_back(&hello.node);
        }
        let text = "did not catch up in time, rolling the client back to an older version";
        match context.count_newer_version(client, true) {
            Some(count) => warn!(%client_version, %version, ?older, count, "{text}"),
            None => debug!(%client_version, %version, ?older, "{text}"),
        }
        Ok(())
    };
    before_welcome(caught_up, input, output).await
}

/// Waits for `awaited`. The client must not send anything meanwhile.
async fn before_welcome(
    awaited: impl Future<Output = Result<(), SessionEnd>>,
    input: &mut (impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin),
    output: &MessageSink,
) -> Result<(), SessionEnd> {
    tokio::select! {
        result = awaited => result,
        () = output.closed() => Err(SessionEnd::Disconnected),
        message = input.next() => {
            message.ok_or(SessionEnd::Disconnected)??;
            Err(SessionError::TooEarly.into())
        }
    }
}

/// Returns at a random time after the shutdown, so that not all clients reconnect at once: until then each is sent all
/// changes.
async fn until_drain(context: &FrontendContext, mut shutdown: Shutdown) {
    shutdown.recv().await;
    let streams = u32::try_from(context.streams.count()).unwrap_or(u32::MAX);
    sleep(LISTENER_CLOSE_DELAY + context.config.drain_delay(streams).mul_f64(fastrand::f64())).await;
}

/// Asks the client to reconnect, and waits for it to end the stream. Messages of the client are discarded.
///
/// # Errors
/// When the client does not end the stream in time.
async fn drain(
    context: &FrontendContext,
    reason: &'static str,
    mut input: impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin,
    mut output: MessageSink,
) -> Result<(), SessionError> {
    let grace = context.config.drain_grace;
    // It has waited for its turn already.
    let drain = OutgoingMessage::Plain(ServerMessage::Drain(Duration::ZERO));
    let drained = async {
        output.permit = None;
        if output.send(drain).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                () = output.closed() => return,
                message = input.next() => {
                    let Some(Ok(_)) = message else { return };
                }
            }
        }
    };
    timeout(grace, drained).await.map_err(|_| {
        debug!("client did not end its stream in time");
        SessionError::Drained { reason, grace }
    })
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

//! One stream, whatever carries it: a cursor and at most one thing that the client has yet to answer.
//!
//! ```text
//!            Hello                      new revision: batches ──▶ AwaitingAck ──Ack──▶ Idle
//!   client ────────▶ Welcome ──▶ Idle ─ quiet: Bookmark ────────▶ AwaitingAck ──Ack──▶ Idle
//!                                     └ lost track, or an Ack with another digest:
//!                                       DigestRequest ──▶ AwaitingDigests ──Digests──▶ repair: batches ──▶ AwaitingAck
//! ```
//!
//! A new difference is computed only when the last one has been acknowledged, so a slow node is sent less often, and the
//! net difference each time. Welcome is sent when every kind of object is known; until then a client hears nothing.
//!
//! A snapshot or a repair is put together and sent when the client is admitted (`admission`): only so many are at a time. Before
//! that, and before its Welcome, a node that asks often waits (`rate_limiter`).
//!
//! `Batch.base` is the revision that the client was told last, also when buckets are repaired on the way; 0 in the snapshot
//! or repair that a stream starts with.

mod rate_limiter;
mod rebuild_queue;
mod sink;
mod state;
#[cfg(test)]
mod tests;
mod token_bucket;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{Stream, StreamExt as _};
use proto::{
    InvalidMessage,
    model::{ClientMessage, Hello, Revision, Role, ServerMessage, SourceVersion},
};
use runtime::Shutdown;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::{
    engine::Shared,
    identity::{AccessDenied, Identity},
    metrics::Rejection,
    outgoing::OutgoingMessage,
};

pub use self::{rate_limiter::NodeLimits, token_bucket::Rate};
pub(crate) use self::{rate_limiter::RateLimiter, rebuild_queue::RebuildQueue};
use self::{rate_limiter::StreamPermit, sink::MessageSink, state::Session};

/// How much the age of a stream may differ from the configured one, as a part of it.
const AGE_JITTER: f64 = 0.2;
/// The longest name of a Node, as of any object (DNS subdomain, RFC 1123), in bytes.
const MAX_NODE_NAME: usize = 253;

/// What a client has done wrong. Ends its stream.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It never said Hello.
    #[error("no Hello within {0:?}")]
    NoHello(Duration),
    /// It said something else first.
    #[error("the first message must be a Hello")]
    HelloExpected,
    /// It said Hello again.
    #[error("a second Hello on one stream")]
    SecondHello,
    /// It spoke before it was welcomed.
    #[error("a message before the Welcome")]
    TooEarly,
    /// It acknowledged what it was not sent.
    #[error("ack of revision {acked}, but the last one sent is {sent}")]
    UnexpectedAck {
        /// What it acknowledged.
        acked: Revision,
        /// What it was sent last.
        sent: Revision,
    },
    /// It sent digests without being asked.
    #[error("digests that nobody has asked for")]
    UnexpectedDigests,
    /// It repeated its last Ack again and again.
    #[error("the last Ack was repeated too often: {} at once and one each {:?} after that", .0.burst, .0.every)]
    TooManyRepeats(Rate),
    /// Its node has streams enough.
    #[error("this node has {0} streams already")]
    TooManyStreams(usize),
    /// It asked for what is not for it.
    #[error(transparent)]
    Denied(#[from] AccessDenied),
    /// It sent something that cannot be read.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
}

/// How a session ends.
#[derive(Debug)]
enum SessionEnd {
    /// The client is gone, or the writer is.
    Gone,
    /// The process stops.
    Stopping,
    /// The stream is so old that the client may as well try another frontend.
    Aged,
    /// The client broke the rules.
    Broken(SessionError),
}

/// Runs a stream to its end: that of `input`, of the receiver of `output`, or the shutdown.
///
/// # Errors
/// When the client breaks the rules, or `input` has an error.
pub(crate) async fn run(
    shared: Arc<Shared>,
    identity: Identity,
    mut input: impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin,
    output: mpsc::Sender<OutgoingMessage>,
    shutdown: Shutdown,
) -> Result<(), SessionError> {
    let hello = match timeout(shared.config.hello_deadline, input.next()).await {
        Err(_) => return Err(SessionError::NoHello(shared.config.hello_deadline)),
        Ok(None) => return Ok(()),
        Ok(Some(Ok(ClientMessage::Hello(hello)))) => hello,
        Ok(Some(Ok(_))) => return Err(SessionError::HelloExpected),
        Ok(Some(Err(error))) => return Err(error),
    };
    if hello.node.len() > MAX_NODE_NAME {
        let reason = format!("is longer than {MAX_NODE_NAME} bytes");
        return Err(InvalidMessage { field: "hello.node".to_owned(), reason }.into());
    }
    if let Err(denied) = identity.may_follow(&hello.node, hello.role) {
        info!(error = %denied, "stream refused");
        shared.metrics.rejected(Rejection::NotPermitted);
        return Err(denied.into());
    }
    let span = info_span!("stream", node = %hello.node, role = ?hello.role);
    let (node, role) = (hello.node.clone(), hello.role);
    let permit = match shared.rate_limiter.enter(&hello) {
        Ok(permit) => permit,
        Err(error) => {
            info!(parent: &span, %error, "stream refused");
            shared.metrics.rejected(Rejection::Protocol);
            return Err(error);
        }
    };
    async {
        let mut output = MessageSink::new(output, shutdown);
        let age = shared.config.max_stream_age.map(jittered);
        let end = tokio::select! {
            followed = follow(&shared, hello, permit, &mut input, &mut output) => match followed {
                Ok(never) => match never {},
                Err(end) => end,
            },
            // Also of a client that has stopped reading: it may be anywhere.
            () = sleep(age.unwrap_or_default()), if age.is_some() => SessionEnd::Aged,
        };
        match end {
            SessionEnd::Gone => debug!("stream ended"),
            SessionEnd::Stopping => drain(&shared, input, output).await,
            SessionEnd::Aged => {
                debug!("the stream has become old, its client may go to another frontend");
                drain(&shared, input, output).await;
            }
            SessionEnd::Broken(error) => {
                info!(%error, "stream ended by a protocol error");
                shared.metrics.rejected(Rejection::Protocol);
                if role == Role::Backend {
                    shared.streams.broke(&node, &error);
                }
                return Err(error);
            }
        }
        Ok(())
    }
    .instrument(span)
    .await
}

/// Everything after Hello.
async fn follow(
    shared: &Arc<Shared>,
    hello: Hello,
    permit: StreamPermit,
    input: &mut (impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin),
    output: &mut MessageSink,
) -> Result<std::convert::Infallible, SessionEnd> {
    let mut revisions = shared.revisions();
    tokio::select! {
        welcome = async {
            revisions.wait_for(Option::is_some).await.map_err(|_| SessionEnd::Gone)?;
            permit.turn().await;
            Ok::<_, SessionEnd>(())
        } => welcome?,
        end = output.ended() => return Err(end),
        event = input.next() => {
            event.ok_or(SessionEnd::Gone)??;
            return Err(SessionError::TooEarly.into());
        }
    }
    if hello.resume.is_none_or(|(epoch, _)| epoch != shared.log().epoch()) {
        catch_up(shared, hello.source_version, input, output).await?;
    }
    let mut session = Session::start(shared.clone(), hello, permit, output).await?;
    // For the whole stream, so that what is sent costs neither a timer nor a place among those who wait for the shutdown. The
    // timer is set anew when it rings too early.
    let (timer, ended) = (sleep_until(session.bookmark_at()), output.ended());
    tokio::pin!(timer, ended);
    loop {
        revisions.borrow_and_update();
        session.advance(output).await?;
        let idle = session.is_idle();
        let slot_until = output.slot_until();
        tokio::select! {
            end = &mut ended => return Err(end),
            event = input.next() => session.on_event(event.ok_or(SessionEnd::Gone)??, output).await?,
            changed = revisions.changed(), if idle => changed.map_err(|_| SessionEnd::Gone)?,
            () = sleep_until(slot_until.unwrap_or_else(Instant::now)), if slot_until.is_some() => output.release(),
            () = &mut timer, if idle => {
                if session.bookmark_at() <= Instant::now() {
                    session.bookmark(output).await?;
                }
                timer.as_mut().reset(session.bookmark_at());
            }
        }
    }
}

/// Waits until as much is known here as the client holds. One that has other frontends to choose from goes there, as it hears nothing;
/// after a while it is served what there is: the API may have been restored from a backup.
async fn catch_up(
    shared: &Shared,
    held: SourceVersion,
    input: &mut (impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin),
    output: &MessageSink,
) -> Result<(), SessionEnd> {
    let mut known = shared.known();
    let here = *known.borrow_and_update();
    if here == SourceVersion::default() || here >= held {
        return Ok(());
    }
    info!(%held, %here, "the client holds more of the cluster than is known here, waiting");
    tokio::select! {
        caught_up = known.wait_for(|here| *here >= held) => { caught_up.map_err(|_| SessionEnd::Gone)?; }
        () = sleep(shared.config.catch_up_timeout) => {
            shared.set_back.fetch_add(1, Ordering::Relaxed);
            warn!(%held, %here, "the client is set back to what is known here");
        }
        end = output.ended() => return Err(end),
        event = input.next() => {
            event.ok_or(SessionEnd::Gone)??;
            return Err(SessionError::TooEarly.into());
        }
    }
    Ok(())
}

/// Asks the client to go elsewhere, and gives it some time to do so. What it says until then does not matter any more.
async fn drain(
    shared: &Shared,
    mut input: impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin,
    mut output: MessageSink,
) {
    let deadline = Instant::now() + shared.config.drain_delay + shared.config.drain_grace;
    let drain = OutgoingMessage::Event(ServerMessage::Drain(shared.config.drain_delay));
    let drained = async {
        if output.send_last(drain).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                () = output.closed() => return,
                event = input.next() => {
                    let Some(Ok(_)) = event else { return };
                }
            }
        }
    };
    if timeout_at(deadline, drained).await.is_err() {
        debug!("the client did not close its stream in time");
    }
}

/// At random up to a fifth more or less, so that streams which began together do not end together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fastrand::f64())
}

/// The most that [`Config::max_stream_age`](crate::Config) can become for one stream.
pub(crate) fn oldest(age: Duration) -> Duration {
    age.mul_f64(1.0 + AGE_JITTER)
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> Self {
        Self::Broken(error)
    }
}

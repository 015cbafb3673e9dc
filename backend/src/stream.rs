//! Follows the stream of a frontend: one session after the other, with a delay between them.
//!
//! ```text
//!            ┌── waiting (a reconnect delay, or that of a drain) ◀────────┐
//!            ▼                                                             │ ended, idle, rejected, drained
//!   Connect::connect(hello) ──▶ Session ──▶ StreamFollower::next ──▶ StreamEvent
//!            ▲                                                             │
//!            └── the session stays until another one has its Welcome ◀─────┘ outdated
//! ```

mod reconnect;
mod session;

use std::{mem, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures::future::BoxFuture;
use proto::model::{ClientMessage, Hello, ServerMessage, Welcome};
use runtime::{
    failure::{Recovery, Repeated, chain},
    warn_if_news,
};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;

pub use reconnect::ReconnectDelays;
use reconnect::ReconnectTimer;
use session::OpenSession;
pub use session::{Connect, Rejected, Session};

/// How long connecting may take: all attempts together, as the frontends are tried one after the other.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting to another frontend may take while there is a session, which is not read meanwhile. Less
/// than the time after which a node counts as one that does not acknowledge, and more than one frontend may take.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(8);

/// A message of a frontend, or the begin or end of a session.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    Connected,
    Message(ServerMessage),
    /// The session has ended. Its uncommitted batches are void.
    Lost,
    /// The session has ended, as in `Lost`, and another one has begun.
    Replaced,
}

/// Follows one session after the other.
pub(crate) struct StreamFollower<C> {
    connect: C,
    timer: ReconnectTimer,
    phase: Phase,
    connect_failures: Repeated,
}

enum Phase {
    Waiting(Instant),
    Connecting(BoxFuture<'static, Result<Session>>),
    Open(OpenSession),
    /// The frontend does not follow the API. Its session is not read meanwhile: the hello says what it had sent.
    Replacing {
        outdated: OpenSession,
        successor: BoxFuture<'static, Result<OpenSession>>,
    },
}

impl<C: Connect> StreamFollower<C> {
    pub(crate) fn new(connect: C, delays: ReconnectDelays) -> Self {
        let timer = ReconnectTimer::new(delays);
        Self { connect, timer, phase: Phase::Waiting(Instant::now()), connect_failures: Repeated::default() }
    }

    /// The next event. `hello` is called when a session begins. While the frontend waits for an ack, it sends nothing,
    /// so a session may be idle: HTTP/2 pings detect a lost connection. Cancel-safe.
    pub(crate) async fn next(&mut self, may_be_idle: bool, hello: impl Fn() -> Hello) -> StreamEvent {
        loop {
            match &mut self.phase {
                Phase::Waiting(until) => {
                    sleep_until(*until).await;
                    self.begin_connecting(hello());
                }
                Phase::Connecting(connecting) => match connecting.await {
                    Ok(session) => {
                        self.connected(session);
                        return StreamEvent::Connected;
                    }
                    Err(error) => self.connect_failed(&error),
                },
                Phase::Open(session) if session.is_to_be_replaced(may_be_idle) => self.begin_replacement(hello()),
                Phase::Open(session) => match session.next(may_be_idle).await {
                    Ok(Some(ServerMessage::Drain(max))) => session.drain(max),
                    Ok(Some(message)) => {
                        if let ServerMessage::Bookmark(bookmark) = &message {
                            session.note_freshness(bookmark.is_outdated);
                        }
                        return StreamEvent::Message(message);
                    }
                    Ok(None) => {}
                    Err(reason) => {
                        self.end_session(reason);
                        return StreamEvent::Lost;
                    }
                },
                Phase::Replacing { successor, .. } => match successor.await {
                    Ok(session) => {
                        info!("session ended: a frontend that follows the API replaces this one");
                        self.timer.reset();
                        self.phase = Phase::Open(session);
                        return StreamEvent::Replaced;
                    }
                    Err(error) => {
                        info!(error = chain(error.as_ref()), "found no other frontend that follows the API, staying");
                        self.end_replacement();
                    }
                },
            }
        }
    }

    fn begin_connecting(&mut self, hello: Hello) {
        let connecting = self.connect.connect(hello);
        self.phase = Phase::Connecting(Box::pin(async move {
            let session = timeout(SESSION_TIMEOUT, connecting).await;
            session.with_context(|| format!("no session within {SESSION_TIMEOUT:?}"))?
        }));
    }

    fn connected(&mut self, session: Session) {
        if let Some(Recovery { count: failures, duration }) = self.connect_failures.recovered() {
            info!(failures, after_ms = duration.as_millis(), "connection restored");
        }
        self.phase = Phase::Open(OpenSession::new(session));
    }

    fn connect_failed(&mut self, error: &anyhow::Error) {
        let delay = self.timer.next_delay(error.is::<Rejected>());
        let error = chain(error.as_ref());
        let retry_in_ms = delay.as_millis();
        let occurrence = self.connect_failures.failed(&error);
        warn_if_news!(occurrence, error, retry_in_ms, "cannot connect to a frontend, retrying");
        self.phase = Phase::Waiting(Instant::now() + delay);
    }

    /// Queues a message for the frontend. Without an open session it is dropped.
    pub(crate) fn reply(&mut self, message: ClientMessage) {
        if let Phase::Open(session) | Phase::Replacing { outdated: session, .. } = &mut self.phase {
            session.reply(message);
        }
    }

    fn take_phase(&mut self) -> Phase {
        mem::replace(&mut self.phase, Phase::Waiting(Instant::now()))
    }

    /// Connects to another frontend. The session stays until the other frontend has sent its Welcome.
    fn begin_replacement(&mut self, hello: Hello) {
        let Phase::Open(outdated) = self.take_phase() else { return };
        let connecting = self.connect.connect_to_fresh(hello);
        let successor = Box::pin(async move {
            let session = timeout(REPLACEMENT_TIMEOUT, welcomed(connecting)).await;
            session.with_context(|| format!("no Welcome within {REPLACEMENT_TIMEOUT:?}"))?
        });
        self.phase = Phase::Replacing { outdated, successor };
    }

    /// Follows the outdated frontend on.
    fn end_replacement(&mut self) {
        if let Phase::Replacing { mut outdated, .. } = self.take_phase() {
            outdated.stay();
            self.phase = Phase::Open(outdated);
        }
    }

    /// Ends the session. After a long session the delays are short again. After a drain, its deadline takes the place
    /// of the delay.
    pub(crate) fn end_session(&mut self, reason: &str) {
        let now = Instant::now();
        let mut drain_deadline = None;
        let mut is_rejected = false;
        if let Phase::Open(session) = &self.phase {
            if now - session.opened > self.timer.delays.max {
                self.timer.reset();
            }
            drain_deadline = session.drain_deadline;
            is_rejected = !session.is_accepted;
        }

        let until = drain_deadline.unwrap_or_else(|| now + self.timer.next_delay(is_rejected));
        info!(reason, reconnect_in_ms = until.saturating_duration_since(now).as_millis(), "session ended");
        self.phase = Phase::Waiting(until);
    }

    /// Ends the session. The next one begins at once, if possible with another frontend.
    pub(crate) fn change_frontend(&mut self) {
        self.phase = Phase::Waiting(Instant::now());
    }
}

/// The session whose first message, a Welcome, says that the frontend follows the API.
async fn welcomed(connecting: BoxFuture<'static, Result<Session>>) -> Result<OpenSession> {
    let mut session = connecting.await?;
    match session.messages.recv().await.context("the frontend ended the stream")? {
        first @ ServerMessage::Welcome(Welcome { is_outdated: false, .. }) => Ok(OpenSession::begun(session, first)),
        _ => bail!("the only other frontend does not follow the API either, or is shutting down"),
    }
}

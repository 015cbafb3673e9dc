//! Follows the stream of a frontend: one session after the other, with a delay between them.
//!
//! ```text
//!            ┌── waiting (a reconnect delay, or that of a drain) ◀────────┐
//!            ▼                                                             │ ended, idle, rejected
//!   Connect::connect(hello) ──▶ Session ──▶ StreamFollower::next ──▶ StreamEvent
//!            ▲                                                             │
//!            └── the session stays open until there is the next one ◀──────┘ drained
//! ```

mod reconnect;
mod session;

use std::{mem, time::Duration};

use anyhow::{Context as _, Result};
use futures::future::{self, BoxFuture};
use proto::model::{ClientMessage, Hello, ServerMessage};
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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum StreamEvent {
    Connected,
    Message(ServerMessage),
    /// The session has ended. Its uncommitted batches are void.
    Lost,
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
    Connecting {
        connecting: BoxFuture<'static, Result<Session>>,
        /// The session of a frontend that drains. It is not read meanwhile: the hello says what it had sent.
        drained: Option<OpenSession>,
    },
    Open(OpenSession),
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
                    self.begin_session(hello(), None);
                }
                Phase::Connecting { connecting, drained } => match connecting.await {
                    Ok(session) if drained.is_some() => {
                        info!("session ended: another one replaces it");
                        let connecting = Box::pin(future::ok(session));
                        self.phase = Phase::Connecting { connecting, drained: None };
                        return StreamEvent::Lost;
                    }
                    Ok(session) => {
                        if let Some(Recovery { count: failures, duration }) = self.connect_failures.recovered() {
                            info!(failures, after_ms = duration.as_millis(), "connection restored");
                        }
                        self.phase = Phase::Open(OpenSession::new(session));
                        return StreamEvent::Connected;
                    }
                    Err(error) => {
                        let drained = drained.take();
                        self.connect_failed(&error, drained);
                    }
                },
                Phase::Open(session) => match session.next(may_be_idle).await {
                    Ok(Some(ServerMessage::Drain(max))) => session.drain(max),
                    Ok(Some(message)) => return StreamEvent::Message(message),
                    Ok(None) if session.is_drained() => {
                        let phase = mem::replace(&mut self.phase, Phase::Waiting(Instant::now()));
                        let Phase::Open(session) = phase else { continue };
                        self.begin_session(hello(), Some(session));
                    }
                    Ok(None) => {}
                    Err(reason) => {
                        self.end_session(reason);
                        return StreamEvent::Lost;
                    }
                },
            }
        }
    }

    /// Queues a message for the frontend. Without an open session it is dropped.
    pub(crate) fn reply(&mut self, message: ClientMessage) {
        if let Phase::Open(session) | Phase::Connecting { drained: Some(session), .. } = &mut self.phase {
            session.reply(message);
        }
    }

    fn begin_session(&mut self, hello: Hello, drained: Option<OpenSession>) {
        let connecting = self.connect.connect(hello);
        let connecting = Box::pin(async move {
            let session = timeout(CONNECT_TIMEOUT, connecting).await;
            session.with_context(|| format!("no session within {CONNECT_TIMEOUT:?}"))?
        });
        self.phase = Phase::Connecting { connecting, drained };
    }

    /// Ends the session. After a long one the delays are short again; that of a drain replaces them.
    pub(crate) fn end_session(&mut self, reason: &str) {
        let now = Instant::now();
        let (mut until, mut is_rejected) = (None, false);
        if let Phase::Open(session) = &self.phase {
            if now - session.opened > self.timer.delays.max {
                self.timer.reset();
            }
            until = session.drain_deadline;
            is_rejected = !session.is_accepted;
        }
        let until = until.unwrap_or_else(|| now + self.timer.next_delay(is_rejected));
        info!(reason, reconnect_in_ms = until.saturating_duration_since(now).as_millis(), "session ended");
        self.phase = Phase::Waiting(until);
    }

    /// Ends the session. The next one begins at once, if possible with another frontend.
    pub(crate) fn change_frontend(&mut self) {
        self.phase = Phase::Waiting(Instant::now());
    }

    fn connect_failed(&mut self, error: &anyhow::Error, drained: Option<OpenSession>) {
        let error_text = chain(error.as_ref());
        if let Some(mut session) = drained {
            info!(error = error_text, "cannot connect to another frontend, following the one that drains");
            session.drain_deadline = None;
            self.phase = Phase::Open(session);
            return;
        }
        let delay = self.timer.next_delay(error.is::<Rejected>());
        let error = error_text;
        let retry_in_ms = delay.as_millis();
        let occurrence = self.connect_failures.failed(&error);
        warn_if_news!(occurrence, error, retry_in_ms, "cannot connect to a frontend, retrying");
        self.phase = Phase::Waiting(Instant::now() + delay);
    }
}

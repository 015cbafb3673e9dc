//! The seam between the agent and whatever its events come from: one session after the other, as long as the node lives.
//!
//! ```text
//!            ┌──────────── waiting (backoff, or the delay of a drain) ◀───────────┐
//!            ▼                                                                    │ ended, silent, refused, drained
//!   Connect::connect(hello) ──▶ Session { events, replies } ──▶ StreamFollower::next ──▶ StreamEvent
//! ```

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context as _, Result};
use futures::future::BoxFuture;
use proto::model::{ClientMessage, Hello, ServerMessage};
use runtime::Backoff;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tracing::{info, warn};

/// The most replies that wait for a peer that does not read. What a lost one would have said, the next one says too.
const MAX_REPLIES: usize = 256;

/// A session is refused when it is not established within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream, seen from the node. It has ended when `events` has.
#[derive(Debug)]
pub struct Session {
    /// From the frontend.
    pub events: mpsc::Receiver<ServerMessage>,
    /// To the frontend. The hello has been said already.
    pub replies: mpsc::Sender<ClientMessage>,
}

/// Establishes sessions: over gRPC ([`crate::Grpc`]), or with a frontend in the same process ([`InProcess`]).
pub trait Connect: Send + 'static {
    /// Begins a session by saying hello. Each call may choose another peer.
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>>;
}

/// Sessions with a frontend in the same process: a function that takes the hello and gives the two ends of one.
#[derive(Clone, Debug)]
pub struct InProcess<F>(pub F);

/// When to give a session up, and how soon to begin another.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// A session in which nothing has been heard for so long is cut: the frontend sends a bookmark every ten seconds.
    pub silence: Duration,
    /// The shortest and the longest delay before connecting again.
    pub reconnect: (Duration, Duration),
    /// How long to wait before the frontend, or another one, is asked to say again what was held back.
    pub hold: Duration,
}

/// What [`StreamFollower::next`] has to tell.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// A session has begun.
    Connected,
    /// The frontend said something.
    Server(ServerMessage),
    /// The session has ended. What was not committed will not be.
    Lost,
}

/// Whose turn it is to say something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The frontend's: its silence is a reason to go.
    Theirs,
    /// Ours: a frontend waits for the ack of what it said last, so its silence means nothing. HTTP/2 pings tell whether it is
    /// still there.
    Ours,
}

/// Follows one session after the other.
pub(crate) struct StreamFollower<C> {
    connect: C,
    options: StreamOptions,
    backoff: Backoff,
    phase: Phase,
}

enum Phase {
    Waiting(Instant),
    Connecting(BoxFuture<'static, Result<Session>>),
    Open(Open),
}

/// A session that is followed.
struct Open {
    session: Session,
    replies: VecDeque<ClientMessage>,
    since: Instant,
    /// Since when the frontend might have said something and did not.
    quiet: Instant,
    /// When to leave, if the frontend wants that.
    drain: Option<Instant>,
}

/// Something that happened in an open session.
enum Step {
    Event(ServerMessage),
    Replied,
    Ended,
    Silent,
    Drained,
}

// === impl StreamOptions ===

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            // Three bookmarks missed.
            silence: Duration::from_secs(30),
            reconnect: (Duration::from_millis(200), Duration::from_secs(15)),
            hold: Duration::from_secs(10),
        }
    }
}

// === impl InProcess ===

impl<F> Connect for InProcess<F>
where
    F: FnMut(Hello) -> (mpsc::Sender<ClientMessage>, mpsc::Receiver<ServerMessage>) + Send + 'static,
{
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let (replies, events) = self.0(hello);
        Box::pin(std::future::ready(Ok(Session { events, replies })))
    }
}

// === impl StreamFollower ===

impl<C: Connect> StreamFollower<C> {
    pub(crate) fn new(connect: C, options: StreamOptions) -> Self {
        let (min, max) = options.reconnect;
        Self { connect, options, backoff: Backoff::new(min, max), phase: Phase::Waiting(Instant::now()) }
    }

    /// What happens next. `hello` is asked when a session begins. May be dropped and called again.
    pub(crate) async fn next(&mut self, turn: Turn, hello: impl Fn() -> Hello) -> StreamEvent {
        loop {
            match &mut self.phase {
                Phase::Waiting(until) => {
                    sleep_until(*until).await;
                    let connecting = self.connect.connect(hello());
                    self.phase = Phase::Connecting(Box::pin(async move {
                        let within = timeout(CONNECT_TIMEOUT, connecting).await;
                        within.with_context(|| format!("no session within {CONNECT_TIMEOUT:?}"))?
                    }));
                }
                Phase::Connecting(connecting) => match connecting.await {
                    Ok(session) => {
                        self.phase = Phase::Open(Open::new(session));
                        return StreamEvent::Connected;
                    }
                    Err(error) => {
                        let delay = self.backoff.next_delay();
                        warn!(error = format!("{error:#}"), retry_in = ?delay, "no session with a frontend");
                        self.phase = Phase::Waiting(Instant::now() + delay);
                    }
                },
                Phase::Open(open) => match open.step(turn, self.options.silence).await {
                    Step::Event(ServerMessage::Drain(max)) => open.drain(max),
                    Step::Event(event) => return StreamEvent::Server(event),
                    Step::Replied => {}
                    Step::Ended => break self.give_up("the frontend ended it"),
                    Step::Silent => break self.give_up("nothing was heard for too long"),
                    Step::Drained => break self.give_up("the frontend is being drained"),
                },
            }
        }
        StreamEvent::Lost
    }

    /// Says something in the open session; nothing happens when there is none.
    pub(crate) fn reply(&mut self, event: ClientMessage) {
        if let Phase::Open(open) = &mut self.phase {
            if open.replies.len() == MAX_REPLIES {
                open.replies.pop_front();
            }
            open.replies.push_back(event);
        }
    }

    /// Ends the session. A session that lasted starts the backoff anew. A drain that is under way is the delay itself.
    pub(crate) fn give_up(&mut self, reason: &str) {
        let (now, mut until) = (Instant::now(), None);
        if let Phase::Open(open) = &self.phase {
            if now - open.since > self.options.reconnect.1 {
                self.backoff.reset();
            }
            until = open.drain;
        }
        let until = until.unwrap_or_else(|| now + self.backoff.next_delay());
        info!(reason, retry_in = ?until.saturating_duration_since(now), "session ended");
        self.phase = Phase::Waiting(until);
    }

    /// Ends the session to hear everything anew, after some time. Says how long.
    pub(crate) fn hold(&mut self) -> Duration {
        let delay = self.options.hold;
        self.phase = Phase::Waiting(Instant::now() + delay);
        delay
    }
}

// === impl Open ===

impl Open {
    fn new(session: Session) -> Self {
        let now = Instant::now();
        Self { session, replies: VecDeque::new(), since: now, quiet: now, drain: None }
    }

    /// May be dropped and called again.
    async fn step(&mut self, turn: Turn, silence: Duration) -> Step {
        let Self { session, replies, quiet, drain, .. } = self;
        let leave = drain.unwrap_or(*quiet);
        tokio::select! {
            // What was said before the end counts.
            biased;
            permit = session.replies.reserve(), if !replies.is_empty() => match permit {
                Ok(permit) => {
                    if let Some(reply) = replies.pop_front() {
                        permit.send(reply);
                        *quiet = Instant::now();
                    }
                    Step::Replied
                }
                // Nobody reads any more; what was sent may still be read.
                Err(_) => {
                    replies.clear();
                    Step::Replied
                }
            },
            event = session.events.recv() => match event {
                Some(event) => {
                    *quiet = Instant::now();
                    Step::Event(event)
                }
                None => Step::Ended,
            },
            () = sleep_until(leave), if drain.is_some() => Step::Drained,
            () = sleep_until(*quiet + silence), if turn == Turn::Theirs => Step::Silent,
        }
    }

    /// Leaves after a random part of `max`, so that not all nodes come to the next frontend at once.
    fn drain(&mut self, max: Duration) {
        let delay = max.mul_f64(fastrand::f64());
        info!(?delay, "frontend asks to connect elsewhere");
        self.drain = Some(Instant::now() + delay);
    }
}

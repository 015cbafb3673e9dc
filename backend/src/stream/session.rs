//! A session with a frontend, and the trait that establishes sessions.

use std::{collections::VecDeque, mem, time::Duration};

use anyhow::Result;
use futures::future::{self, BoxFuture};
use proto::model::{ClientMessage, Hello, ServerMessage};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::info;

/// A session without a message for this long is ended: three missed bookmarks, which the frontend sends every ten
/// seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a frontend that does not follow the API is followed before another one is tried.
const MIN_REPLACE_INTERVAL: Duration = Duration::from_secs(300);
/// The longest such time. It doubles with each try, because perhaps no frontend follows the API.
const MAX_REPLACE_INTERVAL: Duration = Duration::from_secs(3600);

/// The shortest delay before a try, in which the bookmark is acknowledged.
const MIN_REPLACE_DELAY: Duration = Duration::from_secs(1);
/// The longest delay before a try. It is random, so that not all nodes try at once.
const MAX_REPLACE_DELAY: Duration = Duration::from_secs(6);

/// An established stream, seen from the node. It ends with its messages.
#[derive(Debug)]
pub struct Session {
    /// From the frontend.
    pub messages: mpsc::Receiver<ServerMessage>,
    /// To the frontend. The hello has been sent already.
    pub replies: mpsc::Sender<ClientMessage>,
}

/// A frontend answered and rejected the client: it will do so again soon.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);

/// Establishes sessions: over gRPC ([`crate::Grpc`]), or with a frontend in the same process: a function from the hello
/// to the channels of a session.
pub trait Connect: Send + 'static {
    /// Begins a session with this hello. Each call may choose another frontend. An error that is [`Rejected`] is
    /// retried less often than others.
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>>;

    /// The same, if possible with a frontend that follows the API.
    fn connect_to_fresh(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        self.connect(hello)
    }
}

pub(super) struct OpenSession {
    session: Session,
    /// The replies that are not sent yet: at most one message of each kind.
    replies: VecDeque<ClientMessage>,
    pub(super) opened: Instant,
    /// Whether the frontend has sent anything.
    pub(super) is_accepted: bool,
    /// The last message in either direction.
    last_message: Instant,
    /// When the session ends, if the frontend drains.
    pub(super) drain_deadline: Option<Instant>,
    /// The first message, if it was received before the session was open.
    first: Option<ServerMessage>,
    replacement: ReplacementTimer,
}

/// When another frontend is tried, because this one does not follow the API.
struct ReplacementTimer {
    /// The time of the next try; `None` while the frontend follows the API, and until the first message after `from`
    /// that says otherwise.
    at: Option<Instant>,
    /// The earliest time of the next try.
    from: Instant,
    /// The time from the last try to `from`.
    interval: Duration,
}

impl<F> Connect for F
where
    F: FnMut(Hello) -> (mpsc::Sender<ClientMessage>, mpsc::Receiver<ServerMessage>) + Send + 'static,
{
    fn connect(&mut self, hello: Hello) -> BoxFuture<'static, Result<Session>> {
        let (replies, messages) = self(hello);
        Box::pin(future::ready(Ok(Session { messages, replies })))
    }
}

impl OpenSession {
    pub(super) fn new(session: Session) -> Self {
        let now = Instant::now();
        Self {
            session,
            replies: VecDeque::new(),
            opened: now,
            is_accepted: false,
            last_message: now,
            drain_deadline: None,
            first: None,
            replacement: ReplacementTimer {
                at: None,
                from: now + MIN_REPLACE_INTERVAL,
                interval: MIN_REPLACE_INTERVAL,
            },
        }
    }

    /// A session of which the first message was received.
    pub(super) fn begun(session: Session, first: ServerMessage) -> Self {
        Self { first: Some(first), ..Self::new(session) }
    }

    /// Whether another frontend is to be tried now: not while this one waits for a reply.
    pub(super) fn is_to_be_replaced(&self, may_be_idle: bool) -> bool {
        !may_be_idle && self.replies.is_empty() && self.replacement.at.is_some_and(|at| at <= Instant::now())
    }

    /// No other frontend is better.
    pub(super) fn stay(&mut self) {
        let interval = (2 * self.replacement.interval).min(MAX_REPLACE_INTERVAL);
        self.replacement = ReplacementTimer { at: None, from: Instant::now() + interval, interval };
    }

    /// Records whether the frontend says that it does not follow the API.
    pub(super) fn note_freshness(&mut self, is_outdated: bool) {
        let now = Instant::now();
        let ReplacementTimer { at, from, .. } = &mut self.replacement;
        if !is_outdated {
            *at = None;
        } else if now >= *from && at.is_none() {
            let spread = MAX_REPLACE_DELAY - MIN_REPLACE_DELAY;
            *at = Some(now + MIN_REPLACE_DELAY + spread.mul_f64(fastrand::f64()));
        }
    }

    /// Queues a message. It replaces the message of its kind that is not sent yet, because each describes the present:
    /// a frontend that does not read must not make the queue grow.
    pub(super) fn reply(&mut self, message: ClientMessage) {
        let kind = mem::discriminant(&message);
        self.replies.retain(|reply| mem::discriminant(reply) != kind);
        self.replies.push_back(message);
    }

    /// The next message; `None` after a reply was sent, or when another frontend is to be tried. An error is the reason
    /// to end the session, such as no message for [`IDLE_TIMEOUT`], unless it `may_be_idle`. Cancel-safe.
    pub(super) async fn next(&mut self, may_be_idle: bool) -> Result<Option<ServerMessage>, &'static str> {
        let Self { session, replies, is_accepted, last_message, drain_deadline, replacement, first, .. } = self;
        if let Some(first) = first.take() {
            *is_accepted = true;
            return Ok(Some(first));
        }

        let idle_at = *last_message + IDLE_TIMEOUT;
        tokio::select! {
            // Messages that were sent before the session ended still count.
            biased;
            permit = session.replies.reserve(), if !replies.is_empty() => {
                match permit {
                    Ok(permit) => {
                        if let Some(reply) = replies.pop_front() {
                            permit.send(reply);
                            *last_message = Instant::now();
                        }
                    }
                    // The frontend no longer reads, but messages that it sent may still arrive.
                    Err(_) => replies.clear(),
                }
                Ok(None)
            }
            message = session.messages.recv() => match message {
                Some(message) => {
                    *last_message = Instant::now();
                    *is_accepted = true;
                    Ok(Some(message))
                }
                None => Err("the frontend closed it"),
            },
            () = runtime::sleep_until(*drain_deadline) => Err("the frontend drains"),
            () = runtime::sleep_until(replacement.at), if !may_be_idle && replies.is_empty() => Ok(None),
            () = sleep_until(idle_at), if !may_be_idle => Err("no message within the idle timeout"),
        }
    }

    /// Leaves after a random part of `max`, so that not all nodes reconnect at once. Only the first call counts.
    pub(super) fn drain(&mut self, max: Duration) {
        if self.drain_deadline.is_some() {
            return;
        }
        let delay = max.mul_f64(fastrand::f64());
        info!(reconnect_in_ms = delay.as_millis(), "frontend drains, will reconnect");
        self.drain_deadline = Some(Instant::now() + delay);
    }
}

#[cfg(test)]
mod tests {
    use proto::model::{Ack, Revision};

    use super::*;

    #[tokio::test]
    async fn unread_replies_are_replaced_by_newer_ones() {
        let (_messages, received) = mpsc::channel(1);
        let (replies, mut sent) = mpsc::channel(1);
        let mut session = OpenSession::new(Session { messages: received, replies });
        for number in 1..=1000 {
            session.reply(ClientMessage::Ack(Ack::complete(number, None)));
            session.reply(ClientMessage::DigestResponse(Revision(number), Box::default()));
        }
        assert_eq!(session.replies.len(), 2);

        session.next(true).await.unwrap();
        assert_eq!(sent.recv().await, Some(ClientMessage::Ack(Ack::complete(1000, None))));
        session.next(true).await.unwrap();
        assert!(matches!(sent.recv().await, Some(ClientMessage::DigestResponse(Revision(1000), _))));
    }
}

//! One `Watch` call: its session, and the stream of encoded messages that the session sends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::{Stream, StreamExt as _};
use proto::{encoded::EncodedMessage, model::ClientMessage, v1};
use runtime::Shutdown;
use tokio::{sync::mpsc, task::JoinSet};
use tonic::{Status, Streaming};
use tracing::debug;

use super::{authn, connection::CallGuard};
use crate::{
    OutgoingMessage, SessionError,
    identity::Identity,
    metrics::Metrics,
    session::{self, SessionContext},
};

/// How many messages wait for the connection. A longer queue would only take memory: messages are computed as late as
/// possible.
const MESSAGES: usize = 2;

/// The messages to a client.
pub(super) struct WatchStream {
    /// The task of the session, which must run also while the client does not read. Empty once its result has been
    /// returned. Dropping the set aborts the task.
    session: JoinSet<Result<(), SessionError>>,
    outgoing: mpsc::Receiver<OutgoingMessage>,
    metrics: Arc<Metrics>,
    _call: Option<CallGuard>,
}

impl WatchStream {
    pub(super) fn new(
        context: Arc<SessionContext>,
        identity: Identity,
        messages: Streaming<v1::ClientMessage>,
        call: Option<CallGuard>,
        shutdown: Shutdown,
    ) -> Self {
        let (sender, outgoing) = mpsc::channel(MESSAGES);
        let metrics = context.metrics.clone();
        let running = session::run(context, identity, events(messages), sender, shutdown);
        let mut session = JoinSet::new();
        session.spawn(running);
        Self { session, outgoing, metrics, _call: call }
    }
}

impl Stream for WatchStream {
    type Item = Result<EncodedMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.outgoing.poll_recv(context)) {
            let message = message.encode(&self.metrics.chunks);
            self.metrics.sent(message.len());
            return Poll::Ready(Some(Ok(message)));
        }
        // The session, which held the sender, has ended.
        Poll::Ready(match ready!(self.session.poll_join_next(context)) {
            None | Some(Ok(Ok(()))) => None,
            Some(Ok(Err(error))) => Some(Err(to_status(error))),
            Some(Err(error)) => Some(Err(Status::internal(error.to_string()))),
        })
    }
}

/// The messages of the client, until the connection ends.
fn events(
    messages: Streaming<v1::ClientMessage>,
) -> impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin {
    let events = messages.map(|message| match message {
        Ok(message) => Some(ClientMessage::try_from(message).map_err(SessionError::from)),
        Err(status) => {
            debug!(%status, "connection lost");
            None
        }
    });
    events.take_while(|event| std::future::ready(event.is_some())).filter_map(std::future::ready)
}

fn to_status(error: SessionError) -> Status {
    let message = error.to_string();
    match error {
        SessionError::Denied(error) => authn::denied(&error),
        SessionError::NoHello(_) => Status::deadline_exceeded(message),
        SessionError::TooManyRepeats(_) | SessionError::TooManyStreams(_) => Status::resource_exhausted(message),
        SessionError::Invalid(error) if error.field.ends_with("protocol_version") => {
            Status::failed_precondition(message)
        }
        SessionError::Invalid(_)
        | SessionError::HelloExpected
        | SessionError::SecondHello
        | SessionError::TooEarly
        | SessionError::UnexpectedAck { .. }
        | SessionError::UnexpectedDigests => Status::invalid_argument(message),
    }
}

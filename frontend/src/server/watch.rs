//! One `Watch` call: the stream of answers that drives its session.

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

use super::{authn, connection::Call};
use crate::{OutgoingMessage, SessionError, engine::Shared, identity::Identity, session};

/// How many messages wait in a stream for its connection. More would only take memory: they are computed as late as
/// possible.
const MESSAGES: usize = 2;

/// What a client is answered.
pub(super) struct WatchStream {
    /// A task of its own: answers are not asked for while the client does not read, but time goes on. One task, or none once its
    /// end has been told; it ends at the latest with this.
    session: JoinSet<Result<(), SessionError>>,
    frames: mpsc::Receiver<OutgoingMessage>,
    shared: Arc<Shared>,
    _call: Option<Call>,
}

impl WatchStream {
    pub(super) fn new(
        shared: Arc<Shared>,
        identity: Identity,
        messages: Streaming<v1::ClientMessage>,
        call: Option<Call>,
        shutdown: Shutdown,
    ) -> Self {
        let (sender, frames) = mpsc::channel(MESSAGES);
        let running = session::run(shared.clone(), identity, events(messages), sender, shutdown);
        let mut session = JoinSet::new();
        session.spawn(running);
        Self { session, frames, shared, _call: call }
    }
}

impl Stream for WatchStream {
    type Item = Result<EncodedMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(frame) = ready!(self.frames.poll_recv(context)) {
            let message = frame.encode(&self.shared.encodings);
            self.shared.metrics.sent(message.len());
            return Poll::Ready(Some(Ok(message)));
        }
        // The session held the sender: it has ended.
        Poll::Ready(match ready!(self.session.poll_join_next(context)) {
            None | Some(Ok(Ok(()))) => None,
            Some(Ok(Err(error))) => Some(Err(to_status(error))),
            Some(Err(error)) => Some(Err(Status::internal(error.to_string()))),
        })
    }
}

/// What the client says, until the connection ends.
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

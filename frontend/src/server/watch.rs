//! One `Watch` call: the stream of answers that drives its session.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{Stream, StreamExt as _};
use proto::{encoded::EncodedMessage, model::ClientEvent, v1};
use runtime::Shutdown;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};
use tracing::debug;

use super::gate;
use crate::{Frame, SessionError, engine::Shared, identity::Identity, session};

/// How many messages wait in a stream for its connection. More would only take memory: they are computed as late as
/// possible.
const MESSAGES: usize = 2;

type Session = Pin<Box<dyn Future<Output = Result<(), SessionError>> + Send>>;

/// What a client is answered.
pub(super) struct WatchStream {
    /// `None` once it has ended.
    session: Option<Session>,
    frames: mpsc::Receiver<Frame>,
    shared: Arc<Shared>,
    /// What to say when all frames have been taken.
    failure: Option<Status>,
}

impl WatchStream {
    pub(super) fn new(
        shared: Arc<Shared>,
        identity: Identity,
        messages: Streaming<v1::ClientMessage>,
        shutdown: Shutdown,
    ) -> Self {
        let (sender, frames) = mpsc::channel(MESSAGES);
        let session = session::run(shared.clone(), identity, events(messages), sender, shutdown);
        Self { session: Some(Box::pin(session)), frames, shared, failure: None }
    }
}

impl Stream for WatchStream {
    type Item = Result<EncodedMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(session) = &mut self.session
            && let Poll::Ready(ended) = session.as_mut().poll(context)
        {
            self.session = None;
            self.failure = ended.err().map(to_status);
        }
        // The session holds the sender: the channel ends with it, after what it has sent.
        self.frames.poll_recv(context).map(|frame| match frame {
            Some(frame) => {
                let message = frame.encode(&self.shared.encodings);
                self.shared.metrics.sent(message.len());
                Some(Ok(message))
            }
            None => self.failure.take().map(Err),
        })
    }
}

/// What the client says, until the connection ends.
fn events(
    messages: Streaming<v1::ClientMessage>,
) -> impl Stream<Item = Result<ClientEvent, SessionError>> + Send + Unpin {
    let events = messages.map(|message| match message {
        Ok(message) => Some(ClientEvent::try_from(message).map_err(SessionError::from)),
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
        SessionError::Denied(error) => gate::denied(&error),
        SessionError::NoHello(_) => Status::deadline_exceeded(message),
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

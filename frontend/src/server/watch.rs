//! One `Watch` call: its session, and the response body with the encoded messages that the session sends.
//!
//! tonic's own body would copy each message into a buffer per stream that never shrinks. With thousands of streams that
//! are sent the same snapshot, that would be most of the CPU time and most of the memory.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::Stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use proto::{model::ClientMessage, v1};
use runtime::Shutdown;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status, Streaming};
use tracing::debug;

use super::connection::CallGuard;
use crate::{
    SessionError,
    context::FrontendContext,
    identity::Identity,
    session::{self, OutgoingMessage, QUEUED_MESSAGES},
};

/// The response body of a call: the messages of its session, then the gRPC status.
pub(super) struct WatchBody {
    /// The task of the session, which must run also while the client does not read. Dropping the set aborts the task.
    session: JoinSet<Result<(), SessionError>>,
    outgoing: mpsc::Receiver<OutgoingMessage>,
    /// The rest of the current message.
    chunks: std::vec::IntoIter<Bytes>,
    accepts_gzip: bool,
    /// The status has been sent.
    is_ended: bool,
    context: Arc<FrontendContext>,
    _call: Option<CallGuard>,
}

impl WatchBody {
    pub(super) fn new(
        context: Arc<FrontendContext>,
        identity: Identity,
        messages: Streaming<v1::ClientMessage>,
        accepts_gzip: bool,
        call: Option<CallGuard>,
        shutdown: Shutdown,
    ) -> Self {
        let (sender, outgoing) = mpsc::channel(QUEUED_MESSAGES);
        let mut session = JoinSet::new();
        session.spawn(session::run(context.clone(), identity, decoded(messages), sender, shutdown));
        Self { session, outgoing, chunks: Vec::new().into_iter(), accepts_gzip, is_ended: false, context, _call: call }
    }
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }

        loop {
            if let Some(chunk) = self.chunks.next() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            let Some(message) = ready!(self.outgoing.poll_recv(context)) else { break };
            let frame = message.into_frame(self.accepts_gzip, &self.context.metrics);
            self.context.metrics.sent(frame.iter().map(Bytes::len).sum());
            self.chunks = frame.into_iter();
        }

        // The session, which held the sender, has ended.
        let status = match ready!(self.session.poll_join_next(context)) {
            None | Some(Ok(Ok(()))) => Status::ok(""),
            Some(Ok(Err(error))) => to_status(&error),
            Some(Err(error)) => Status::internal(error.to_string()),
        };

        self.is_ended = true;
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

/// The messages of the client, until the connection ends.
fn decoded(
    messages: Streaming<v1::ClientMessage>,
) -> impl Stream<Item = Result<ClientMessage, SessionError>> + Send + Unpin {
    messages.map_while(|message| match message {
        Ok(message) => Some(ClientMessage::try_from(message).map_err(SessionError::from)),
        Err(status) => match status.code() {
            Code::OutOfRange => Some(Err(SessionError::TooLarge)),
            Code::InvalidArgument => Some(Err(SessionError::Undecodable(status.message().to_owned()))),
            _ => {
                debug!(%status, "connection lost");
                None
            }
        },
    })
}

fn to_status(error: &SessionError) -> Status {
    let message = error.to_string();
    match error {
        SessionError::Denied(_) | SessionError::OtherNode(_) => Status::permission_denied(message),
        SessionError::NoHello(_) => Status::deadline_exceeded(message),
        SessionError::Drained { .. } => Status::unavailable(message),
        SessionError::TooManyRepeats(_) | SessionError::TooManyStreams(_) => Status::resource_exhausted(message),
        SessionError::Version(_) => Status::failed_precondition(message),
        SessionError::TooLarge => Status::out_of_range(message),
        SessionError::Invalid(_)
        | SessionError::Undecodable(_)
        | SessionError::HelloExpected
        | SessionError::SecondHello
        | SessionError::TooEarly
        | SessionError::UnexpectedAck { .. }
        | SessionError::UnexpectedDigests => Status::invalid_argument(message),
    }
}

//! The response body of a `Watch` call: encoded messages, then the gRPC status.
//!
//! tonic's own body would copy each message into a buffer per stream that never shrinks. With thousands of streams that
//! are sent the same snapshot, that would be most of the CPU time and most of the memory.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::Stream;
use http::HeaderMap;
use http_body::{Body, Frame};
use tonic::Status;

use super::watch::WatchStream;

/// The response body of one call.
pub(super) struct WatchBody {
    messages: WatchStream,
    /// The rest of the current message.
    chunks: std::vec::IntoIter<Bytes>,
    /// The status has been sent.
    is_ended: bool,
}

impl WatchBody {
    pub(super) fn new(messages: WatchStream) -> Self {
        Self { messages, chunks: Vec::new().into_iter(), is_ended: false }
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
            let status = match ready!(Pin::new(&mut self.messages).poll_next(context)) {
                Some(Ok(message)) => {
                    self.chunks = message.into_length_prefixed().into_iter();
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            self.is_ended = true;
            let mut trailers = HeaderMap::new();
            return Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

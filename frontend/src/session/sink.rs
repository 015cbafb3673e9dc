//! The messages of a session: where it sends them, and the permit under which it sends a snapshot or a repair.

use std::sync::Arc;

use bytes::Bytes;
use proto::{
    encoded::{EncodedMessage, gzip_batch},
    model::{Batch, ServerMessage},
};
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::info;

use crate::{clients::RebuildPermit, log::EncodedChunk, metrics::Metrics};

use super::SessionEnd;

/// Batches from this size in bytes are compressed: those of snapshots, repairs and large changes.
const MIN_COMPRESSED_BYTES: usize = 8 << 10;

/// One message to a client: a batch whose operations are shared with other streams, or anything else.
#[derive(Clone, Debug)]
pub(crate) enum OutgoingMessage {
    Plain(ServerMessage),
    Batch { header: Batch, chunks: Vec<Arc<EncodedChunk>> },
}

/// The sending side of a stream.
#[derive(Debug)]
pub(super) struct MessageSink {
    messages: mpsc::Sender<OutgoingMessage>,
    /// Held for what is sent from now on.
    pub(super) permit: Option<RebuildPermit>,
}

impl OutgoingMessage {
    /// Encodes the message. Chunks that another stream has sent already are not encoded again.
    pub(crate) fn encode(&self, metrics: &Metrics) -> EncodedMessage {
        match self {
            Self::Plain(message) => EncodedMessage::new(message),
            Self::Batch { header, chunks } => {
                EncodedMessage::batch(header, chunks.iter().map(|chunk| chunk.encoded(metrics)))
            }
        }
    }

    /// The message as gRPC sends it, with its header; compressed if the client accepts that and the message is large.
    pub(crate) fn into_frame(self, accepts_gzip: bool, metrics: &Metrics) -> Vec<Bytes> {
        match self {
            Self::Batch { header, chunks }
                if accepts_gzip && chunks.iter().map(|chunk| chunk.size()).sum::<usize>() >= MIN_COMPRESSED_BYTES =>
            {
                let chunks: Vec<_> = chunks.iter().map(|chunk| chunk.deflated(metrics)).collect();
                vec![gzip_batch(&header, &chunks)]
            }
            message => message.encode(metrics).into_length_prefixed(),
        }
    }

    /// The message as a value, for a client in the same process. Nothing is encoded.
    pub(crate) fn into_message(self) -> ServerMessage {
        match self {
            Self::Plain(message) => message,
            Self::Batch { header, chunks } => {
                let operations = chunks.iter().flat_map(|chunk| chunk.operations()).cloned().collect();
                ServerMessage::Batch(Batch { operations, ..header })
            }
        }
    }
}

impl MessageSink {
    pub(super) fn new(messages: mpsc::Sender<OutgoingMessage>) -> Self {
        Self { messages, permit: None }
    }

    /// Waits until the transport accepts the message, which takes as long as the client does not read. The permit is
    /// released when it expires meanwhile.
    pub(super) async fn send(&mut self, message: OutgoingMessage) -> Result<(), SessionEnd> {
        let message = match self.messages.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(SessionEnd::Disconnected),
            Err(TrySendError::Full(message)) => message,
        };
        let Self { messages, permit } = self;
        let sending = messages.send(message);
        tokio::pin!(sending);
        loop {
            let expires_at = permit.as_ref().map(|permit| permit.expires_at);
            tokio::select! {
                sent = &mut sending => return sent.map_err(|_| SessionEnd::Disconnected),
                () = runtime::sleep_until(expires_at) => {
                    info!("client reads its snapshot or repair too slowly, no longer delaying those of others");
                    *permit = None;
                }
            }
        }
    }

    /// Sends the message if the transport accepts it now, and discards it otherwise.
    pub(super) fn try_send(&self, message: OutgoingMessage) -> Result<(), SessionEnd> {
        match self.messages.try_send(message) {
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(SessionEnd::Disconnected),
        }
    }

    /// Returns when the client has disconnected: the transport has dropped the receiver.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let messages = self.messages.clone();
        async move { messages.closed().await }
    }
}

//! Messages from a session to its transport: a batch whose operations are shared with other streams, or anything else.

use std::sync::Arc;

use proto::{
    encoded::EncodedMessage,
    model::{Batch, ServerMessage},
};

use crate::log::{EncodedChunk, EncodingCounters};

/// One message to a client.
#[derive(Clone, Debug)]
pub enum OutgoingMessage {
    /// Anything but a batch.
    Plain(ServerMessage),
    /// A batch.
    Batch {
        /// The batch without its operations.
        header: Batch,
        /// Its operations.
        chunks: Vec<Arc<EncodedChunk>>,
    },
}

impl OutgoingMessage {
    /// Encodes the message. Chunks that another stream has sent already are not encoded again.
    #[must_use]
    pub fn encode(&self, counters: &EncodingCounters) -> EncodedMessage {
        match self {
            Self::Plain(message) => EncodedMessage::new(message),
            Self::Batch { header, chunks } => {
                EncodedMessage::batch(header, chunks.iter().map(|chunk| chunk.encoded(counters)))
            }
        }
    }

    /// The message as a value, for a client in the same process. Nothing is encoded.
    #[must_use]
    pub fn into_message(self) -> ServerMessage {
        match self {
            Self::Plain(message) => message,
            Self::Batch { header, chunks } => {
                let operations = chunks.iter().flat_map(|chunk| chunk.operations()).cloned().collect();
                ServerMessage::Batch(Batch { operations, ..header })
            }
        }
    }
}

//! What a session gives to its transport: an event, or a batch whose operations are shared with other streams.

use std::sync::Arc;

use proto::{
    encoded::EncodedMessage,
    model::{Batch, ServerMessage},
};

use crate::log::{EncodedChunk, EncodingCounters};

/// One message to a client.
#[derive(Clone, Debug)]
pub enum OutgoingMessage {
    /// A message that is not worth sharing.
    Event(ServerMessage),
    /// A batch.
    Batch {
        /// The batch but for its operations.
        header: Batch,
        /// Its operations.
        chunks: Vec<Arc<EncodedChunk>>,
    },
}

impl OutgoingMessage {
    /// For the wire. Operations that another stream has sent are not encoded again.
    #[must_use]
    pub fn encode(&self, counts: &EncodingCounters) -> EncodedMessage {
        match self {
            Self::Event(event) => EncodedMessage::new(event),
            Self::Batch { header, chunks } => {
                EncodedMessage::batch(header, chunks.iter().map(|chunk| chunk.encoded(counts)))
            }
        }
    }

    /// For a client in the same process. Nothing is encoded.
    #[must_use]
    pub fn into_event(self) -> ServerMessage {
        match self {
            Self::Event(event) => event,
            Self::Batch { header, chunks } => {
                let operations = chunks.iter().flat_map(|chunk| chunk.operations()).cloned().collect();
                ServerMessage::Batch(Batch { operations, ..header })
            }
        }
    }
}

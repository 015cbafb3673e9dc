//! What a session gives to its transport: an event, or a batch whose operations are shared with other streams.

use std::sync::Arc;

use proto::{
    encoded::EncodedMessage,
    model::{Batch, ServerEvent},
};

use crate::log::{Encodings, Piece};

/// One message to a client.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A message that is not worth sharing.
    Event(ServerEvent),
    /// A batch.
    Batch {
        /// The batch but for its operations.
        header: Batch,
        /// Its operations.
        pieces: Vec<Arc<Piece>>,
    },
}

impl Frame {
    /// For the wire. Operations that another stream has sent are not encoded again.
    #[must_use]
    pub fn encode(&self, counts: &Encodings) -> EncodedMessage {
        match self {
            Self::Event(event) => EncodedMessage::new(event),
            Self::Batch { header, pieces } => {
                EncodedMessage::batch(header, pieces.iter().map(|piece| piece.encoded(counts)))
            }
        }
    }

    /// For a client in the same process. Nothing is encoded.
    #[must_use]
    pub fn into_event(self) -> ServerEvent {
        match self {
            Self::Event(event) => event,
            Self::Batch { header, pieces } => {
                let operations = pieces.iter().flat_map(|piece| piece.operations()).cloned().collect();
                ServerEvent::Batch(Batch { operations, ..header })
            }
        }
    }
}

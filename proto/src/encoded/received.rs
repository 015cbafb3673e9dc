//! A received message with the bytes that it was decoded from, so that a client can store it without encoding it again.

use super::EncodedMessage;
use crate::{InvalidMessage, model};

/// A server message as a backend receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The decoded message.
    pub message: model::ServerMessage,
    /// Its wire form as received; `None` if it was passed within the process.
    pub wire: Option<EncodedMessage>,
}

impl ReceivedMessage {
    /// Decodes a message and keeps its bytes.
    ///
    /// # Errors
    /// If the bytes are not a `ServerMessage`, or a field of it is invalid.
    pub fn decode(wire: EncodedMessage) -> Result<Self, InvalidMessage> {
        let message = wire.decode().map_err(|error| InvalidMessage::new("message", error))?;
        Ok(Self { message: message.try_into()?, wire: Some(wire) })
    }

    /// The wire form: the received bytes, or the message encoded now.
    #[must_use]
    pub fn encoded(&self) -> EncodedMessage {
        self.wire.clone().unwrap_or_else(|| EncodedMessage::new(&self.message))
    }
}

impl From<model::ServerMessage> for ReceivedMessage {
    fn from(message: model::ServerMessage) -> Self {
        Self { message, wire: None }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        digest::Digest,
        model::{Revision, ServerMessage},
    };

    #[test]
    fn the_received_bytes_are_kept_without_a_copy() {
        let message = ServerMessage::Bookmark(Revision(7), Digest(9));
        // Field 1000, which this version does not know, is kept too.
        let bytes = Bytes::from([EncodedMessage::new(&message).to_bytes().as_ref(), &[0xc2, 0x3e, 1, 5]].concat());
        let received = ReceivedMessage::decode(EncodedMessage::from_bytes(bytes.clone())).unwrap();
        assert_eq!(received.message, message);
        assert_eq!(received.encoded().to_bytes().as_ptr(), bytes.as_ptr());
        assert_eq!(received.encoded().to_bytes(), bytes);
    }

    #[test]
    fn a_message_without_bytes_is_encoded_on_demand() {
        let received = ReceivedMessage::from(ServerMessage::DigestRequest);
        assert_eq!(received.encoded(), EncodedMessage::new(&ServerMessage::DigestRequest));
    }

    #[test]
    fn bytes_that_are_no_message_are_rejected() {
        let error = ReceivedMessage::decode(EncodedMessage::from_bytes(Bytes::from_static(&[0xff; 16]))).unwrap_err();
        assert_eq!(error.field, "message");
    }
}

//! Messages of the stream in wire form: encoded once and sent to many clients.
//!
//! A protobuf message is the concatenation of its fields. The operations of a batch are therefore encoded one by one,
//! once, and combined for each stream without another copy.

mod codec;
mod gzip;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint, message},
};

pub use codec::{ServerCodec, watch};
pub use gzip::{DeflatedOperations, gzip_batch};

use crate::{InvalidMessage, model, v1};

/// The field number of `ServerMessage.batch`.
const BATCH_FIELD: u32 = 2;
/// The field number of `Batch.operations`.
const OPERATIONS_FIELD: u32 = 3;

/// The size of a gRPC message header in bytes: the compression flag and the length.
const GRPC_HEADER_BYTES: usize = 5;
/// Chunks up to this size are copied into one buffer, in bytes: cheaper than an HTTP/2 frame for each.
const COPY_LIMIT_BYTES: usize = 1024;

/// A `ServerMessage` in wire form, as a list of chunks that streams share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedMessage(Vec<Bytes>);

/// One or more operations in wire form: entries of `Batch.operations`, each with tag and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedOperation(Bytes);

/// Encodes a `ClientMessage`, for clients with a gRPC framing of their own.
#[must_use]
pub fn encode_client_message(message: &model::ClientMessage) -> Vec<u8> {
    v1::ClientMessage::from(message).encode_to_vec()
}

impl EncodedOperation {
    /// Encodes an operation.
    #[must_use]
    pub fn new(operation: &model::Operation) -> Self {
        Self::all(std::slice::from_ref(operation))
    }

    /// Encodes several operations, in order.
    #[must_use]
    pub fn all(operations: &[model::Operation]) -> Self {
        let operations: Vec<_> = operations.iter().map(v1::Operation::from).collect();
        let mut bytes = BytesMut::with_capacity(message::encoded_len_repeated(OPERATIONS_FIELD, &operations));
        message::encode_repeated(OPERATIONS_FIELD, &operations, &mut bytes);
        Self(bytes.freeze())
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

impl EncodedMessage {
    /// Encodes a message.
    #[must_use]
    pub fn new(message: &model::ServerMessage) -> Self {
        Self(vec![v1::ServerMessage::from(message).encode_to_vec().into()])
    }

    /// Combines the fields of `batch`, whose `operations` must be empty, with encoded operations.
    #[must_use]
    pub fn batch(batch: &model::Batch, operations: impl IntoIterator<Item = EncodedOperation>) -> Self {
        let mut chunks = vec![Bytes::new()];
        chunks.extend(operations.into_iter().map(|operation| operation.0));
        chunks[0] = batch_head(batch, chunks.iter().map(Bytes::len).sum()).freeze();
        Self(chunks)
    }

    /// Wraps bytes that are in wire form already. They are not checked before [`Self::decode`].
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }

    /// The size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// The wire form as one buffer. Copies only if there are several chunks.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self.0.as_slice() {
            [bytes] => bytes.clone(),
            chunks => chunks.concat().into(),
        }
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// If the bytes are not a `ServerMessage`.
    pub fn decode(&self) -> Result<v1::ServerMessage, prost::DecodeError> {
        v1::ServerMessage::decode(self.to_bytes())
    }

    /// The message as gRPC sends it, with its header. Large chunks are not copied.
    #[must_use]
    pub fn into_length_prefixed(self) -> Vec<Bytes> {
        let size = self.size();
        let small: usize = self.0.iter().map(Bytes::len).filter(|len| *len <= COPY_LIMIT_BYTES).sum();
        let mut buffer = BytesMut::with_capacity(GRPC_HEADER_BYTES + small);
        buffer.put_u8(0);
        // A message is at most `MAX_MESSAGE_BYTES` long, which fits.
        buffer.put_u32(size as u32);

        let mut frame = Vec::with_capacity(1);
        for chunk in self.0 {
            if chunk.len() <= COPY_LIMIT_BYTES {
                buffer.put(chunk);
                continue;
            }
            if !buffer.is_empty() {
                frame.push(buffer.split().freeze());
            }
            frame.push(chunk);
        }
        if !buffer.is_empty() {
            frame.push(buffer.freeze());
        }
        frame
    }
}

/// The start of a message with a batch, which encoded operations of this many bytes follow.
fn batch_head(batch: &model::Batch, operations: usize) -> BytesMut {
    debug_assert!(batch.operations.is_empty(), "the operations are passed encoded");
    let batch = v1::Batch::from(batch);
    let mut head = BytesMut::with_capacity(32);
    encode_key(BATCH_FIELD, WireType::LengthDelimited, &mut head);
    encode_varint((batch.encoded_len() + operations) as u64, &mut head);
    batch.encode_raw(&mut head);
    head
}

impl TryFrom<EncodedMessage> for model::ServerMessage {
    type Error = InvalidMessage;

    fn try_from(wire: EncodedMessage) -> Result<Self, InvalidMessage> {
        wire.decode().map_err(|error| InvalidMessage::new("message", error))?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_message_are_rejected() {
        let no_message = EncodedMessage::from_bytes(Bytes::from_static(&[0xff; 16]));
        assert_eq!(model::ServerMessage::try_from(no_message).unwrap_err().field, "message");
    }

    fn message(sizes: &[usize]) -> EncodedMessage {
        EncodedMessage(sizes.iter().zip(1..).map(|(size, byte)| Bytes::from(vec![byte; *size])).collect())
    }

    #[test]
    fn length_prefixed_is_header_and_message() {
        for sizes in [&[][..], &[30], &[30, 40], &[30, 5000, 6000], &[5000, 1, 2, 5000, 3]] {
            let message = message(sizes);
            let sent = message.clone().into_length_prefixed().concat();
            assert_eq!(sent[0], 0, "not compressed");
            assert_eq!(sent[1..GRPC_HEADER_BYTES], (message.size() as u32).to_be_bytes());
            assert_eq!(sent[GRPC_HEADER_BYTES..], message.to_bytes());
        }
    }

    #[test]
    fn small_chunks_are_merged_and_large_ones_are_not_copied() {
        assert_eq!(message(&[30, 40, 50]).into_length_prefixed().len(), 1);
        let message = message(&[30, 5000, 40, 50]);
        let sent = message.clone().into_length_prefixed();
        assert_eq!(sent.iter().map(Bytes::len).collect::<Vec<_>>(), [GRPC_HEADER_BYTES + 30, 5000, 90]);
        assert_eq!(sent[1].as_ptr(), message.0[1].as_ptr());
    }
}

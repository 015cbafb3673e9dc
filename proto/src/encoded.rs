//! Bytes of `ServerMessage`s that were encoded before, and the gRPC codec that sends them.
//!
//! A protobuf message is the concatenation of its fields, so the operations of a batch can be encoded one by one, once,
//! and be put together for each stream without being touched again.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
};
use tonic_prost::ProstCodec;

use crate::{model, v1};

/// The field number of `ServerMessage.batch`.
const FIELD_BATCH: u32 = 2;
/// The field number of `Batch.operations`.
const FIELD_OPERATIONS: u32 = 3;

/// What gRPC puts before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Pieces up to this size are sent together, in bytes: that costs less than a frame of HTTP/2 for each.
const GATHERED: usize = 1024;

/// What a stream's buffers hold from the start, in bytes: a small change, an ack. Thousands of streams have two each.
const BUFFER: usize = 512;
/// A message is passed on at once and not gathered with the next: a buffer stays as large as it once was.
const YIELD: usize = 1;

/// A `ServerMessage` as pieces of its wire form.
#[derive(Clone, Debug, Default)]
pub struct EncodedMessage(Vec<Bytes>);

/// One operation as a piece of a batch: the bytes of one entry of `Batch.operations`, with tag and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedOperation(Bytes);

/// Sends [`EncodedMessage`]s, receives `ClientMessage`s.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerCodec;

/// Writes the pieces of an [`EncodedMessage`] into the stream's buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerEncoder;

/// The wire form of a `ClientMessage`, for a client that frames its messages itself.
#[must_use]
pub fn encode_client_message(event: &model::ClientMessage) -> Vec<u8> {
    v1::ClientMessage::from(event).encode_to_vec()
}

impl EncodedOperation {
    /// Encodes an operation.
    #[must_use]
    pub fn new(operation: &model::Operation) -> Self {
        let operation = v1::Operation::from(operation);
        let len = operation.encoded_len();
        let mut bytes = BytesMut::with_capacity(key_len(FIELD_OPERATIONS) + encoded_len_varint(len as u64) + len);
        encode_key(FIELD_OPERATIONS, WireType::LengthDelimited, &mut bytes);
        encode_varint(len as u64, &mut bytes);
        operation.encode_raw(&mut bytes);
        Self(bytes.freeze())
    }

    /// Joins several operations into one piece, so that many streams can share it.
    #[must_use]
    pub fn join<'a>(operations: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut bytes = BytesMut::new();
        for operation in operations {
            bytes.extend_from_slice(&operation.0);
        }
        Self(bytes.freeze())
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds no operation at all, as a [`Self::join`] of none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl EncodedMessage {
    /// Encodes a message that is not worth sharing.
    #[must_use]
    pub fn new(event: &model::ServerMessage) -> Self {
        Self(vec![v1::ServerMessage::from(event).encode_to_vec().into()])
    }

    /// Puts a batch together: everything of `batch` but its operations is encoded, and `operations` are appended.
    ///
    /// `batch.operations` must be empty; they are in `operations`.
    #[must_use]
    pub fn batch(batch: &model::Batch, operations: impl IntoIterator<Item = EncodedOperation>) -> Self {
        debug_assert!(batch.operations.is_empty(), "the operations are passed encoded");
        let header = v1::Batch::from(batch);
        let mut pieces = vec![Bytes::new()];
        pieces.extend(operations.into_iter().map(|operation| operation.0));
        let len = header.encoded_len() + pieces.iter().map(Bytes::len).sum::<usize>();
        let mut head = BytesMut::with_capacity(32);
        encode_key(FIELD_BATCH, WireType::LengthDelimited, &mut head);
        encode_varint(len as u64, &mut head);
        header.encode_raw(&mut head);
        pieces[0] = head.freeze();
        Self(pieces)
    }

    /// The size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes, which no valid message has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As a gRPC message for the transport. What is large is passed on and not copied.
    #[must_use]
    pub fn into_length_prefixed(self) -> Vec<Bytes> {
        let len = self.len();
        let small: usize = self.0.iter().map(Bytes::len).filter(|len| *len <= GATHERED).sum();
        let mut gathered = BytesMut::with_capacity(PREFIX + small);
        gathered.put_u8(0);
        // Messages are smaller than `MAX_MESSAGE_BYTES`.
        gathered.put_u32(len as u32);
        let mut chunks = Vec::with_capacity(1);
        for piece in self.0 {
            if piece.len() <= GATHERED {
                gathered.put(piece);
                continue;
            }
            if !gathered.is_empty() {
                chunks.push(gathered.split().freeze());
            }
            chunks.push(piece);
        }
        if !gathered.is_empty() {
            chunks.push(gathered.freeze());
        }
        chunks
    }

    /// The bytes in one piece, as a state file has them.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.concat()
    }

    /// Bytes that were encoded elsewhere. Whether they are a message shows when they are decoded.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }

    /// Decodes the bytes again.
    ///
    /// # Errors
    /// When the pieces are not the wire form of a `ServerMessage`.
    pub fn decode(&self) -> Result<v1::ServerMessage, prost::DecodeError> {
        v1::ServerMessage::decode(Bytes::from(self.0.concat()))
    }
}

impl Codec for ServerCodec {
    type Encode = EncodedMessage;
    type Decode = v1::ClientMessage;
    type Encoder = ServerEncoder;
    type Decoder = <ProstCodec<v1::ClientMessage, v1::ClientMessage> as Codec>::Decoder;

    fn encoder(&mut self) -> ServerEncoder {
        ServerEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::ClientMessage, v1::ClientMessage>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}

impl Encoder for ServerEncoder {
    type Item = EncodedMessage;
    type Error = Status;

    fn encode(&mut self, message: EncodedMessage, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(message.len());
        for piece in message.0 {
            buf.put(piece);
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(sizes: &[usize]) -> (EncodedMessage, Vec<Bytes>) {
        let pieces = sizes.iter().zip(1..).map(|(size, byte)| Bytes::from(vec![byte; *size])).collect();
        let message = EncodedMessage(pieces);
        (message.clone(), message.into_length_prefixed())
    }

    #[test]
    fn chunks_are_a_grpc_message() {
        for sizes in [&[][..], &[30], &[30, 40], &[30, 5000, 6000], &[5000, 1, 2, 5000, 3]] {
            let (message, chunks) = chunks(sizes);
            let sent = chunks.concat();
            assert_eq!(sent[0], 0, "not compressed");
            assert_eq!(sent[1..PREFIX], (message.len() as u32).to_be_bytes());
            assert_eq!(sent[PREFIX..], message.to_vec());
        }
    }

    #[test]
    fn small_pieces_travel_together_and_large_ones_are_not_copied() {
        let (_, small) = chunks(&[30, 40, 50]);
        assert_eq!(small.len(), 1);
        let (message, mixed) = chunks(&[30, 5000, 40, 50]);
        assert_eq!(mixed.iter().map(Bytes::len).collect::<Vec<_>>(), [PREFIX + 30, 5000, 90]);
        assert_eq!(mixed[1].as_ptr(), message.0[1].as_ptr());
    }
}

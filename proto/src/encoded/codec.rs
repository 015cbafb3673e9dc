//! gRPC codecs that pass a `ServerMessage` on in wire form, for the frontend and for clients that keep the bytes.

use bytes::{Buf as _, BufMut as _};
use prost::Message as _;
use tonic::{
    IntoStreamingRequest, Response, Status, Streaming,
    client::Grpc,
    codec::{BufferSettings, Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::Channel,
};
use tonic_prost::ProstCodec;

use super::EncodedMessage;
use crate::v1;

/// The initial size of a stream's buffers on the server, in bytes: enough for a small change or an ack. A frontend has
/// two for each of thousands of streams.
const SERVER_BUFFER_BYTES: usize = 512;
/// Passes each message on at once instead of batching several, after which the buffer would keep its size.
const YIELD_THRESHOLD_BYTES: usize = 1;

const WATCH_PATH: &str = "/fairlead.v1.Fairlead/Watch";

/// The codec of a server: sends [`EncodedMessage`]s, whose chunks it writes into the stream's buffer, and receives
/// `ClientMessage`s.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerCodec;

/// The codec of a client: sends `ClientMessage`s, and takes [`EncodedMessage`]s out of the stream's buffer without a
/// copy.
#[derive(Clone, Copy, Debug, Default)]
struct ClientCodec;

/// Opens the stream `Watch`, whose messages are decoded by their reader. With `compression` the server may compress
/// them; `max_message_bytes` limits their size before and after.
///
/// # Errors
/// If the server cannot be reached, or rejects the call.
pub async fn watch(
    channel: Channel,
    request: impl IntoStreamingRequest<Message = v1::ClientMessage>,
    max_message_bytes: usize,
    compression: Option<CompressionEncoding>,
) -> Result<Response<Streaming<EncodedMessage>>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(max_message_bytes);
    if let Some(encoding) = compression {
        client = client.accept_compressed(encoding);
    }
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    client.streaming(request.into_streaming_request(), PathAndQuery::from_static(WATCH_PATH), ClientCodec).await
}

fn server_buffers() -> BufferSettings {
    BufferSettings::new(SERVER_BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
}

impl Codec for ServerCodec {
    type Encode = EncodedMessage;
    type Decode = v1::ClientMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for ServerCodec {
    type Item = EncodedMessage;
    type Error = Status;

    fn encode(&mut self, message: EncodedMessage, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(message.size());
        for chunk in message.0 {
            buf.put(chunk);
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        server_buffers()
    }
}

impl Decoder for ServerCodec {
    type Item = v1::ClientMessage;
    type Error = Status;

    /// A message that cannot be decoded is an invalid argument. The decoder of tonic has the same code for it as for a
    /// lost connection.
    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<v1::ClientMessage>, Status> {
        let message = v1::ClientMessage::decode(buf).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(message))
    }

    fn buffer_settings(&self) -> BufferSettings {
        server_buffers()
    }
}

impl Codec for ClientCodec {
    type Encode = v1::ClientMessage;
    type Decode = EncodedMessage;
    type Encoder = <ProstCodec<v1::ClientMessage, v1::ServerMessage> as Codec>::Encoder;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<v1::ClientMessage, v1::ServerMessage>::default().encoder()
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for ClientCodec {
    type Item = EncodedMessage;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<EncodedMessage>, Status> {
        let len = buf.remaining();
        Ok(Some(EncodedMessage::from_bytes(buf.copy_to_bytes(len))))
    }
}

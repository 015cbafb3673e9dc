//! Adds fields and operations to encoded messages that no version of the protocol defines.

use anyhow::{Context as _, Result};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};

/// A field number that no message uses.
const UNKNOWN_FIELD: u32 = 1000;

/// The path of a message within a `ServerMessage`, as field numbers.
pub(crate) type MessagePath<'a> = &'a [u32];

/// The messages that unknown fields are added to.
pub(crate) mod path {
    use super::MessagePath;

    /// `ServerMessage` itself.
    pub(crate) const MESSAGE: MessagePath<'static> = &[];
    /// `ServerMessage.welcome`
    pub(crate) const WELCOME: MessagePath<'static> = &[1];
    /// `ServerMessage.batch`
    pub(crate) const BATCH: MessagePath<'static> = &[2];
    /// `ServerMessage.batch.operations`
    pub(crate) const OPERATION: MessagePath<'static> = &[2, 3];
    /// `ServerMessage.batch.operations.put_service_port`
    pub(crate) const SERVICE_PORT: MessagePath<'static> = &[2, 3, 1];
    /// `ServerMessage.batch.operations.replace_pool`
    pub(crate) const POOL: MessagePath<'static> = &[2, 3, 4];
    /// `ServerMessage.bookmark`
    pub(crate) const BOOKMARK: MessagePath<'static> = &[3];
}

/// An unknown field of `size` bytes.
pub(crate) fn unknown_field(size: usize) -> Vec<u8> {
    field(UNKNOWN_FIELD, &vec![0xa5; size])
}

/// An entry of `Batch.operations` with an unknown operation.
pub(crate) fn unknown_operation() -> Vec<u8> {
    field(3, &unknown_field(8))
}

/// Appends `extra` to every message at `path`.
///
/// # Errors
/// If `message` is not a protobuf message.
pub(crate) fn append(message: &[u8], path: MessagePath<'_>, extra: &[u8]) -> Result<Vec<u8>> {
    let Some((number, rest_of_path)) = path.split_first() else {
        return Ok([message, extra].concat());
    };

    let mut rest = message;
    let mut result = Vec::with_capacity(message.len() + extra.len());
    while !rest.is_empty() {
        let before = rest;
        let (found, wire_type) = decode_key(&mut rest)?;
        if found == *number && wire_type == WireType::LengthDelimited {
            let size = usize::try_from(decode_varint(&mut rest)?)?;
            let (content, after) = rest.split_at_checked(size).context("a field exceeds its message")?;
            result.extend(field(*number, &append(content, rest_of_path, extra)?));
            rest = after;
        } else {
            skip_field(wire_type, found, &mut rest, DecodeContext::default())?;
            result.extend_from_slice(&before[..before.len() - rest.len()]);
        }
    }
    Ok(result)
}

/// A length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 10);
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
mod tests {
    use proto::{
        digest::Digest,
        encoded::EncodedMessage,
        model::{Bookmark, Revision, ServerMessage},
    };

    use super::*;

    #[test]
    fn unknown_fields_are_ignored_and_unknown_operations_rejected() {
        let bookmark = EncodedMessage::new(&ServerMessage::Bookmark(Bookmark::new(Revision(300), Digest(u64::MAX))));
        for message_path in [path::MESSAGE, path::BOOKMARK] {
            let longer = append(&bookmark.to_bytes(), message_path, &unknown_field(200)).unwrap();
            assert!(longer.len() > bookmark.size() + 200);
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, bookmark.decode().unwrap());
        }
        let batch = crate::frontend::batch(Revision(1), Revision(2), &crate::samples::initial_operations());
        let batch = EncodedMessage::new(&ServerMessage::Batch(batch));
        for message_path in [path::BATCH, path::OPERATION, path::SERVICE_PORT, path::POOL] {
            let longer = append(&batch.to_bytes(), message_path, &unknown_field(3)).unwrap();
            assert!(longer.len() > batch.size());
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, batch.decode().unwrap());
        }
        let unknown = append(&batch.to_bytes(), path::BATCH, &unknown_operation()).unwrap();
        let decoded = EncodedMessage::from_bytes(unknown.into()).decode().unwrap();
        assert!(ServerMessage::try_from(decoded).is_err());
    }
}

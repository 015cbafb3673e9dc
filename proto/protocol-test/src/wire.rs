//! Adds fields and operations to encoded messages that no version of the protocol defines.

use anyhow::{Result, bail, ensure};
use varint::{get, put};

/// A field number that no message uses.
const UNKNOWN_FIELD: u32 = 1000;
/// The wire type of strings, bytes and messages.
const LENGTH_DELIMITED: u64 = 2;

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
    let (mut rest, mut result) = (message, Vec::with_capacity(message.len() + extra.len()));
    while !rest.is_empty() {
        let before = rest;
        let key = get(&mut rest)?;
        let size = match key & 7 {
            0 => {
                get(&mut rest)?;
                0
            }
            1 => 8,
            LENGTH_DELIMITED => {
                let size = get(&mut rest)?;
                usize::try_from(size)?
            }
            5 => 4,
            other => bail!("unknown wire type {other}"),
        };
        ensure!(rest.len() >= size, "a field exceeds its message");
        let (content, after) = rest.split_at(size);
        if key == u64::from(*number) << 3 | LENGTH_DELIMITED {
            result.extend(field(*number, &append(content, rest_of_path, extra)?));
        } else {
            result.extend_from_slice(&before[..before.len() - after.len()]);
        }
        rest = after;
    }
    Ok(result)
}

/// A length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 10);
    put(u64::from(number) << 3 | LENGTH_DELIMITED, &mut bytes);
    put(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Integers of variable length.
mod varint {
    use anyhow::{Context as _, Result};

    pub(super) fn put(mut number: u64, to: &mut Vec<u8>) {
        while number >= 0x80 {
            to.push(number as u8 | 0x80);
            number >>= 7;
        }
        to.push(number as u8);
    }

    pub(super) fn get(from: &mut &[u8]) -> Result<u64> {
        let mut number = 0;
        for at in 0..10 {
            let (byte, rest) = from.split_first().context("an integer is truncated")?;
            *from = rest;
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                break;
            }
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use proto::{
        digest::Digest,
        encoded::EncodedMessage,
        model::{Revision, ServerMessage},
    };

    use super::*;

    #[test]
    fn unknown_fields_are_ignored_and_unknown_operations_rejected() {
        let bookmark = EncodedMessage::new(&ServerMessage::Bookmark(Revision(300), Digest(u64::MAX)));
        for message_path in [path::MESSAGE, path::BOOKMARK] {
            let longer = append(&bookmark.to_bytes(), message_path, &unknown_field(200)).unwrap();
            assert!(longer.len() > bookmark.len() + 200);
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, bookmark.decode().unwrap());
        }
        let batch = crate::frontend::batch(Revision(1), Revision(2), &crate::samples::initial_operations());
        let batch = EncodedMessage::new(&ServerMessage::Batch(batch));
        for message_path in [path::BATCH, path::OPERATION, path::SERVICE_PORT, path::POOL] {
            let longer = append(&batch.to_bytes(), message_path, &unknown_field(3)).unwrap();
            assert!(longer.len() > batch.len());
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, batch.decode().unwrap());
        }
        let unknown = append(&batch.to_bytes(), path::BATCH, &unknown_operation()).unwrap();
        let decoded = EncodedMessage::from_bytes(unknown.into()).decode().unwrap();
        assert!(ServerMessage::try_from(decoded).is_err());
    }
}

//! Bytes that no message of this version has: fields and operations that a receiver cannot know.

use anyhow::{Result, bail, ensure};
use number::varint;

/// A field number that no message uses, and none will for long.
const UNKNOWN: u32 = 1000;
/// The wire type of strings, bytes and messages.
const LENGTH_DELIMITED: u64 = 2;

/// The path to a message within a `ServerMessage`: numbers of fields.
pub(crate) type Path<'a> = &'a [u32];

/// The parts of `ServerMessage` that unknown fields are put into.
pub(crate) mod part {
    use super::Path;

    /// `ServerMessage` itself.
    pub(crate) const MESSAGE: Path<'static> = &[];
    /// `ServerMessage.welcome`
    pub(crate) const WELCOME: Path<'static> = &[1];
    /// `ServerMessage.batch`
    pub(crate) const BATCH: Path<'static> = &[2];
    /// `ServerMessage.batch.operations`
    pub(crate) const OPERATION: Path<'static> = &[2, 3];
    /// `ServerMessage.batch.operations.put_service_port`
    pub(crate) const SERVICE_PORT: Path<'static> = &[2, 3, 1];
    /// `ServerMessage.batch.operations.replace_pool`
    pub(crate) const POOL: Path<'static> = &[2, 3, 4];
    /// `ServerMessage.bookmark`
    pub(crate) const BOOKMARK: Path<'static> = &[3];
}

/// A field that nobody knows, with so many bytes in it.
pub(crate) fn unknown_field(size: usize) -> Vec<u8> {
    field(UNKNOWN, &vec![0xa5; size])
}

/// An operation that nobody knows, as an entry of `Batch.operations`.
pub(crate) fn unknown_operation() -> Vec<u8> {
    field(3, &unknown_field(8))
}

/// Appends `extra` to the message at `path`; where there are several, to each.
///
/// # Errors
/// When `message` is no message.
pub(crate) fn append(message: &[u8], path: Path<'_>, extra: &[u8]) -> Result<Vec<u8>> {
    let Some((number, deeper)) = path.split_first() else {
        return Ok([message, extra].concat());
    };
    let (mut rest, mut result) = (message, Vec::with_capacity(message.len() + extra.len()));
    while !rest.is_empty() {
        let before = rest;
        let key = varint(&mut rest)?;
        let size = match key & 7 {
            0 => {
                varint(&mut rest)?;
                0
            }
            1 => 8,
            LENGTH_DELIMITED => {
                let size = varint(&mut rest)?;
                usize::try_from(size)?
            }
            5 => 4,
            other => bail!("wire type {other}"),
        };
        ensure!(rest.len() >= size, "a field is longer than its message");
        let (content, after) = rest.split_at(size);
        if key == u64::from(*number) << 3 | LENGTH_DELIMITED {
            result.extend(field(*number, &append(content, deeper, extra)?));
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
    number::put(u64::from(number) << 3 | LENGTH_DELIMITED, &mut bytes);
    number::put(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Numbers of variable length.
mod number {
    use anyhow::{Context as _, Result};

    pub(super) fn put(mut number: u64, to: &mut Vec<u8>) {
        while number >= 0x80 {
            to.push(number as u8 | 0x80);
            number >>= 7;
        }
        to.push(number as u8);
    }

    pub(super) fn varint(from: &mut &[u8]) -> Result<u64> {
        let mut number = 0;
        for at in 0..10 {
            let (byte, rest) = from.split_first().context("a number has no end")?;
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
    fn what_is_appended_is_ignored_where_fields_are_and_refused_where_operations_are() {
        let bookmark = EncodedMessage::new(&ServerMessage::Bookmark(Revision(300), Digest(u64::MAX)));
        for path in [part::MESSAGE, part::BOOKMARK] {
            let longer = append(&bookmark.to_bytes(), path, &unknown_field(200)).unwrap();
            assert!(longer.len() > bookmark.len() + 200);
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, bookmark.decode().unwrap());
        }
        let batch = crate::script::batch(Revision(1), Revision(2), &crate::samples::services());
        let batch = EncodedMessage::new(&ServerMessage::Batch(batch));
        for path in [part::BATCH, part::OPERATION, part::SERVICE_PORT, part::POOL] {
            let longer = append(&batch.to_bytes(), path, &unknown_field(3)).unwrap();
            assert!(longer.len() > batch.len());
            let decoded = EncodedMessage::from_bytes(longer.into()).decode().unwrap();
            assert_eq!(decoded, batch.decode().unwrap());
        }
        let unknown = append(&batch.to_bytes(), part::BATCH, &unknown_operation()).unwrap();
        let decoded = EncodedMessage::from_bytes(unknown.into()).decode().unwrap();
        assert!(ServerMessage::try_from(decoded).is_err());
    }
}

//! The fields of a message before its operations, which are all that a node without state needs: a few dozen bytes.

use anyhow::{Context as _, Result, bail};

/// The length of the start of a message that contains these fields.
pub(crate) const HEAD: usize = 64;

/// A message without its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageHead {
    Welcome {
        epoch: u64,
        mode: u64,
    },
    /// `trigger` is in microseconds since 1970, 0 when unknown.
    Batch {
        target: u64,
        commit: bool,
        trigger: u64,
    },
    Bookmark {
        revision: u64,
        digest: u64,
    },
    Drain {
        max_delay_millis: u64,
    },
    Other,
}

/// Varints and fixed numbers, one after the other (the wire form of protobuf).
#[derive(Debug)]
struct Fields<'a>(&'a [u8]);

impl MessageHead {
    /// Reads the first [`HEAD`] bytes of a message.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        let (field, _) = fields.tag().context("an empty message")?;
        fields.varint().context("a message without a length")?;
        let mut values = [0; 6];
        // Operations are field 3 of a batch, length-delimited, and come last.
        while let Some((number, value)) = fields.next()? {
            if let Some(field) = values.get_mut(number as usize) {
                *field = value;
            }
        }
        let [_, first, second, third, fourth, fifth] = values;
        Ok(match field {
            1 => Self::Welcome { epoch: third, mode: fourth },
            2 => Self::Batch { target: second, commit: fourth != 0, trigger: fifth },
            3 => Self::Bookmark { revision: first, digest: second },
            4 => Self::Drain { max_delay_millis: first },
            _ => Self::Other,
        })
    }
}

impl Fields<'_> {
    /// The next number; `None` at the end, and at a field that the head does not contain completely.
    fn next(&mut self) -> Result<Option<(u64, u64)>> {
        while let Some((number, wire_type)) = self.tag() {
            let value = match wire_type {
                0 => self.varint(),
                1 => self.fixed(),
                2 => {
                    let length = self.varint().and_then(|length| usize::try_from(length).ok());
                    let Some(rest) = length.and_then(|length| self.0.get(length..)) else { return Ok(None) };
                    self.0 = rest;
                    continue;
                }
                other => bail!("wire type {other} in a message"),
            };
            return Ok(value.map(|value| (number, value)));
        }
        Ok(None)
    }

    fn tag(&mut self) -> Option<(u64, u64)> {
        self.varint().map(|tag| (tag >> 3, tag & 7))
    }

    fn fixed(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proto::{
        encoded::{EncodedMessage, EncodedOperation},
        model::{Batch, KindVersions, Operation, Protocol, Revision, ServicePortKey, SourceVersion},
    };

    use super::*;

    /// Operations of each length, so that the head ends at each place of one.
    #[test]
    fn a_head_may_end_anywhere_in_an_operation() {
        for length in 0..2 * HEAD {
            let key = ServicePortKey::new("shop", "x".repeat(length % 7), "", Protocol::Tcp);
            let batch = Batch {
                base: Revision(1),
                target: Revision(2),
                operations: Vec::new(),
                commit: true,
                oldest_trigger: None,
                source_version: SourceVersion(3),
                kind_versions: KindVersions::default(),
            };
            let operation = EncodedOperation::new(&Operation::RemoveServicePort(key));
            let bytes = EncodedMessage::batch(&batch, vec![operation; 1 + length / 7]).to_bytes();
            let head = MessageHead::read(&bytes[..bytes.len().min(HEAD)]).unwrap();
            assert_eq!(head, MessageHead::Batch { target: 2, commit: true, trigger: 0 });
        }
    }
}

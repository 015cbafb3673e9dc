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
        let (field, _) = fields.tag()?;
        fields.varint()?;
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
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.tag()?;
        match wire_type {
            0 => Ok(Some((number, self.varint()?))),
            1 => {
                let (bytes, rest) = self.0.split_first_chunk().context("a number is truncated")?;
                self.0 = rest;
                Ok(Some((number, u64::from_le_bytes(*bytes))))
            }
            2 => {
                let length = self.varint()?;
                let Some(rest) = usize::try_from(length).ok().and_then(|length| self.0.get(length..)) else {
                    return Ok(None);
                };
                self.0 = rest;
                self.next()
            }
            other => bail!("wire type {other} in a message"),
        }
    }

    fn tag(&mut self) -> Result<(u64, u64)> {
        self.varint().map(|tag| (tag >> 3, tag & 7))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().context("a message is truncated")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a varint of more than 64 bits")
    }
}

//! Compressed batches: operations are deflated once, and joined for each stream to a message that any gzip reads.
//!
//! ```text
//!   head │ stored block: fields of the batch │ blocks of operations │ blocks of others │ last block │ CRC-32, size
//! ```
//!
//! The blocks of some operations refer to nothing before them and end at a byte, and the CRC-32 of the whole follows
//! from the CRC-32 of each part (RFC 1951, RFC 1952).

use std::io::Write as _;

use bytes::{BufMut as _, Bytes, BytesMut};
use crc32fast::Hasher;
use flate2::{Compression, write::DeflateEncoder};

use super::{EncodedOperation, GRPC_HEADER_BYTES, batch_head};
use crate::model;

/// Deflate, no flags, no time, unknown system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The start of a stored block.
const STORED: u8 = 0;
/// The size of the head of a stored block: its start, its length and the complement of the length.
const STORED_HEAD_BYTES: usize = 5;
/// An empty block, the last one.
const LAST: [u8; 2] = [3, 0];
/// The size of the end: the last block, the CRC-32, and the size before compression.
const END_BYTES: usize = LAST.len() + 8;

/// One or more operations in compressed wire form.
#[derive(Clone, Debug)]
pub struct DeflatedOperations {
    blocks: Bytes,
    /// The size before compression, in bytes.
    size: usize,
    crc: Hasher,
}

impl DeflatedOperations {
    /// Compresses operations.
    #[must_use]
    pub fn new(operations: &EncodedOperation) -> Self {
        let bytes = &operations.0;
        let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
        // Writing to memory does not fail. Flushing ends the blocks at a byte, without a last one.
        let written = encoder.write_all(bytes).and_then(|()| encoder.flush());
        debug_assert!(written.is_ok(), "{written:?}");
        let blocks = std::mem::take(encoder.get_mut());

        let mut crc = Hasher::new();
        crc.update(bytes);
        Self { blocks: Bytes::from(blocks.into_boxed_slice()), size: bytes.len(), crc }
    }
}

/// The batch with these operations as gRPC sends it, compressed and with its header. The `operations` of `batch` must
/// be empty.
#[must_use]
pub fn gzip_batch(batch: &model::Batch, operations: &[DeflatedOperations]) -> Bytes {
    let size = |size: fn(&DeflatedOperations) -> usize| operations.iter().map(size).sum::<usize>();
    let head = batch_head(batch, size(|part| part.size));
    let compressed = HEAD.len() + STORED_HEAD_BYTES + head.len() + size(|part| part.blocks.len()) + END_BYTES;
    let mut crc = Hasher::new();
    crc.update(&head);

    let mut frame = BytesMut::with_capacity(GRPC_HEADER_BYTES + compressed);
    frame.put_u8(1);
    frame.put_u32(compressed as u32);

    frame.put_slice(&HEAD);
    frame.put_u8(STORED);
    // The head of the batch has a few dozen bytes.
    frame.put_u16_le(head.len() as u16);
    frame.put_u16_le(!(head.len() as u16));
    frame.put_slice(&head);
    for part in operations {
        crc.combine(&part.crc);
        frame.put_slice(&part.blocks);
    }

    frame.put_slice(&LAST);
    frame.put_u32_le(crc.finalize());
    frame.put_u32_le((head.len() + size(|part| part.size)) as u32);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::{encoded::EncodedMessage, model::Revision};

    #[test]
    fn a_compressed_batch_is_the_batch() {
        let batch = model::Batch { base: Revision(7), target: Revision(9), commit: true, ..model::Batch::default() };
        let pool = |number: u8| EncodedOperation(vec![number; usize::from(number) * 300].into());
        for parts in [vec![], vec![pool(1)], vec![pool(200), pool(0), pool(3)]] {
            let deflated: Vec<_> = parts.iter().map(DeflatedOperations::new).collect();
            let frame = gzip_batch(&batch, &deflated);
            assert_eq!(frame[0], 1, "compressed");
            assert_eq!(frame[1..GRPC_HEADER_BYTES], ((frame.len() - GRPC_HEADER_BYTES) as u32).to_be_bytes());
            let mut read = Vec::new();
            // Checks the CRC-32 and the size, too.
            GzDecoder::new(&frame[GRPC_HEADER_BYTES..]).read_to_end(&mut read).unwrap();
            assert_eq!(read, EncodedMessage::batch(&batch, parts).to_bytes());
        }
    }
}

//! Random changes of inputs, without coverage: what `make test` has time for.

use crate::MAX_INPUT_BYTES;

/// Numbers at which parsers go wrong: limits of lengths and counts.
const EDGES: [u8; 8] = [0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff];

/// Changes inputs.
#[derive(Debug)]
pub struct Mutator(u64);

impl Mutator {
    /// The same seed gives the same changes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `limit`: xorshift64*.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let random = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        random as usize % limit.max(1)
    }

    /// An input with a few changes, one of them perhaps a part of another input.
    pub fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(16)).min(bytes.len());
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] = EDGES[self.below(EDGES.len())],
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let copied = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    drop(bytes.splice(to..to, copied));
                }
                4 => {
                    let from = self.below(other.len() + 1);
                    let until = (from + self.below(64)).min(other.len());
                    drop(bytes.splice(at..end, other[from..until].iter().copied()));
                }
                _ => bytes.insert(at, EDGES[self.below(EDGES.len())]),
            }
        }
        bytes.truncate(MAX_INPUT_BYTES);
        bytes
    }
}

//! Fuzz targets: everything that parses what other programs, tenants or operators write. `make fuzz` runs them with
//! libFuzzer, guided by coverage; `make test` replays their corpora and mutates them for a moment.
//!
//! ```text
//!   seeds (data of the repository) ─┐
//!   corpus (what was found) ────────┼─▶ run ──▶ target: must not panic; what has two directions is the same after both
//!   mutations ──────────────────────┘     └───▶ memory: at most a factor of the input's size
//! ```

mod memory;
mod mutate;
pub mod seeds;
mod targets;

use std::{
    io::{self, Read as _},
    time::{Duration, Instant},
};

use flate2::read::GzDecoder;
pub use mutate::Mutator;
pub use targets::TARGETS;

/// The largest input, in bytes. Larger ones find little more and take longer.
pub const MAX_INPUT_BYTES: usize = 16 << 10;

/// What fuzzing found: a file for each input, in the directory of its target.
const CORPUS: &[u8] = include_bytes!("../corpus.tar.gz");

/// The longest that an input of that size may take, with much else running on the machine.
const MAX_TIME: Duration = Duration::from_secs(10);

/// What is fuzzed.
#[derive(Debug)]
pub struct FuzzTarget {
    /// Its name, and that of its directory in the corpus.
    pub name: &'static str,
    /// Parses an input.
    pub parse: fn(&[u8]),
    /// Inputs to begin with, made from data of the repository.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many bytes may be allocated at the same time for each byte of the input.
    pub memory_factor: usize,
}

/// How much may be allocated for the smallest input, in bytes.
const MEMORY_BASE: usize = 4 << 20;

impl FuzzTarget {
    /// The target of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Runs one input.
    ///
    /// # Panics
    /// When the target fails, or takes too much memory or time.
    pub fn run(&self, input: &[u8]) {
        let started = Instant::now();
        let used = memory::peak(|| (self.parse)(input));
        let limit = MEMORY_BASE + self.memory_factor * input.len();
        assert!(used <= limit, "{}: {used} bytes for an input of {}, the limit is {limit}", self.name, input.len());
        let took = started.elapsed();
        assert!(took <= MAX_TIME, "{}: {took:?} for an input of {} bytes", self.name, input.len());
    }

    /// The seeds and the corpus.
    ///
    /// # Errors
    /// When the corpus cannot be read.
    pub fn corpus(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut inputs = (self.seeds)();
        let mut archive = tar::Archive::new(GzDecoder::new(CORPUS));
        for entry in archive.entries()? {
            let mut entry = entry?;
            let is_ours = entry.path()?.starts_with(self.name);
            if is_ours && entry.header().entry_type().is_file() {
                let mut input = Vec::new();
                entry.read_to_end(&mut input)?;
                inputs.push(input);
            }
        }
        inputs.retain(|input| input.len() <= MAX_INPUT_BYTES);
        Ok(inputs)
    }
}

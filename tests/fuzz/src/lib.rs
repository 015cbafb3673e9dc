//! Fuzz targets: everything that parses what other programs, tenants or operators write. `make fuzz` runs them with
//! libFuzzer, guided by coverage; `make test` replays their corpora and mutates them for a moment.
//!
//! ```text
//!   seeds (data of the repository) ─┐
//!   corpus/TARGET (what was found) ─┼─▶ run ──▶ target: must not panic; what has two directions is the same after both
//!   mutations ──────────────────────┘     └───▶ memory: at most a factor of the input's size
//! ```

mod memory;
mod mutate;
pub mod seeds;
mod targets;

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use mutate::Mutator;
pub use targets::TARGETS;

/// The largest input, in bytes. Larger ones find little more and take longer.
pub const MAX_INPUT_BYTES: usize = 16 << 10;

/// The longest that an input of that size may take, with much else running on the machine.
const MAX_TIME: Duration = Duration::from_secs(10);

/// What is fuzzed.
#[derive(Debug)]
pub struct FuzzTarget {
    /// Its name, and that of its directory in `corpus/`.
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

    /// The directory with inputs that were found.
    #[must_use]
    pub fn corpus_dir(&self) -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(self.name)
    }

    /// The seeds and the corpus.
    ///
    /// # Errors
    /// When the corpus cannot be read.
    pub fn corpus(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut inputs = (self.seeds)();
        if let Ok(files) = fs::read_dir(self.corpus_dir()) {
            let mut paths = files.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
            paths.sort();
            for path in paths {
                inputs.push(fs::read(path)?);
            }
        }
        inputs.retain(|input| input.len() <= MAX_INPUT_BYTES);
        Ok(inputs)
    }
}

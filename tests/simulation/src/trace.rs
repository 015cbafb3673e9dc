//! What happened in a simulation, in order: the same seed gives the same trace. The first violation of an invariant
//! ends the simulation.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use xxhash_rust::xxh64::Xxh64;

/// The number of lines that a report shows.
const SHOWN: usize = 80;

/// A trace. Clones share it.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Mutex<TraceState>>);

struct TraceState {
    begun: Instant,
    /// Over all lines.
    hash: Xxh64,
    lines: u64,
    last: VecDeque<String>,
    violation: Option<String>,
    prints: bool,
    /// A line with this text is a violation.
    forbidden: Option<String>,
    /// The number of the step that happens now.
    step: Option<usize>,
}

impl Trace {
    /// Begins now. Prints each line if asked to. A line with the forbidden text counts as a violation.
    pub(crate) fn new(prints: bool, forbidden: Option<String>) -> Self {
        Self(Arc::new(Mutex::new(TraceState {
            begun: Instant::now(),
            hash: Xxh64::new(0),
            lines: 0,
            last: VecDeque::new(),
            violation: None,
            prints,
            forbidden,
            step: None,
        })))
    }

    /// Adds a line.
    pub(crate) fn line(&self, text: fmt::Arguments<'_>) {
        let mut state = self.lock();
        let step = state.step.map(|number| format!("#{number} ")).unwrap_or_default();
        let line = format!("{:>12.6} {step}{text}", state.begun.elapsed().as_secs_f64());
        if state.forbidden.as_ref().is_some_and(|forbidden| line.contains(forbidden)) {
            state.violation.get_or_insert_with(|| line.clone());
        }
        state.hash.update(line.as_bytes());
        state.lines += 1;
        if state.prints {
            println!("{line}");
        }
        if state.last.len() == SHOWN {
            state.last.pop_front();
        }
        state.last.push_back(line);
    }

    /// A step begins or ends.
    pub(crate) fn step(&self, number: Option<usize>) {
        self.lock().step = number;
    }

    /// Records the violation of an invariant. Only the first one counts.
    pub(crate) fn violation(&self, text: fmt::Arguments<'_>) {
        self.line(format_args!("VIOLATION: {text}"));
        self.lock().violation.get_or_insert_with(|| text.to_string());
    }

    /// Whether an invariant was violated.
    pub(crate) fn is_violated(&self) -> bool {
        self.lock().violation.is_some()
    }

    /// The violation, and the end of the trace.
    pub(crate) fn end(&self) -> (Option<String>, u64, u64, Vec<String>) {
        let state = self.lock();
        (state.violation.clone(), state.hash.digest(), state.lines, state.last.iter().cloned().collect())
    }

    /// The simulated time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.lock().begun.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, TraceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a line to a [`Trace`].
macro_rules! trace {
    ($trace:expr, $($text:tt)*) => { $trace.line(format_args!($($text)*)) };
}
pub(crate) use trace;

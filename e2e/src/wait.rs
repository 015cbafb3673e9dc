//! Waiting for conditions that have no event.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Interval between checks.
const POLL: Duration = Duration::from_millis(5);

/// Calls `check` until it returns a value. Panics after the deadline. Only for conditions that have no event.
#[track_caller]
pub fn eventually<T>(what: &str, deadline: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        thread::sleep(POLL);
    }
}

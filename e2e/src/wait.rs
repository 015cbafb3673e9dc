//! Waiting for what announces itself by no event.

use std::thread;
use std::time::{Duration, Instant};

/// Between two looks: short against what is waited for, long against the cost of a look.
const POLL: Duration = Duration::from_millis(5);

/// Calls `look` until it answers or `deadline` has passed, and panics then. Only for things that have no event.
#[track_caller]
pub fn eventually<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        thread::sleep(POLL);
    }
}

//! Waiting for conditions that have no event; the time of day, as in the programs' logs.

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::pace::patience;

/// The shortest interval between checks.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
/// The longest interval between checks.
const LONGEST_POLL: Duration = Duration::from_millis(250);
/// An interval is this fraction of the time waited so far: who waits for long leaves the CPU to what it waits for, and
/// notices it little later.
const FRACTION: u32 = 16;

/// Calls `check` until it returns a value. Panics after the deadline of a quiet machine, which [`patience`] extends.
/// Only for conditions that have no event.
#[track_caller]
pub fn eventually<T>(what: &str, deadline: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let (start, deadline) = (Instant::now(), patience(deadline));
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        thread::sleep((start.elapsed() / FRACTION).clamp(SHORTEST_POLL, LONGEST_POLL));
    }
}

/// The time of day in UTC, to find what happens now in the logs.
pub fn utc_now() -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let (seconds, milliseconds) = (now.as_secs(), now.subsec_millis());
    format!("{:02}:{:02}:{:02}.{milliseconds:03}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

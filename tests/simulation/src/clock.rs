//! The wall clock of a simulated thread: it follows the simulated time, and jumps.
//!
//! The standard library calls `clock_gettime` of the C library, which a program can replace. Only the wall clock of a
//! simulated thread is: tokio has its own simulated time.
#![allow(unsafe_code, reason = "defines a function of the C library")]

use std::{cell::Cell, time::Duration};

use nix::libc;
use tokio::time::Instant;

/// When simulations begin: 2026-01-01.
const BEGIN: Duration = Duration::from_secs(1_767_225_600);

thread_local! {
    /// The simulated time at which the simulation began, and how far the wall clock is ahead of it, in seconds.
    static CLOCK: Cell<Option<(Instant, i64)>> = const { Cell::new(None) };
}

/// Makes the wall clock of this thread follow the simulated time. To be called in a runtime with a paused clock.
pub(crate) fn simulate() {
    CLOCK.set(Some((Instant::now(), 0)));
}

/// The wall clock of all machines jumps.
pub(crate) fn jump(seconds: i64) {
    CLOCK.set(CLOCK.get().map(|(begun, ahead)| (begun, ahead + seconds)));
}

/// The simulation has ended, and its runtime is about to.
pub(crate) fn stop() {
    CLOCK.set(None);
}

/// Replaces `clock_gettime(2)` of the C library.
///
/// # Safety
/// As for `clock_gettime`: `time` must be valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if clock == libc::CLOCK_REALTIME
        && let Ok(Some((begun, ahead))) = CLOCK.try_with(Cell::get)
    {
        let now = BEGIN + begun.elapsed();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_add(ahead);
        // SAFETY: the caller guarantees that the pointer is valid for a write.
        unsafe { time.write(libc::timespec { tv_sec: seconds, tv_nsec: now.subsec_nanos().into() }) };
        return 0;
    }
    // SAFETY: the arguments are those of the caller.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if result == 0 { 0 } else { -1 }
}

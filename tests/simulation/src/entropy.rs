//! Random numbers of a simulated thread: everything that asks the C library for them (hash maps, tokio's choice among
//! ready branches) gets numbers that follow from the seed.
//!
//! The standard library calls `getrandom` as a weak symbol, so that a program can replace it. Threads that are not
//! simulated get the kernel's random numbers.
#![allow(unsafe_code, reason = "defines a function of the C library")]

use std::{cell::RefCell, slice};

use fastrand::Rng;
use nix::libc;

thread_local! {
    static RNG: RefCell<Option<Rng>> = const { RefCell::new(None) };
}

/// Makes all random numbers of this thread follow from a seed. Must be called first in the thread.
pub fn simulate(seed: u64) {
    RNG.set(Some(Rng::with_seed(seed)));
    fastrand::seed(seed);
}

/// Replaces `getrandom(2)` of the C library.
///
/// # Safety
/// As for `getrandom`: `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, flags: libc::c_uint) -> isize {
    let simulated = RNG.try_with(|rng| {
        let mut rng = rng.try_borrow_mut().ok()?;
        // SAFETY: the caller guarantees that the buffer is valid for writes of this length.
        let bytes = unsafe { slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
        rng.as_mut()?.fill(bytes);
        Some(length.cast_signed())
    });
    if let Ok(Some(length)) = simulated {
        return length;
    }
    // SAFETY: the arguments are those of the caller.
    let result = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
    result as isize
}

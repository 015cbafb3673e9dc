//! For tests: a network namespace of one's own.

use std::{panic::resume_unwind, thread};

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a new thread in a new, empty network namespace, which is gone with the thread (and what holds on to
/// it). Needs root. Sockets and processes that `test` opens and starts are in that namespace; a panic is passed on.
///
/// # Panics
/// When the namespace cannot be made: a test that needs one must not pass without.
#[allow(clippy::expect_used)]
pub fn in_netns<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: run as root");
        test()
    };
    match thread::Builder::new().name("netns".into()).spawn(run).expect("a thread").join() {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

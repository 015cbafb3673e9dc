//! For tests: a new network namespace.

use std::{panic::resume_unwind, thread};

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a new thread in a new, empty network namespace, which the kernel deletes after the thread and the
/// processes and sockets in it have ended. Requires root. Sockets and processes that `test` opens and starts are in
/// that namespace.
///
/// # Panics
/// When `test` panics, or the namespace cannot be created.
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

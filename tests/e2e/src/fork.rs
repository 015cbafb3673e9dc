//! Starts programs one at a time. Between fork and exec a child has a copy of every socket of this process, so a socket
//! that a server closes at that moment would stay open a little longer, and its port would still answer.

use std::{
    io,
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

static FORKING: Mutex<()> = Mutex::new(());

/// Starts a program, and returns after its exec.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _guard = pause();
    command.spawn()
}

/// Prevents programs from being started until the guard is dropped.
pub(crate) fn pause() -> MutexGuard<'static, ()> {
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

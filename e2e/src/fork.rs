//! Starting programs beside servers. Between fork and exec a child has a copy of every socket of the process, so one
//! that is closed at that moment stays open a little longer, and a port that should refuse still answers. Hence one at
//! a time.

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static FORKING: Mutex<()> = Mutex::new(());

/// Starts a program; returns after its exec.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _guard = pause();
    command.spawn()
}

/// While this is held no program is started: what is closed is closed.
pub(crate) fn pause() -> MutexGuard<'static, ()> {
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Many cases in one process, for user-mode-linux, where booting a guest for each would take too long.

use std::{
    panic,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::deployment::Backend;

/// A Service conformance case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `module::case`.
    pub name: &'static str,
    /// The case itself.
    pub run: fn(Backend),
    /// With which backends `make test` runs it.
    pub scope: Scope,
}

/// With which backends `make test` runs a case, as [`conformance!`](crate::conformance) explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// nftables and iptables-nft.
    Rules,
    /// nftables.
    Shared,
}

/// Runs tests with their names on `threads` threads, in the order of the list. Prints the result of each.
///
/// # Panics
/// If one of them panics.
#[track_caller]
pub fn run<F: FnOnce() + Copy + Send + Sync + 'static>(tests: &[(&str, F)], threads: usize) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(&(name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let started = Instant::now();
            let thread = thread::Builder::new().name(name.to_owned()).spawn(test);
            let passed = thread.expect("a thread").join().is_ok();
            let result = if passed { "ok" } else { "FAILED" };
            println!("case {name} ... {result} ({:.1} s)", started.elapsed().as_secs_f64());
            if !passed {
                failed.lock().expect("no thread panics while holding the lock").push(name);
            }
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let failed = failed.into_inner().expect("no thread panics while holding the lock");
    if !failed.is_empty() {
        panic::panic_any(format!("{} of {} cases failed: {}", failed.len(), tests.len(), failed.join(", ")));
    }
}

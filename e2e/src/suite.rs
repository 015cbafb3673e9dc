//! Many cases in one process, where a test of its own for each would cost too much: inside user-mode-linux.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::deployment::Backend;

/// A case and its name, `module::case`.
pub type Case = (&'static str, fn(Backend));

/// Runs cases in parallel on a fixed number of threads, in the order of the list. Prints the result of each.
///
/// # Panics
/// When one of them does.
#[track_caller]
pub fn run(cases: &[Case], backend: Backend, at_once: usize) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(&(name, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || case(backend));
            let passed = thread.expect("a thread").join().is_ok();
            let word = if passed { "ok" } else { "FAILED" };
            println!("case {name} ... {word} ({:.1} s)", begun.elapsed().as_secs_f64());
            if !passed {
                failed.lock().expect("no thread panics while holding the lock").push(name);
            }
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(worker))));
    let failed = failed.into_inner().expect("no thread panics while holding the lock");
    if !failed.is_empty() {
        panic::panic_any(format!("{} of {} cases failed: {}", failed.len(), cases.len(), failed.join(", ")));
    }
}

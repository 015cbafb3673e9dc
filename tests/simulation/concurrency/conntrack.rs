//! The requests to the thread that deletes UDP flows: `backend/src/flows/requests.rs`.

use std::time::Duration;

use shuttle::{check_random, thread};

use crate::INTERLEAVINGS;

mod sync {
    pub(super) use std::sync::PoisonError;

    pub(super) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
}

#[path = "../../../backend/src/flows/requests.rs"]
mod requests;

use requests::CleanupRequests;

/// Changes that are recorded while a cleanup runs: the last cleanup comes after the last change, and one that fails is
/// repeated after a change that needs none itself.
#[test]
fn last_cleanup_sees_the_last_change() {
    let model = || {
        let requests = CleanupRequests::<Vec<u8>>::default();
        let server = thread::spawn({
            let requests = requests.clone();
            move || {
                let (mut cleanups, mut seen) = (0, Vec::new());
                while requests.wait() {
                    seen.extend(requests.take());
                    cleanups += 1;
                    requests.finish(cleanups == 1);
                }
                (cleanups, seen)
            }
        });
        requests.record(|changes| changes.push(1));
        requests.request(|changes| changes.push(2), true);
        requests.wait_idle();
        requests.request(|changes| changes.push(3), false);
        requests.wait_idle();
        requests.close();
        assert_eq!(server.join().unwrap(), (2, vec![1, 2, 3]));
    };
    check_random(model, INTERLEAVINGS);
}

/// A thread that is closed ends, whatever it is doing.
#[test]
fn thread_that_is_closed_ends() {
    let model = || {
        let requests = CleanupRequests::<Vec<u8>>::default();
        let server = thread::spawn({
            let requests = requests.clone();
            move || {
                while requests.wait() {
                    requests.finish(false);
                    requests.pause(Duration::from_secs(3600));
                }
            }
        });
        requests.request(|changes| changes.push(1), true);
        requests.request(|changes| changes.push(2), true);
        requests.close();
        server.join().unwrap();
    };
    check_random(model, INTERLEAVINGS);
}

//! The requests to the thread that deletes and resets flows: `backend/src/flows/requests.rs`.

use std::{mem, time::Duration};

use shuttle::{
    check_random,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::INTERLEAVINGS;

mod primitives {
    pub(super) use std::sync::PoisonError;

    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

#[path = "../../../backend/src/flows/requests.rs"]
mod requests;

use requests::{Recorded, Requests, Wake};

const LONG: Duration = Duration::from_secs(3600);

/// Changes that are recorded while a cleanup runs: the last cleanup comes after the last change.
#[test]
fn last_cleanup_sees_the_last_change() {
    let model = || {
        let requests = Arc::new(Requests::new(Vec::<u8>::new()));
        let server = thread::spawn({
            let requests = requests.clone();
            move || {
                let (mut cleanups, mut seen) = (0, Vec::new());
                while requests.wait(LONG) == Wake::Due {
                    seen.extend(requests.with(mem::take));
                    cleanups += 1;
                    requests.finish();
                }
                requests.ended();
                (cleanups, seen)
            }
        });
        let record = |change, is_due| {
            requests.record(|changes| {
                changes.push(change);
                is_due
            });
        };
        record(1, Recorded::NotDue);
        record(2, Recorded::Due);
        requests.wait_idle();
        record(3, Recorded::Due);
        requests.wait_idle();
        requests.close(LONG);
        assert_eq!(server.join().unwrap(), (2, vec![1, 2, 3]));
    };
    check_random(model, INTERLEAVINGS);
}

/// A thread that is closed ends, whatever it is doing, and has done the last thing before that is reported.
#[test]
fn thread_that_is_closed_ends() {
    let model = || {
        let requests = Arc::new(Requests::new(Vec::<u8>::new()));
        let has_removed_rules = Arc::new(AtomicBool::new(false));
        let server = thread::spawn({
            let (requests, has_removed_rules) = (requests.clone(), has_removed_rules.clone());
            move || {
                while requests.wait(LONG) == Wake::Due {
                    requests.finish();
                    requests.rest(LONG);
                }
                has_removed_rules.store(true, Ordering::SeqCst);
                requests.ended();
            }
        });
        for change in [1, 2] {
            requests.record(|changes| {
                changes.push(change);
                Recorded::Due
            });
        }
        requests.close(LONG);
        assert!(has_removed_rules.load(Ordering::SeqCst));
        server.join().unwrap();
    };
    check_random(model, INTERLEAVINGS);
}

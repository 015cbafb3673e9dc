//! The bounds of connections: `fairlead/runtime/src/connections/table.rs`.

use shuttle::{check_random, future, thread};

use crate::INTERLEAVINGS;

mod primitives {
    pub(super) use std::sync::PoisonError;

    pub(super) use shuttle::sync::{Arc, Mutex};
}

#[path = "../../../fairlead/runtime/src/connections/table.rs"]
mod table;

use table::{ConnectionBounds, ConnectionTable};

/// Clients of which each waits until its connection is evicted, or ends it.
#[test]
fn bounds_hold_and_every_evicted_connection_is_told() {
    let model = || {
        let bounds = ConnectionBounds { total: 2, per_key: 1 };
        let table = ConnectionTable::new("model", bounds);
        // The last connection of each key stays until the end, so that the first ones are evicted.
        let waiting: Vec<_> = ["a", "a", "b"].map(|key| table.admit(key)).into();
        assert_eq!(table.count(), 2);
        let threads: Vec<_> = waiting
            .into_iter()
            .map(|permit| {
                thread::spawn(move || {
                    permit.set_busy();
                    future::block_on(permit.evicted());
                })
            })
            .collect();
        let last: Vec<_> = ["a", "b"].map(|key| table.admit(key)).into();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(table.count(), 2);
        drop(last);
        assert_eq!(table.count(), 0);
    };
    check_random(model, INTERLEAVINGS);
}

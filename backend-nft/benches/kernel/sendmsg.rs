//! How long the kernel itself took, from the backend's own log.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// The transactions since the last time: when each ended, and its microseconds.
static TRANSACTIONS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// From now on transactions are watched.
pub(crate) fn watch() {
    tracing::subscriber::set_global_default(Watcher).expect("the only one");
}

/// The transactions since the last time, in order: when each ended, and how long it was inside `sendmsg`.
pub(crate) fn transactions() -> Vec<(Instant, Duration)> {
    std::mem::take(&mut TRANSACTIONS.lock().expect("nobody panics with it"))
}

struct Watcher;

impl Subscriber for Watcher {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "backend_nft::kernel::netlink"
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Took);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Took;

impl Visit for Took {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_us" {
            let transaction = (Instant::now(), Duration::from_micros(value));
            TRANSACTIONS.lock().expect("nobody panics with it").push(transaction);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

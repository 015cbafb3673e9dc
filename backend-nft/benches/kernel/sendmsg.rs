//! How long the kernel itself took, from the backend's own log.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Microseconds of the last transaction.
static TOOK: AtomicU64 = AtomicU64::new(0);

/// From now on transactions are watched.
pub(crate) fn watch() {
    tracing::subscriber::set_global_default(Watcher).expect("the only one");
}

/// How long the last transaction took, inside `sendmsg`.
pub(crate) fn took() -> Duration {
    Duration::from_micros(TOOK.load(Relaxed))
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
            TOOK.store(value, Relaxed);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

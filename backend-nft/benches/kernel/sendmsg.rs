//! Measures the time in the kernel, from the log of the backend.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// The transactions since the last call: when each ended, and how long it took.
static TRANSACTIONS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Starts to record transactions.
pub(crate) fn record() {
    tracing::subscriber::set_global_default(TransactionRecorder).expect("set once");
}

/// The transactions since the last call, in order: when each ended, and how long it took in `sendmsg`.
pub(crate) fn transactions() -> Vec<(Instant, Duration)> {
    std::mem::take(&mut TRANSACTIONS.lock().expect("not poisoned"))
}

struct TransactionRecorder;

impl Subscriber for TransactionRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "backend_nft::kernel::netlink"
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut TookVisitor);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct TookVisitor;

impl Visit for TookVisitor {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_us" {
            let transaction = (Instant::now(), Duration::from_micros(value));
            TRANSACTIONS.lock().expect("not poisoned").push(transaction);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

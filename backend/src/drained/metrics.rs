//! How long pods waited until no node sent them new connections.

use std::time::Instant;

use anyhow::Result;
use prometheus_client::{
    metrics::{
        family::Family as Labelled,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::Drained;

type Label = [(&'static str, &'static str); 1];

/// The results of requests, as values of a label.
const RESULTS: [&str; 4] = ["drained", "timeout", "unknown", "failed"];

#[derive(Clone, Debug)]
pub(crate) struct DrainMetrics {
    durations: Labelled<Label, Histogram>,
    waiting: Gauge,
}

/// A request that waits. When it is dropped it does not.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    metrics: DrainMetrics,
    begun: Instant,
}

impl Default for DrainMetrics {
    fn default() -> Self {
        // 10 ms to 328 s.
        let durations: Labelled<Label, Histogram> =
            Labelled::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 2.0, 16)));
        for result in RESULTS {
            drop(durations.get_or_create(&[("result", result)]));
        }
        Self { durations, waiting: Gauge::default() }
    }
}

impl DrainMetrics {
    pub(super) fn begin(&self) -> WaitingRequest {
        self.waiting.inc();
        WaitingRequest { metrics: self.clone(), begun: Instant::now() }
    }

    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("fairlead_backend");
        let text = "How long pods of this node waited until no node sent them new connections, by result: drained, \
                    timeout, unknown (no EndpointSlice has the address) or failed (no frontend is known)";
        own.register_with_unit("drain_duration", text, Unit::Seconds, self.durations.clone());
        own.register("drains_waiting", "Pods of this node that wait", self.waiting.clone());
        registry
    }
}

impl WaitingRequest {
    pub(super) fn finish(self, drained: &Result<Drained>) {
        let result = match drained {
            Ok(Drained::Yes { .. }) => "drained",
            Ok(Drained::No(_)) => "timeout",
            Ok(Drained::Unknown) => "unknown",
            Err(_) => "failed",
        };
        self.metrics.durations.get_or_create(&[("result", result)]).observe(self.begun.elapsed().as_secs_f64());
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.metrics.waiting.dec();
    }
}

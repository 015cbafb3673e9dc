//! How long pods waited until no node sent them new connections.

use std::time::Duration;

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family as Labelled,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::Drained;
use crate::metrics::Label;

/// The results of requests, as values of a label.
const RESULTS: [&str; 4] = ["drained", "timeout", "unknown", "failed"];

#[derive(Clone, Debug)]
pub(crate) struct DrainMetrics {
    durations: Labelled<Label, Histogram>,
    pub(super) waiting: Gauge,
    pub(super) at_health_port: Counter,
}

impl Default for DrainMetrics {
    fn default() -> Self {
        // 10 ms to 328 s.
        let durations: Labelled<Label, Histogram> =
            Labelled::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 2.0, 16)));
        for result in RESULTS {
            drop(durations.get_or_create(&[("result", result)]));
        }
        Self { durations, waiting: Gauge::default(), at_health_port: Counter::default() }
    }
}

impl DrainMetrics {
    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("fairlead_backend");

        let text = "How long pods of this node waited until no node sent them new connections, by result: drained, \
                    timeout, unknown (no EndpointSlice has the address) or failed (no frontend answered)";
        own.register_with_unit("drain_duration", text, Unit::Seconds, self.durations.clone());
        own.register("drains_waiting", "Pods of this node that wait", self.waiting.clone());

        let text = "Questions of pods at the port of --healthz, which hooks must not ask for much longer";
        own.register("drains_at_health_port", text, self.at_health_port.clone());

        registry
    }

    pub(super) fn finished(&self, drained: &Drained, waited: Duration) {
        let result = match drained {
            Drained::Yes { .. } => "drained",
            Drained::No(_) => "timeout",
            Drained::Unknown => "unknown",
            Drained::NoAnswer(_) => "failed",
        };
        self.durations.get_or_create(&[("result", result)]).observe(waited.as_secs_f64());
    }
}

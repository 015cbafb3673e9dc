//! The metric `fairlead_backend_stale_objects`: what other modes have left in the kernel.

use prometheus_client::metrics::{family::Family, gauge::Gauge};
use runtime::metrics::Registry;

use super::StaleMode;

/// The numbers of objects, by mode.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct StaleObjects(Family<[(&'static str, &'static str); 1], Gauge>);

/// The modes that may have left objects.
const MODES: [&str; 4] = ["nftables", "iptables-nft", "iptables-legacy", "ipvs"];

impl StaleObjects {
    /// Registers the metric.
    pub(in super::super) fn registry(&self) -> Registry {
        self.set(&[]);
        let mut registry = Registry::default();
        let text = "Objects of other modes of Fairlead in the kernel, which are removed when this backend has \
                    programmed the kernel and their connections have ended";
        registry.sub_registry_with_prefix("fairlead_backend").register("stale_objects", text, self.0.clone());
        registry
    }

    pub(super) fn set(&self, stale: &[StaleMode]) {
        for mode in MODES {
            let count: usize = stale.iter().filter(|stale| stale.mode == mode).map(|stale| stale.count).sum();
            self.0.get_or_create(&[("mode", mode)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

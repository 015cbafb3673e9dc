//! All metrics with their names and help texts.

use std::fmt;

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::MetricType,
    registry::{Metric, Registry, Unit},
};
use proto::model::IpFamily;

use super::{Metrics, affinity::AffinityCollector, code_label, family_label, scrape};
use crate::Observer;

/// A metric with the same values for each family, because one sync programs both.
#[derive(Clone, Debug)]
struct UnderEachFamily<M>(M);

impl<M: EncodeMetric> EncodeMetric for UnderEachFamily<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        IpFamily::ALL.into_iter().try_for_each(|family| self.0.encode(encoder.encode_family(&family_label(family))?))
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }
}

pub(crate) fn registry(observer: &Observer) -> Registry {
    let Observer { identity, progress, metrics } = observer;
    let mut registry = Registry::default();

    let kube_proxy = registry.sub_registry_with_prefix("kubeproxy");
    syncs(metrics, identity.backend, kube_proxy);
    conntrack_and_health(metrics, kube_proxy);
    kube_proxy.register_collector(Box::new(scrape::KubeProxyCollector(progress.clone())));

    let own = registry.sub_registry_with_prefix("fairlead_backend");
    backend(metrics, own);
    if identity.backend == "nftables"
        && let Some(affinity) = AffinityCollector::open()
    {
        own.register_collector(Box::new(affinity));
    }
    own.register_collector(Box::new(observer.clone()));
    registry
}

/// Durations of syncs, and the failures that the backend can have.
fn syncs(metrics: &Metrics, backend: &str, registry: &mut Registry) {
    let Metrics { syncs, full, partial, programming, failures, partial_failures, .. } = metrics;

    let text = "Duration of one sync; it programs both families, and each family has the whole duration";
    seconds(registry, "sync_proxy_rules_duration", text, UnderEachFamily(syncs.clone()));
    let text =
        "Duration of full syncs, which compare everything with the kernel: at start, after a failure and after drift";
    seconds(registry, "sync_full_proxy_rules_duration", text, UnderEachFamily(full.clone()));
    let text = "Duration of partial syncs, which program only what changed";
    seconds(registry, "sync_partial_proxy_rules_duration", text, UnderEachFamily(partial.clone()));
    let text = "Time from the change of a pod or Service, according to its EndpointSlice, to the kernel of this node, \
                in kube-proxy's coarse buckets";
    seconds(registry, "network_programming_duration", text, UnderEachFamily(programming.clone()));

    let text = "Syncs that failed as a whole and were retried";
    let failures = UnderEachFamily(failures.clone());
    match backend {
        "nftables" => registry.register("sync_proxy_rules_nftables_sync_failures", text, failures),
        "iptables" | "ipvs" => {
            registry.register("sync_proxy_rules_iptables_restore_failures", text, failures);
            let text = "Partial syncs that failed as a whole and were followed by a full sync";
            let failures = UnderEachFamily(partial_failures.clone());
            registry.register("sync_proxy_rules_iptables_partial_restore_failures", text, failures);
        }
        _ => {}
    }
}

fn conntrack_and_health(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { conntrack_cleanups, deleted_flows, healthz, livez, .. } = metrics;
    for family in IpFamily::ALL {
        drop(conntrack_cleanups.get_or_create(&family_label(family)));
        drop(deleted_flows.get_or_create(&family_label(family)));
    }

    let text = "Duration of listing the UDP flows of the conntrack table and deleting the stale ones";
    seconds(registry, "conntrack_reconciler_sync_duration", text, conntrack_cleanups.clone());
    let text = "Stale UDP flows that were deleted";
    registry.register("conntrack_reconciler_deleted_entries", text, deleted_flows.clone());

    for (name, path, counters) in [("proxy_healthz", "/healthz", healthz), ("proxy_livez", "/livez", livez)] {
        for healthy in [true, false] {
            drop(counters.get_or_create(&code_label(healthy)));
        }
        registry.register(name, format!("Responses of {path}, by HTTP status code"), counters.clone());
    }
}

/// The metrics that kube-proxy does not have.
fn backend(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { propagation, operations, repairs, .. } = metrics;

    let text = "Time from the change of a pod or Service, according to its EndpointSlice, to the kernel of this node, \
                for the oldest change in each commit, by the clocks of the control plane and of this node";
    seconds(registry, "propagation", text, propagation.clone());
    let text = "Operations that one sync wrote to the kernel; 0 is a full sync that found no difference";
    registry.register("sync_kernel_operations", text, operations.clone());
    registry.register("drift_repairs", "Full syncs that reverted changes of another process", repairs.clone());
}

fn seconds(registry: &mut Registry, name: &str, text: &str, metric: impl Metric) {
    registry.register_with_unit(name, text, Unit::Seconds, metric);
}

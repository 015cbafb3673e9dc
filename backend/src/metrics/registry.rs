//! All metrics with their names and help texts.

use std::{fmt, sync::Arc};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::{MetricType, family::Family as Labelled},
    registry::{Registry, Unit},
};
use proto::model::{IpFamily, SyncMode};
use tokio::sync::watch;

use super::{Label, Metrics, code_label, family_label, mode_label, scrape};
use crate::{Progress, observe::Identity};

/// One sync programs both families, so each family has its values.
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

/// All metrics of a backend process.
pub(crate) fn registry(metrics: &Metrics, identity: &Arc<Identity>, progress: &watch::Receiver<Progress>) -> Registry {
    let mut registry = Registry::default();
    kube_proxy(metrics, identity, registry.sub_registry_with_prefix("kubeproxy"));
    let collector = scrape::KubeProxyCollector(progress.clone());
    registry.sub_registry_with_prefix("kubeproxy").register_collector(Box::new(collector));
    backend(metrics, registry.sub_registry_with_prefix("fairlead_backend"));
    let collector = scrape::BackendCollector { progress: progress.clone(), identity: identity.clone() };
    registry.sub_registry_with_prefix("fairlead_backend").register_collector(Box::new(collector));
    registry
}

/// The metrics that kube-proxy has too.
fn kube_proxy(metrics: &Metrics, identity: &Identity, registry: &mut Registry) {
    syncs(metrics, registry);
    sync_failures(metrics, identity.backend, registry);
    conntrack(metrics, registry);
    let Metrics { healthz, livez, .. } = metrics;
    for (name, path, counters) in [("proxy_healthz", "/healthz", healthz), ("proxy_livez", "/livez", livez)] {
        for healthy in [true, false] {
            drop(counters.get_or_create(&code_label(healthy)));
        }
        registry.register(name, format!("Responses of {path}, by HTTP status code"), counters.clone());
    }
}

fn syncs(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { syncs, full, partial, programming, .. } = metrics;
    registry.register_with_unit(
        "sync_proxy_rules_duration",
        "Duration of one sync; it programs both families, and each family has the whole duration",
        Unit::Seconds,
        UnderEachFamily(syncs.clone()),
    );
    registry.register_with_unit(
        "sync_full_proxy_rules_duration",
        "Duration of full syncs, which compare everything with the kernel: at start, after a failure and after drift",
        Unit::Seconds,
        UnderEachFamily(full.clone()),
    );
    registry.register_with_unit(
        "sync_partial_proxy_rules_duration",
        "Duration of partial syncs, which program only what changed",
        Unit::Seconds,
        UnderEachFamily(partial.clone()),
    );
    registry.register_with_unit(
        "network_programming_duration",
        "Time from the change of a pod or Service, according to its EndpointSlice, to the kernel of this node, in \
         kube-proxy's coarse buckets",
        Unit::Seconds,
        UnderEachFamily(programming.clone()),
    );
}

/// Only the failures that the backend can have.
fn sync_failures(metrics: &Metrics, backend: &str, registry: &mut Registry) {
    let Metrics { failures, partial_failures, .. } = metrics;
    match backend {
        "nftables" => registry.register(
            "sync_proxy_rules_nftables_sync_failures",
            "Syncs that failed as a whole and were retried",
            UnderEachFamily(failures.clone()),
        ),
        "iptables" | "ipvs" => {
            registry.register(
                "sync_proxy_rules_iptables_restore_failures",
                "Syncs that failed as a whole and were retried",
                UnderEachFamily(failures.clone()),
            );
            registry.register(
                "sync_proxy_rules_iptables_partial_restore_failures",
                "Partial syncs that failed as a whole and were followed by a full sync",
                UnderEachFamily(partial_failures.clone()),
            );
        }
        _ => {}
    }
}

fn conntrack(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { conntrack_cleanups, deleted_flows, .. } = metrics;
    for family in IpFamily::ALL {
        drop(conntrack_cleanups.get_or_create(&family_label(family)));
        drop(deleted_flows.get_or_create(&family_label(family)));
    }
    registry.register_with_unit(
        "conntrack_reconciler_sync_duration",
        "Duration of listing the UDP flows of the conntrack table and deleting the stale ones",
        Unit::Seconds,
        conntrack_cleanups.clone(),
    );
    registry.register(
        "conntrack_reconciler_deleted_entries",
        "Stale UDP flows that were deleted",
        deleted_flows.clone(),
    );
}

/// The metrics that kube-proxy does not have.
fn backend(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { propagation, operations, sessions, repairs, .. } = metrics;
    registry.register_with_unit(
        "propagation",
        "Time from the change of a pod or Service, according to its EndpointSlice, to the kernel of this node, for the \
         oldest change in each commit, by the clocks of the control plane and of this node",
        Unit::Seconds,
        propagation.clone(),
    );
    registry.register(
        "sync_kernel_operations",
        "Operations that one sync wrote to the kernel; 0 is a full sync that found no difference",
        operations.clone(),
    );
    for mode in [SyncMode::Resume, SyncMode::Repair, SyncMode::Snapshot] {
        drop(sessions.get_or_create(&mode_label(mode)));
    }
    let sessions: Labelled<Label, _> = sessions.clone();
    registry.register(
        "sessions",
        "Sessions with a frontend, by how they began: resume (changes only), repair (buckets whose digests differ) or \
         snapshot (everything)",
        sessions,
    );
    registry.register("drift_repairs", "Full syncs that reverted changes of another process", repairs.clone());
}

//! Every metric with its name and what it means, put together for whoever asks.

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

/// One sync serves both families, so what is measured of it is told under each.
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

/// Everything that there is to tell, when somebody asks.
pub(crate) fn registry(metrics: &Metrics, identity: &Arc<Identity>, progress: &watch::Receiver<Progress>) -> Registry {
    let mut registry = Registry::default();
    kube_proxy(metrics, identity, registry.sub_registry_with_prefix("kubeproxy"));
    let collector = scrape::KubeProxy(progress.clone());
    registry.sub_registry_with_prefix("kubeproxy").register_collector(Box::new(collector));
    ours(metrics, registry.sub_registry_with_prefix("fairlead_backend"));
    let collector = scrape::Ours { progress: progress.clone(), identity: identity.clone() };
    registry.sub_registry_with_prefix("fairlead_backend").register_collector(Box::new(collector));
    registry
}

/// What kube-proxy has too.
fn kube_proxy(metrics: &Metrics, identity: &Identity, registry: &mut Registry) {
    let Metrics { syncs, full, partial, programming, failures, partial_failures, .. } = metrics;
    let Metrics { sweeps, deleted_flows, healthz, livez, .. } = metrics;
    registry.register_with_unit(
        "sync_proxy_rules_duration",
        "Time for one change of the kernel, or one comparison with it; both families are served at once and each has the whole time",
        Unit::Seconds,
        UnderEachFamily(syncs.clone()),
    );
    registry.register_with_unit(
        "sync_full_proxy_rules_duration",
        "The same for comparisons of all that should be there with the kernel: at the start, after a failure and after a drift",
        Unit::Seconds,
        UnderEachFamily(full.clone()),
    );
    registry.register_with_unit(
        "sync_partial_proxy_rules_duration",
        "The same for changes, which touch nothing but what changed",
        Unit::Seconds,
        UnderEachFamily(partial.clone()),
    );
    registry.register_with_unit(
        "network_programming_duration",
        "From the change of a pod or Service, as the EndpointSlice tells it, to the kernel of this node, in kube-proxy's coarse buckets",
        Unit::Seconds,
        UnderEachFamily(programming.clone()),
    );
    // What cannot happen with a backend is not told.
    match identity.backend {
        "nftables" => registry.register(
            "sync_proxy_rules_nftables_sync_failures",
            "Transactions and comparisons that failed as a whole; they are tried again",
            UnderEachFamily(failures.clone()),
        ),
        "iptables" | "ipvs" => {
            registry.register(
                "sync_proxy_rules_iptables_restore_failures",
                "Changes and comparisons that failed as a whole; they are tried again",
                UnderEachFamily(failures.clone()),
            );
            registry.register(
                "sync_proxy_rules_iptables_partial_restore_failures",
                "Changes that failed as a whole; everything is compared then",
                UnderEachFamily(partial_failures.clone()),
            );
        }
        _ => {}
    }
    for family in IpFamily::ALL {
        drop(sweeps.get_or_create(&family_label(family)));
        drop(deleted_flows.get_or_create(&family_label(family)));
    }
    registry.register_with_unit(
        "conntrack_reconciler_sync_duration",
        "Time to look through the UDP flows that the kernel remembers, and to delete those that lead nowhere",
        Unit::Seconds,
        sweeps.clone(),
    );
    registry.register(
        "conntrack_reconciler_deleted_entries",
        "UDP flows that led nowhere any more and were deleted",
        deleted_flows.clone(),
    );
    for (name, path, counters) in [("proxy_healthz", "/healthz", healthz), ("proxy_livez", "/livez", livez)] {
        for healthy in [true, false] {
            drop(counters.get_or_create(&code_label(healthy)));
        }
        registry.register(name, format!("Answers to {path}, by their status"), counters.clone());
    }
}

/// What kube-proxy does not have.
fn ours(metrics: &Metrics, registry: &mut Registry) {
    let Metrics { propagation, operations, sessions, repairs, .. } = metrics;
    registry.register_with_unit(
        "propagation",
        "From the change of a pod or Service, as the EndpointSlice tells it, to the kernel of this node: of the oldest change in each \
         commit, by the clocks of the control plane and of this node",
        Unit::Seconds,
        propagation.clone(),
    );
    registry.register(
        "sync_kernel_operations",
        "Operations written to the kernel by one change or comparison; 0 is a comparison that found everything as it should be",
        operations.clone(),
    );
    for mode in [SyncMode::Resume, SyncMode::Repair, SyncMode::Snapshot] {
        drop(sessions.get_or_create(&mode_label(mode)));
    }
    let sessions: Labelled<Label, _> = sessions.clone();
    registry.register(
        "sessions",
        "Sessions with a frontend, by how they began: resume (only what changed), repair (after comparing digests) or snapshot (everything)",
        sessions,
    );
    registry.register(
        "drift_repairs",
        "Comparisons after somebody else had changed what is programmed that had something to put right",
        repairs.clone(),
    );
}

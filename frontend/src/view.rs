//! What a service port looks like, from anywhere: a pure function from the objects to the decisions. No IO, no state.
//!
//! ```text
//!   Service, its Port, what it may claim ─┐               ┌─▶ view():    ServicePort         the same for every node
//!   EndpointSlices ──▶ merged endpoints ──┴─▶ Decisions ──┤              cluster: Scoped     by node hint, else by zone hint, else all
//!                                                         │              local               by node
//!                                                         └─▶ explain(): each endpoint, with the rule that lets it in or not
//! ```
//!
//! The rules are those of kube-proxy for endpoint readiness, terminating fallback and topology hints. They are checked
//! against a second, naive implementation (`reference`) that answers for one node at a time.

mod choice;
mod explain;
mod merge;
#[cfg(test)]
mod reference;
mod scoped;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use proto::model::{IpFamily, PerFamily, Pool, ServicePort, TrafficPolicy};

use crate::object::{ServiceObject, SliceObject};

use self::{
    choice::{Choice, Used, local, local_pool},
    merge::{Merged, merge},
};
pub use self::{
    explain::{EndpointExplanation, EndpointReason, ServicePortExplanation, explain},
    scoped::Scoped,
};

/// One service port with its pools, as every node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortView {
    /// The same for every node.
    pub port: ServicePort,
    /// For traffic policy Cluster. Empty when no traffic follows that policy.
    pub cluster: PerFamily<Scoped<Pool>>,
    /// By node, only those that have some: the ready endpoints there, or else the serving and terminating ones.
    pub local: BTreeMap<Arc<str>, PerFamily<Pool>>,
}

/// Computes the view of one service port.
///
/// `port` is what the service port is besides its endpoints, after conflicts over VIPs have been settled; `slices` are
/// all EndpointSlices of the service. A family of which the service has no cluster IP has no endpoints.
#[must_use]
pub fn view<'a>(
    service: &ServiceObject,
    mut port: ServicePort,
    slices: impl IntoIterator<Item = &'a SliceObject>,
) -> ServicePortView {
    let merged = merge(&port.key, slices);
    let Decisions { any_endpoints, cluster, local } = Decisions::of(service, &port, &merged);
    port.any_endpoints = any_endpoints;
    let mut by_node = BTreeMap::<Arc<str>, PerFamily<Pool>>::new();
    for family in IpFamily::ALL {
        for (node, used) in &local[family] {
            by_node.entry(node.clone()).or_default()[family] = local_pool(used);
        }
    }
    let cluster = PerFamily::from_fn(|family| cluster[family].as_ref().map(Choice::pools).unwrap_or_default());
    ServicePortView { port, cluster, local: by_node }
}

/// What is decided about the endpoints of a service port, from which everything else follows.
#[derive(Debug, Default)]
struct Decisions<'a> {
    /// Whether something can serve, wherever it is.
    any_endpoints: PerFamily<bool>,
    /// For traffic policy Cluster; `None` when no traffic follows it, or there is no cluster IP of the family.
    cluster: PerFamily<Option<Choice<'a>>>,
    /// By node, only where there are some.
    local: PerFamily<BTreeMap<Arc<str>, Used<'a>>>,
}

impl<'a> Decisions<'a> {
    fn of(service: &ServiceObject, port: &ServicePort, merged: &[Merged<'a>]) -> Self {
        let mut decisions = Self::default();
        for family in IpFamily::ALL {
            if service.cluster_ips[family].is_none() {
                continue;
            }
            let endpoints: Vec<_> = merged.iter().filter(|merged| merged.family() == family).copied().collect();
            let can_serve = |merged: &Merged<'_>| merged.ready() || merged.fallback();
            decisions.any_endpoints[family] = endpoints.iter().any(can_serve);
            if uses_cluster(port) {
                decisions.cluster[family] = Some(Choice::of(&endpoints));
            }
            decisions.local[family] = local(&endpoints);
        }
        decisions
    }
}

/// Whether any traffic follows policy Cluster. Pods and the node itself do, whatever the external policy.
fn uses_cluster(port: &ServicePort) -> bool {
    port.internal_policy == TrafficPolicy::Cluster || port.externally_accessible()
}

impl ServicePortView {
    /// The cluster pool of a node in a zone.
    #[must_use]
    pub fn cluster_pool(&self, family: IpFamily, node: &str, zone: &str) -> &Pool {
        self.cluster[family].resolve(node, zone)
    }

    /// The local pool of a node, when it is not empty.
    #[must_use]
    pub fn local_pool(&self, family: IpFamily, node: &str) -> Option<&Pool> {
        self.local.get(node).map(|pools| &pools[family]).filter(|pool| !pool.is_empty())
    }

    /// How many endpoints there are, for figures only.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        let count = |family| {
            let everywhere = self.cluster[family].default.len();
            let by_node = self.local.values().map(|pools| pools[family].len()).sum();
            everywhere.max(by_node)
        };
        IpFamily::ALL.into_iter().map(count).sum()
    }
}

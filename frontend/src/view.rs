//! What a service port looks like, from anywhere: a pure function from the objects to the decisions. No IO, no state.
//!
//! ```text
//!   Service, its Port, what it may claim ─┐            ┌─ ServicePort         the same for every node
//!   EndpointSlices ──▶ merged endpoints ──┴─▶ view() ──┼─ cluster: Scoped     by node hint, else by zone hint, else all
//!                                                      └─ local               by node
//! ```
//!
//! The rules are those of kube-proxy for endpoint readiness, terminating fallback and topology hints. They are checked
//! against a second, naive implementation (`reference`) that answers for one node at a time.

mod merge;
#[cfg(test)]
mod reference;
mod scoped;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::model::{Family, PerFamily, Pool, ServicePort, TrafficPolicy};

use crate::object::{Service, Slice, SliceEndpoint};

use self::merge::{Merged, merge};
pub use self::scoped::Scoped;

/// One service port with its pools, as every node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
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
    service: &Service,
    mut port: ServicePort,
    slices: impl IntoIterator<Item = &'a Slice>,
) -> View {
    let merged = merge(&port.key, slices);
    let mut cluster = PerFamily::<Scoped<Pool>>::default();
    let mut local = BTreeMap::<Arc<str>, PerFamily<Pool>>::new();
    let uses_cluster = port.internal_policy == TrafficPolicy::Cluster || port.externally_accessible();
    for family in Family::ALL {
        if service.cluster_ips[family].is_none() {
            continue;
        }
        let endpoints: Vec<_> = merged.iter().filter(|merged| merged.family() == family).collect();
        port.any_endpoints[family] = endpoints.iter().any(|merged| merged.ready() || merged.fallback());
        if uses_cluster {
            cluster[family] = cluster_pools(&endpoints);
        }
        for (node, pool) in local_pools(&endpoints) {
            local.entry(node).or_default()[family] = pool;
        }
    }
    View { port, cluster, local }
}

impl View {
    /// The cluster pool of a node in a zone.
    #[must_use]
    pub fn cluster_pool(&self, family: Family, node: &str, zone: &str) -> &Pool {
        self.cluster[family].resolve(node, zone)
    }

    /// The local pool of a node, when it is not empty.
    #[must_use]
    pub fn local_pool(&self, family: Family, node: &str) -> Option<&Pool> {
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
        Family::ALL.into_iter().map(count).sum()
    }
}

/// The endpoints for traffic policy Cluster: the ready ones, narrowed by hints; when there are none, those that still
/// serve while they terminate, wherever they are.
fn cluster_pools(endpoints: &[&Merged<'_>]) -> Scoped<Pool> {
    let ready: Vec<_> = endpoints.iter().copied().filter(|merged| merged.ready()).collect();
    if ready.is_empty() {
        let fallback = endpoints.iter().filter(|merged| merged.fallback());
        return Scoped::everywhere(fallback.map(|merged| merged.to_endpoint(false)).collect());
    }
    let default: Pool = ready.iter().map(|merged| merged.to_endpoint(false)).collect();
    let mut zones = hinted(&ready, |endpoint| &endpoint.zone_hints);
    // What a zone without hints would get anyway needs no entry of its own.
    zones.retain(|_, pool| *pool != default);
    Scoped { zones, nodes: hinted(&ready, |endpoint| &endpoint.node_hints), default }
}

/// One pool for each place that is named by a hint. Hints of a kind count only when every ready endpoint has some.
fn hinted(ready: &[&Merged<'_>], hints: impl Fn(&SliceEndpoint) -> &[Arc<str>]) -> BTreeMap<Arc<str>, Pool> {
    if ready.iter().any(|merged| hints(merged.endpoint).is_empty()) {
        return BTreeMap::new();
    }
    let mut pools = BTreeMap::<Arc<str>, Vec<_>>::new();
    for merged in ready {
        // The empty name is how a node without a zone says so; no hint can mean it.
        let places: BTreeSet<_> = hints(merged.endpoint).iter().filter(|place| !place.is_empty()).collect();
        for place in places {
            pools.entry(place.clone()).or_default().push(merged.to_endpoint(false));
        }
    }
    pools.into_iter().map(|(place, endpoints)| (place, endpoints.into_iter().collect())).collect()
}

/// The endpoints on each node: the ready ones; when there are none, those that still serve while they terminate.
fn local_pools(endpoints: &[&Merged<'_>]) -> BTreeMap<Arc<str>, Pool> {
    let mut ready = BTreeMap::<Arc<str>, Vec<_>>::new();
    let mut fallback = BTreeMap::<Arc<str>, Vec<_>>::new();
    for merged in endpoints {
        let Some(node) = &merged.endpoint.node else { continue };
        if merged.ready() {
            ready.entry(node.clone()).or_default().push(merged.to_endpoint(false));
        } else if merged.fallback() {
            fallback.entry(node.clone()).or_default().push(merged.to_endpoint(true));
        }
    }
    for (node, endpoints) in fallback {
        ready.entry(node).or_insert(endpoints);
    }
    ready.into_iter().map(|(node, endpoints)| (node, endpoints.into_iter().collect())).collect()
}

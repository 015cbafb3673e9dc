//! Endpoint selection: which endpoints are used, and by which rule. Pools and explanations are made from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::model::Pool;

use crate::object::SliceEndpoint;

use super::{
    Scoped, ServiceEndpoints,
    merge::{MergedEndpoint, Usability},
};

/// The endpoints of a set that are used.
#[derive(Debug)]
pub(super) struct UsedEndpoints<'a> {
    /// Their usability: `Ready`, or `Fallback` if no endpoint of the set is ready.
    pub(super) basis: Usability,
    endpoints: Vec<MergedEndpoint<'a>>,
}

/// The endpoints for traffic policy Cluster, of one family.
#[derive(Debug)]
pub(super) struct ClusterSelection<'a> {
    pub(super) used: UsedEndpoints<'a>,
    pub(super) node_hints: Hints<'a>,
    pub(super) zone_hints: Hints<'a>,
}

/// The hints of one kind (node or zone) of the ready endpoints.
#[derive(Debug)]
pub(super) enum Hints<'a> {
    /// No endpoint is ready, or none has such hints.
    Absent,
    /// Ignored, because this ready endpoint has none.
    Incomplete(MergedEndpoint<'a>),
    /// The endpoints by node or zone.
    Active(BTreeMap<Arc<str>, Vec<MergedEndpoint<'a>>>),
}

/// Which hints narrow the endpoints for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintScope {
    /// Node hints: some name the node.
    Node,
    /// Zone hints: some name its zone.
    Zone,
    Everywhere,
}

// === impl UsedEndpoints ===

impl<'a> UsedEndpoints<'a> {
    /// The ready endpoints, or if there are none, those that are terminating and still serving.
    fn of(endpoints: &[MergedEndpoint<'a>]) -> Self {
        let is_any_ready = endpoints.iter().any(|merged| merged.usability() == Usability::Ready);
        let basis = if is_any_ready { Usability::Ready } else { Usability::Fallback };
        let used = endpoints.iter().filter(|merged| merged.usability() == basis);
        Self { basis, endpoints: used.copied().collect() }
    }
}

/// The used endpoints of each node that has some.
pub(super) fn local<'a>(
    endpoints: &[MergedEndpoint<'a>],
    of_service: &ServiceEndpoints<'_>,
) -> BTreeMap<Arc<str>, UsedEndpoints<'a>> {
    let mut by_node = BTreeMap::<Arc<str>, Vec<_>>::new();
    for merged in endpoints {
        if let Some(node) = of_service.local_node(merged.endpoint) {
            by_node.entry(node.clone()).or_default().push(*merged);
        }
    }
    let used = by_node.into_iter().map(|(node, endpoints)| (node, UsedEndpoints::of(&endpoints)));
    used.filter(|(_, used)| !used.endpoints.is_empty()).collect()
}

/// The local pool of a node. Its endpoints are marked as terminating.
pub(super) fn local_pool(used: &UsedEndpoints<'_>) -> Pool {
    let terminating = used.basis == Usability::Fallback;
    used.endpoints.iter().map(|merged| merged.to_endpoint(terminating)).collect()
}

/// Whether an endpoint does not serve, on a Node of which there is no object. The Node object of one that serves may be
/// missing by mistake, or not be known yet.
pub(super) fn is_on_missing_node(merged: &MergedEndpoint<'_>, of_service: &ServiceEndpoints<'_>) -> bool {
    let SliceEndpoint { ready, serving, ref node, .. } = *merged.endpoint;
    !ready && !serving && node.as_ref().is_some_and(|node| !of_service.has_node(node))
}

/// What established flows may keep of these endpoints, besides the cluster pools: the same for every node. Where hints
/// narrow the pools, these are all of them: what each node is not given would be as many lists as there are hints.
pub(super) fn unused_of_cluster<'m, 'a: 'm>(
    endpoints: impl Iterator<Item = &'m MergedEndpoint<'a>>,
    cluster: &Scoped<Pool>,
) -> Pool {
    let endpoints = endpoints.map(|merged| merged.to_endpoint(false));
    endpoints.filter(|endpoint| !cluster.is_everywhere() || !cluster.default.contains(endpoint)).collect()
}

/// What established flows may keep, besides the local pools: on each node its own endpoints.
pub(super) fn unused_by_node<'m, 'a: 'm>(
    serving: impl Iterator<Item = &'m MergedEndpoint<'a>>,
    of_service: &ServiceEndpoints<'_>,
    local: &BTreeMap<Arc<str>, Pool>,
) -> BTreeMap<Arc<str>, Pool> {
    let mut by_node = BTreeMap::<Arc<str>, Vec<_>>::new();
    for merged in serving {
        let Some(node) = of_service.local_node(merged.endpoint) else { continue };
        let endpoint = merged.to_endpoint(false);
        if !local.get(node).is_some_and(|pool| pool.contains(&endpoint)) {
            by_node.entry(node.clone()).or_default().push(endpoint);
        }
    }
    by_node.into_iter().map(|(node, endpoints)| (node, endpoints.into_iter().collect())).collect()
}

// === impl ClusterSelection ===

impl<'a> ClusterSelection<'a> {
    /// The ready endpoints, narrowed by hints, or if there are none, all those that are terminating and still serving.
    pub(super) fn of(endpoints: &[MergedEndpoint<'a>], of_service: &ServiceEndpoints<'_>) -> Self {
        let used = UsedEndpoints::of(endpoints);
        if used.basis != Usability::Ready {
            return Self { used, node_hints: Hints::Absent, zone_hints: Hints::Absent };
        }
        Self {
            node_hints: Hints::of(
                &used.endpoints,
                |endpoint| &endpoint.node_hints,
                |name| of_service.has_node(name) && of_service.is_served(name),
            ),
            zone_hints: Hints::of(&used.endpoints, |endpoint| &endpoint.zone_hints, |name| of_service.has_zone(name)),
            used,
        }
    }

    /// Which hints apply to a node in a zone. Node hints take precedence.
    pub(super) fn scope(&self, node: &str, zone: &str) -> HintScope {
        if self.node_hints.names(node) {
            HintScope::Node
        } else if self.zone_hints.names(zone) {
            HintScope::Zone
        } else {
            HintScope::Everywhere
        }
    }

    /// The cluster pools of all nodes.
    pub(super) fn pools(&self) -> Scoped<Pool> {
        let default = pool(&self.used.endpoints);
        let mut zones = self.zone_hints.pools();
        // A zone whose pool equals the default needs no entry of its own.
        zones.retain(|_, pool| *pool != default);
        Scoped { zones, nodes: self.node_hints.pools(), default }
    }
}

// === impl Hints ===

impl<'a> Hints<'a> {
    /// Hints of a kind apply only if every ready endpoint has some, also if they name what does not exist.
    fn of(
        ready: &[MergedEndpoint<'a>],
        hints: impl Fn(&'a SliceEndpoint) -> &'a [Arc<str>],
        exists: impl Fn(&str) -> bool,
    ) -> Self {
        if let Some(without) = ready.iter().find(|merged| hints(merged.endpoint).is_empty()) {
            let any = ready.iter().any(|merged| !hints(merged.endpoint).is_empty());
            return if any { Self::Incomplete(*without) } else { Self::Absent };
        }
        let mut by_name = BTreeMap::<Arc<str>, Vec<_>>::new();
        for merged in ready {
            // The empty name stands for a node without a zone, which no hint can mean.
            let names: BTreeSet<_> =
                hints(merged.endpoint).iter().filter(|name| !name.is_empty() && exists(name)).collect();
            for name in names {
                by_name.entry(name.clone()).or_default().push(*merged);
            }
        }
        Self::Active(by_name)
    }

    /// Whether a node or zone is named.
    fn names(&self, name: &str) -> bool {
        matches!(self, Self::Active(by_name) if by_name.contains_key(name))
    }

    /// One pool for each node or zone that is named.
    fn pools(&self) -> BTreeMap<Arc<str>, Pool> {
        let Self::Active(by_name) = self else { return BTreeMap::new() };
        by_name.iter().map(|(name, endpoints)| (name.clone(), pool(endpoints))).collect()
    }
}

/// A cluster pool. Its endpoints are not marked as terminating.
fn pool(endpoints: &[MergedEndpoint<'_>]) -> Pool {
    endpoints.iter().map(|merged| merged.to_endpoint(false)).collect()
}

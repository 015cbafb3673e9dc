//! The view of a service port: its pools for each node, as a pure function of the objects. No IO, no state.
//!
//! ```text
//!   Service, its port, the VIPs it gets ──┐               ┌─▶ view():    ServicePort         the same for every node
//!   EndpointSlices ──▶ merged endpoints ──┴─▶ Decisions ──┤              cluster: Scoped     by node, by zone
//!                                                         │              local: Scoped       by node
//!                                                         │              established: Scoped by node
//!                                                         │              gone                the same for every node
//!                                                         └─▶ explain(): each endpoint, with its reason
//! ```
//!
//! The rules for endpoint readiness, terminating endpoints and topology hints are those of kube-proxy. Tests compare
//! the result with a second, naive implementation (`reference`) that computes one node at a time.

mod difference;
mod explain;
mod limit;
mod merge;
mod selection;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, iter, net::IpAddr, sync::Arc};

use proto::model::{Endpoint, IpFamily, PerFamily, Pool, PoolClass, Protocol, ServicePort, TrafficPolicy};

use crate::object::{ConnectionResets, ServiceObject};

pub(crate) use self::{
    difference::{describe, vip_addresses, vips},
    explain::{
        EndpointExplanation, EndpointReason, MAX_EXPLAINED, NAMED_PORTS, NotExplained, ServicePortExplanation, explain,
    },
    limit::{KnownTopology, ServiceEndpoints},
};
use self::{
    merge::{MergedEndpoint, Usability, merge},
    selection::{
        ClusterSelection, UsedEndpoints, is_on_missing_node, local, local_pool, unused_by_node, unused_of_cluster,
    },
};

/// One service port with its pools on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePortView {
    /// The same for every node.
    pub(crate) port: ServicePort,
    /// For traffic policy Cluster. Empty if no traffic uses that policy.
    pub(crate) cluster: PerFamily<Scoped<Pool>>,
    /// For traffic policy Local, by node: its ready endpoints, or else those that are terminating and still serving.
    /// Only nodes with such endpoints, and of those without a Node object a limited number.
    pub(crate) local: PerFamily<Scoped<Pool>>,
    /// What established UDP flows may keep, besides the endpoints of the other pools. The same for every node; if no
    /// traffic uses policy Cluster, by node: its own. With [`ConnectionResets::Removed`], what TCP connections may
    /// keep.
    pub(crate) established: PerFamily<Scoped<Pool>>,
    /// The endpoints whose TCP connections are reset, the same for every node.
    pub(crate) gone: PerFamily<Scoped<Pool>>,
}

/// A value that is the same on most nodes: `nodes[node]`, else `zones[zone]`, else `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scoped<T> {
    pub(crate) default: T,
    pub(crate) zones: BTreeMap<Arc<str>, T>,
    pub(crate) nodes: BTreeMap<Arc<str>, T>,
}

/// Computes the view of one service port.
///
/// `port` is the service port after VIP conflict resolution, without its endpoints; `endpoints` are those of the
/// Service. An IP family without a cluster IP has no endpoints.
pub(crate) fn view(
    service: &ServiceObject,
    mut port: ServicePort,
    endpoints: &ServiceEndpoints<'_>,
) -> ServicePortView {
    let merged = merge(&port.key, endpoints);
    let decisions = EndpointDecisions::of(service, &port, endpoints, &merged);
    port.any_endpoints = decisions.any_endpoints;

    let cluster = decisions.cluster.map(|_, selected| selected.map(|selected| selected.pools()).unwrap_or_default());
    let local = decisions.local.map(|_, used| local_pools(used));
    let mut view = ServicePortView { cluster, local, ..ServicePortView::without_endpoints(port) };

    let resets = service.connection_resets.unwrap_or_default();
    for family in IpFamily::ALL {
        if service.cluster_ips[family].is_some() {
            let of_family = merged.iter().filter(|merged| merged.family() == family);
            view.set_flow_pools(family, resets, endpoints, of_family);
        }
    }
    view
}

/// Whether any traffic uses policy Cluster. Traffic of pods and of the node to external VIPs does, whatever the
/// external policy is.
fn uses_cluster(port: &ServicePort) -> bool {
    port.internal_policy == TrafficPolicy::Cluster || port.externally_accessible()
}

fn local_pools(used: BTreeMap<Arc<str>, UsedEndpoints<'_>>) -> Scoped<Pool> {
    Scoped::by_node(used.into_iter().map(|(node, used)| (node, local_pool(&used))).collect())
}

/// Which endpoints of a service port are used where.
#[derive(Debug, Default)]
struct EndpointDecisions<'a> {
    /// Whether any endpoint can serve, on any node.
    any_endpoints: PerFamily<bool>,
    /// For traffic policy Cluster; `None` if no traffic uses it, or without a cluster IP of the family.
    cluster: PerFamily<Option<ClusterSelection<'a>>>,
    /// For traffic policy Local, by node.
    local: PerFamily<BTreeMap<Arc<str>, UsedEndpoints<'a>>>,
}

impl<'a> EndpointDecisions<'a> {
    fn of(
        service: &ServiceObject,
        port: &ServicePort,
        of_service: &ServiceEndpoints<'_>,
        merged: &[MergedEndpoint<'a>],
    ) -> Self {
        let mut decisions = Self::default();
        let uses_cluster = uses_cluster(port);
        for family in IpFamily::ALL {
            if service.cluster_ips[family].is_none() {
                continue;
            }

            let endpoints: Vec<_> = merged.iter().filter(|merged| merged.family() == family).copied().collect();
            let can_serve = |merged: &MergedEndpoint<'_>| merged.usability() != Usability::Unused;
            decisions.any_endpoints[family] = endpoints.iter().any(can_serve);
            if uses_cluster {
                decisions.cluster[family] = Some(ClusterSelection::of(&endpoints, of_service));
            }
            decisions.local[family] = local(&endpoints, of_service);
        }
        decisions
    }
}

impl<T> Scoped<T> {
    /// The same value for every node.
    fn everywhere(default: T) -> Self {
        Self { default, zones: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// The value for a node in a zone.
    pub(crate) fn resolve(&self, node: &str, zone: &str) -> &T {
        self.nodes.get(node).unwrap_or_else(|| self.in_zone(zone))
    }

    /// Whether no zone and no node has a value of its own.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.zones.is_empty() && self.nodes.is_empty()
    }

    /// The value for nodes of a zone that have none of their own.
    pub(crate) fn in_zone(&self, zone: &str) -> &T {
        self.zones.get(zone).unwrap_or(&self.default)
    }
}

impl<T: Default> Scoped<T> {
    /// A value for each of these nodes, and the default for all others.
    fn by_node(nodes: BTreeMap<Arc<str>, T>) -> Self {
        Self { nodes, ..Self::default() }
    }
}

impl ServicePortView {
    pub(crate) fn without_endpoints(port: ServicePort) -> Self {
        Self {
            port,
            cluster: PerFamily::default(),
            local: PerFamily::default(),
            established: PerFamily::default(),
            gone: PerFamily::default(),
        }
    }

    /// Decides what established flows of an IP family may keep, and whose TCP connections are reset. `merged`: all
    /// endpoints of the family.
    fn set_flow_pools<'m, 'a: 'm>(
        &mut self,
        family: IpFamily,
        resets: ConnectionResets,
        endpoints: &ServiceEndpoints<'_>,
        merged: impl Iterator<Item = &'m MergedEndpoint<'a>>,
    ) {
        let cluster = &self.cluster[family];
        match self.port.key.protocol {
            Protocol::Udp => {
                let serving = merged.filter(|merged| merged.endpoint.serving);
                self.established[family] = if uses_cluster(&self.port) {
                    Scoped::everywhere(unused_of_cluster(serving, cluster))
                } else {
                    Scoped::by_node(unused_by_node(serving, endpoints, &self.local[family].nodes))
                };
            }
            // With a subset of the endpoints, others exist, so that only the Nodes tell which are gone.
            Protocol::Tcp if resets == ConnectionResets::Removed && !endpoints.is_subset() => {
                let kept = merged.filter(|merged| !is_on_missing_node(merged, endpoints));
                self.established[family] = Scoped::everywhere(unused_of_cluster(kept, cluster));
                self.gone[family] = Scoped::everywhere(iter::once(Endpoint::any_other(family)).collect());
            }
            Protocol::Tcp if resets >= ConnectionResets::NodeGone => {
                let gone = merged.filter(|merged| is_on_missing_node(merged, endpoints));
                self.gone[family] = Scoped::everywhere(gone.map(|merged| merged.to_endpoint(false)).collect());
            }
            Protocol::Tcp | Protocol::Sctp => {}
        }
    }

    /// Whether any node may send new connections to an endpoint with this address. The pools of policy Local, which all
    /// nodes have, count only where that policy applies.
    pub(crate) fn may_use(&self, address: IpAddr) -> bool {
        let family = IpFamily::of(&address);
        let Scoped { default, zones, nodes } = &self.cluster[family];
        let mut cluster = iter::once(default).chain(zones.values()).chain(nodes.values());
        if cluster.any(|pool| pool.has_address(address)) {
            return true;
        }

        let ServicePort { internal_policy, external_policy, .. } = self.port;
        let is_local = internal_policy == TrafficPolicy::Local
            || (external_policy == TrafficPolicy::Local && self.port.externally_accessible());
        is_local && self.local[family].nodes.values().any(|pool| pool.has_address(address))
    }

    /// All pools, by class and family.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolClass, IpFamily, &Scoped<Pool>)> {
        let Self { port: _, cluster, local, established, gone } = self;
        let classes = [
            (PoolClass::Cluster, cluster),
            (PoolClass::Established, established),
            (PoolClass::Gone, gone),
            (PoolClass::Local, local),
        ];
        classes.into_iter().flat_map(|(class, pools)| pools.iter().map(move |(family, pools)| (class, family, pools)))
    }

    /// The nodes with pools of their own, some more than once.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pools().flat_map(|(.., pools)| pools.nodes.keys())
    }

    /// Whether a node has pools of its own.
    pub(crate) fn has_own_pools(&self, node: &str) -> bool {
        self.pools().any(|(.., pools)| pools.nodes.contains_key(node))
    }

    pub(crate) fn cluster_pool(&self, family: IpFamily, node: &str, zone: &str) -> &Pool {
        self.cluster[family].resolve(node, zone)
    }

    /// The local pool of a node, unless it is empty.
    pub(crate) fn local_pool(&self, family: IpFamily, node: &str) -> Option<&Pool> {
        self.local[family].nodes.get(node)
    }

    /// Whether any endpoint can serve, on any node.
    pub(crate) fn has_endpoints(&self) -> bool {
        self.port.any_endpoints.iter().any(|(_, any)| *any)
    }

    /// The number of endpoints, for metrics only.
    pub(crate) fn endpoints(&self) -> usize {
        let count = |family| {
            let everywhere = self.cluster[family].default.len();
            let by_node = self.local[family].nodes.values().map(|pool| pool.len()).sum();
            everywhere.max(by_node)
        };
        IpFamily::ALL.into_iter().map(count).sum()
    }
}

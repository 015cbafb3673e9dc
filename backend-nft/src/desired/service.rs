//! The elements of one service port in the maps of one family: a sum over its VIPs, endpoints and source ranges.
//!
//! ```text
//!   cluster IP    internal policy          ─▶ vips ─▶ pool or local pool
//!   external VIP  external policy Cluster  ─▶ vips ─▶ cluster pool, masqueraded
//!   node port     external policy Local    ─▶ policy-local-vips ─┬▶ cluster-vips ─▶ cluster pool   (pods, the node)
//!                                                                └▶ local-vips   ─▶ local pool     (elsewhere)
//!   empty pool: the verdict drop, or reject if the service port has no endpoints in the whole cluster
//!   session affinity: the same pools through other chains, and their endpoints in additional maps
//! ```
//!
//! The endpoints of a pool are stored once, under the key of the pool: one of the VIPs. The other VIPs are aliases.

use std::{net::IpAddr, num::NonZeroU32};

use backend::{
    ServicePortState,
    dataplane::{Masquerade, Vip, VipKind, vips},
};
use proto::model::{Endpoint, IpFamily, Protocol, ServicePort, TrafficPolicy};

use super::{SourceGroup, affinity, pool::endpoints, sources};
use crate::{
    element::{Affinity, Element, ElementData, Map, PoolChain, PoolChainKind, Verdict},
    slots,
};

/// Which pool the packets to a VIP go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispatch {
    /// One pool, for all source classes.
    Pool(PoolChainKind),
    /// External traffic policy Local: one of two pools, by source class.
    PolicyLocal,
}

/// The maps for VIPs of a shape under external traffic policy Local, with the chains that their verdicts lead to.
#[derive(Clone, Copy, Debug)]
struct PolicyLocalMaps {
    policy_local: Map,
    /// For pods and the node.
    cluster: (Map, PoolChainKind),
    /// For all other clients.
    local: (Map, PoolChainKind),
}

/// The desired state of a service port in the maps of one family, from which its elements are derived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    protocol: Protocol,
    /// The VIPs that belong to this service port, sorted.
    vips: Box<[(Vip, Dispatch)]>,
    /// The key of its pools; `None`: it has no VIPs.
    pool_key: Option<Vip>,
    /// The cluster IP, unless this VIP belongs to another service port.
    cluster_ip: Option<IpAddr>,
    /// The VIPs with source ranges, sorted.
    restricted: Box<[Vip]>,
    sources: Option<SourceGroup>,
    /// The cluster pool, by slot.
    cluster: Box<[Endpoint]>,
    /// The local pool, by slot.
    local: Box<[Endpoint]>,
    empty_pool: Verdict,
    affinity: Option<Affinity>,
}

/// The endpoint of each slot, with gaps where it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) cluster: Vec<Option<Endpoint>>,
    pub(crate) local: Vec<Option<Endpoint>>,
}

/// The desired state of a service port, with endpoints in the order of the pool; `None`: the maps have nothing of it.
/// `owned`: whether a VIP belongs to this service port; `node`: the addresses of the node; `buckets`: the client
/// buckets of each service port with session affinity of the namespace.
pub(crate) fn desired(
    service: &ServicePortState,
    family: IpFamily,
    masquerade: Masquerade,
    owned: impl Fn(&Vip) -> bool,
    node: &[IpAddr],
    buckets: NonZeroU32,
) -> Option<Desired> {
    #[cfg(test)]
    work::count(|work| work.service_ports += 1);
    let port = &service.port;
    let vips: Vec<_> = vips(port, family).into_iter().filter(|(vip, _)| owned(vip)).collect();
    // The local endpoints need hairpin masquerading even if all VIPs belong to other service ports.
    if vips.is_empty() && service.local[family].is_empty() {
        return None;
    }

    let mut sources = sources::allowed(port, family, node);
    let is_restricted = |vip: &Vip| match vip {
        Vip::AddressPort { address, .. } => sources.is_some() && port.load_balancer_ips.contains(address),
        Vip::NodePort { .. } | Vip::Address(_) => false,
    };
    let restricted: Box<[Vip]> = vips.iter().map(|(vip, _)| *vip).filter(is_restricted).collect();
    if restricted.is_empty() {
        sources = None;
    }

    // A cluster IP is the VIP that most packets have, and that changes least.
    let cluster_ip = vips.iter().find(|(_, kind)| *kind == VipKind::ClusterIp);
    let canonical = cluster_ip.or(vips.first());
    let any_endpoints = port.any_endpoints[family];
    let has_endpoints = any_endpoints || !service.cluster[family].is_empty() || !service.local[family].is_empty();
    Some(Desired {
        protocol: port.key.protocol,
        pool_key: canonical.map(|(vip, _)| pool_key(vip, family)),
        sources,
        restricted,
        cluster_ip: if cluster_ip.is_some() { port.cluster_ips[family] } else { None },
        vips: vips
            .into_iter()
            // Without endpoints anywhere, one verdict serves all source classes.
            .map(|(vip, kind)| (vip, if has_endpoints { dispatch(kind, port, masquerade) } else { ONE_POOL }))
            .collect(),
        cluster: slots::assign(&[], &service.cluster[family]).into(),
        local: slots::assign(&[], &service.local[family]).into(),
        empty_pool: if any_endpoints { Verdict::Drop } else { Verdict::Reject },
        affinity: port.affinity_seconds.map(|timeout| Affinity { timeout, buckets }),
    })
}

/// The key of the pools of a service port whose canonical VIP this is. No VIP has the unspecified address, so it stands
/// for a node port.
pub(crate) fn pool_key(vip: &Vip, family: IpFamily) -> Vip {
    match *vip {
        Vip::NodePort { port, protocol } => Vip::AddressPort { address: family.unspecified(), port, protocol },
        vip => vip,
    }
}

/// The VIP of a key of a pool.
pub(crate) fn vip_of_key(key: &Vip) -> Vip {
    match *key {
        Vip::AddressPort { address, port, protocol } if address.is_unspecified() => Vip::NodePort { port, protocol },
        vip => vip,
    }
}

const ONE_POOL: Dispatch = Dispatch::Pool(PoolChainKind::Pool);

const EXTERNAL_VIP_MAPS: PolicyLocalMaps = PolicyLocalMaps {
    policy_local: Map::PolicyLocalVips,
    cluster: (Map::ClusterVips, PoolChainKind::AliasPool),
    local: (Map::LocalVips, PoolChainKind::AliasLocalPool),
};

const NODE_PORT_MAPS: PolicyLocalMaps = PolicyLocalMaps {
    policy_local: Map::PolicyLocalNodePorts,
    cluster: (Map::ClusterNodePorts, PoolChainKind::NodePortPool),
    local: (Map::LocalNodePorts, PoolChainKind::NodePortLocalPool),
};

fn dispatch(kind: VipKind, port: &ServicePort, masquerade: Masquerade) -> Dispatch {
    let policy = match kind {
        VipKind::ClusterIp => port.internal_policy,
        VipKind::External | VipKind::NodePort => port.external_policy,
    };
    Dispatch::Pool(match (kind, policy, masquerade) {
        (VipKind::ClusterIp, TrafficPolicy::Cluster, Masquerade::Never) => PoolChainKind::Pool,
        (VipKind::ClusterIp, TrafficPolicy::Local, Masquerade::Never) => PoolChainKind::LocalPool,
        (VipKind::ClusterIp, TrafficPolicy::Cluster, _) => PoolChainKind::ClusterIpPool,
        (VipKind::ClusterIp, TrafficPolicy::Local, _) => PoolChainKind::ClusterIpLocalPool,
        (VipKind::External, TrafficPolicy::Cluster, _) => PoolChainKind::MasqAliasPool,
        (VipKind::NodePort, TrafficPolicy::Cluster, _) => PoolChainKind::MasqNodePortPool,
        (_, TrafficPolicy::Local, _) => return Dispatch::PolicyLocal,
    })
}

// === impl Desired ===

impl Desired {
    /// The VIPs of the service port.
    pub(crate) fn vips(&self) -> impl Iterator<Item = &Vip> {
        self.vips.iter().map(|(vip, _)| vip)
    }

    /// Gives endpoints the slots that they have in the kernel. To be called once, while they are in the order of the
    /// pool.
    pub(crate) fn keep_slots(&mut self, applied: &Slots) {
        if !applied.cluster.is_empty() {
            self.cluster = slots::assign(&applied.cluster, &self.cluster).into();
        }
        if !applied.local.is_empty() {
            self.local = slots::assign(&applied.local, &self.local).into();
        }
    }

    pub(crate) fn slots(&self) -> Slots {
        let slots = |slots: &[Endpoint]| slots.iter().copied().map(Some).collect();
        Slots { cluster: slots(&self.cluster), local: slots(&self.local) }
    }

    /// The keys under which its elements may be, sorted: the keys of its pools, and its VIPs.
    pub(crate) fn element_keys(&self, family: IpFamily) -> impl Iterator<Item = Vip> {
        let node_ports = self.vips().filter(|vip| matches!(vip, Vip::NodePort { .. }));
        node_ports.map(move |vip| pool_key(vip, family)).chain(self.vips().copied())
    }

    pub(crate) fn pool_key(&self) -> Option<Vip> {
        self.pool_key
    }

    /// How its clients are stored; `None`: it has no session affinity.
    pub(crate) fn affinity(&self) -> Option<Affinity> {
        self.affinity
    }

    /// The source ranges of its VIPs.
    pub(crate) fn sources(&self) -> Option<&SourceGroup> {
        self.sources.as_ref()
    }

    /// Appends all elements that are not shared, sorted.
    pub(crate) fn elements(&self, to: &mut Vec<Element>) {
        #[cfg(test)]
        work::count(|work| work.elements += self.len());
        if let Some(key) = self.pool_key
            && self.vips().all(|vip| *vip != key)
        {
            self.pool_elements(to, key);
        }
        for (vip, dispatch) in &self.vips {
            if self.pool_key == Some(*vip) {
                self.pool_elements(to, *vip);
            }
            self.vip_elements(to, *vip, *dispatch);
        }
    }

    /// The pools that any VIP uses.
    fn used_pools(&self) -> impl Iterator<Item = TrafficPolicy> {
        let is_used = |policy: &TrafficPolicy| self.vips.iter().any(|(_, dispatch)| dispatch.uses(*policy));
        [TrafficPolicy::Cluster, TrafficPolicy::Local].into_iter().filter(is_used)
    }

    /// The maps from slots to its endpoints, each with the key of the pool and the number of slots.
    pub(crate) fn endpoint_maps(&self) -> Vec<(Map, Vip, u32)> {
        let mut maps = Vec::new();
        let Some(pool_key) = self.pool_key else { return maps };
        for policy in self.used_pools() {
            let count = self.count(policy);
            if count == 0 {
                continue;
            }
            maps.push((endpoints(policy, count), pool_key, count));
            if self.affinity.is_some() {
                maps.push((affinity::endpoints(policy), pool_key, count));
            }
        }
        maps
    }

    /// The number of elements that are not shared.
    pub(crate) fn len(&self) -> usize {
        let elements_per_endpoint = if self.affinity.is_some() { 3 } else { 1 };
        let endpoints: usize = self.used_pools().map(|policy| self.pool(policy).len()).sum();
        let mut leading = Vec::new();
        self.leading_elements(&mut leading);
        endpoints * elements_per_endpoint + leading.len()
    }

    /// Appends the elements that lead to the pools.
    pub(crate) fn leading_elements(&self, to: &mut Vec<Element>) {
        for (vip, dispatch) in &self.vips {
            self.vip_elements(to, *vip, *dispatch);
        }
    }

    /// Appends the elements of the pools that any VIP uses.
    fn pool_elements(&self, to: &mut Vec<Element>, key: Vip) {
        let start = to.len();
        for policy in self.used_pools() {
            let pool = self.pool(policy);
            to.extend(slot_elements(endpoints(policy, self.count(policy)), key, pool));
            if self.affinity.is_some() {
                to.extend(slot_elements(affinity::endpoints(policy), key, pool));
                to.extend(pool.iter().map(|endpoint| {
                    Element::new(
                        affinity::live(policy),
                        key,
                        ElementData::Member(endpoint.address, endpoint.port.get()),
                    )
                }));
            }
        }
        if self.affinity.is_some() {
            // The additional maps of a pool come between the others, and members are sorted by address.
            to[start..].sort_unstable();
        }
    }

    /// Appends the elements of a VIP: its alias, its verdicts, and its group of source ranges.
    fn vip_elements(&self, to: &mut Vec<Element>, vip: Vip, dispatch: Dispatch) {
        let is_node_port = matches!(vip, Vip::NodePort { .. });
        match dispatch {
            Dispatch::Pool(kind) => {
                let map = if is_node_port { Map::NodePorts } else { Map::Vips };
                if self.count(kind.policy()) > 0 {
                    to.extend(self.alias(vip, kind));
                }
                to.push(self.verdict(vip, map, kind));
            }
            Dispatch::PolicyLocal => {
                let maps = if is_node_port { NODE_PORT_MAPS } else { EXTERNAL_VIP_MAPS };
                let PolicyLocalMaps { policy_local, cluster: (cluster, cluster_kind), local: (local, local_kind) } =
                    maps;
                if !self.cluster.is_empty() || !self.local.is_empty() {
                    to.extend(self.alias(vip, cluster_kind));
                }
                to.push(Element::new(policy_local, vip, ElementData::None));
                to.push(self.verdict(vip, cluster, cluster_kind));
                to.push(self.verdict(vip, local, local_kind));
            }
        }
        if let Some(group) = &self.sources
            && self.restricted.binary_search(&vip).is_ok()
        {
            let verdict = ElementData::Verdict(Verdict::Sources(group.id));
            to.push(Element::new(Map::RestrictedVips, vip, verdict));
        }
    }

    /// Appends the elements that other service ports may need too, sorted: for local endpoints and the cluster IP.
    pub(crate) fn shared(&self, to: &mut Vec<Element>) {
        let protocol = self.protocol;
        for endpoint in &self.local {
            let vip = Vip::AddressPort { address: endpoint.address, port: endpoint.port.get(), protocol };
            to.push(Element::new(Map::Hairpin, vip, ElementData::None));
        }
        if let Some(address) = self.cluster_ip {
            to.push(Element::new(Map::ClusterIps, Vip::Address(address), ElementData::None));
        }
        to.sort_unstable();
    }

    /// The element that leads from a VIP to the key of its pool; `None`: the VIP is the key.
    fn alias(&self, vip: Vip, kind: PoolChainKind) -> Option<Element> {
        Some(Element::new(kind.aliases()?, vip, ElementData::PoolKey(self.pool_key?)))
    }

    fn verdict(&self, vip: Vip, map: Map, kind: PoolChainKind) -> Element {
        let verdict = match self.count(kind.policy()) {
            0 => self.empty_pool,
            count => Verdict::Pool(PoolChain { kind, count, affinity: self.affinity }),
        };
        Element::new(map, vip, ElementData::Verdict(verdict))
    }

    fn pool(&self, policy: TrafficPolicy) -> &[Endpoint] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }

    fn count(&self, policy: TrafficPolicy) -> u32 {
        u32::try_from(self.pool(policy).len()).unwrap_or(u32::MAX)
    }
}

/// The elements from the slots of a pool to its endpoints.
fn slot_elements(map: Map, key: Vip, pool: &[Endpoint]) -> impl Iterator<Item = Element> {
    (0..).zip(pool).map(move |(index, endpoint)| {
        let data = ElementData::Endpoint(endpoint.address, endpoint.port.get());
        Element { index, ..Element::new(map, key, data) }
    })
}

// === impl Dispatch ===

impl Dispatch {
    /// Whether packets to the VIP may go to the pool for this policy.
    fn uses(self, policy: TrafficPolicy) -> bool {
        match self {
            Self::Pool(kind) => kind.policy() == policy,
            Self::PolicyLocal => true,
        }
    }
}

/// Counts computations, so that tests can compare them with the size of a change.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    /// The computations of a thread.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Work {
        /// Service ports, in one family each.
        pub(crate) service_ports: usize,
        /// Elements of service ports.
        pub(crate) elements: usize,
    }

    thread_local! {
        static WORK: Cell<Work> = const { Cell::new(Work { service_ports: 0, elements: 0 }) };
    }

    pub(super) fn count(add: impl FnOnce(&mut Work)) {
        let mut work = WORK.get();
        add(&mut work);
        WORK.set(work);
    }

    /// The computations of this thread since the last call.
    pub(crate) fn take() -> Work {
        WORK.take()
    }
}

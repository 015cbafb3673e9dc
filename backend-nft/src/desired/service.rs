//! The elements of one service port in the maps of one family.
//!
//! ```text
//!   cluster IP    internal policy          ─▶ vips ─▶ pool or local pool
//!   external VIP  external policy Cluster  ─▶ vips ─▶ cluster pool, masqueraded
//!   node port     external policy Local    ─▶ policy-local-vips ─┬▶ cluster-vips ─▶ cluster pool   (pods, the node)
//!                                                                └▶ local-vips   ─▶ local pool     (elsewhere)
//!   empty pool: the verdict drop, or reject if the service port has no endpoints in the whole cluster
//!   session affinity: the same pools through other chains, and their endpoints in additional maps
//! ```

use std::{net::IpAddr, num::NonZeroU32};

use backend::{
    ServicePortState,
    dataplane::{Masquerade, Vip, VipKind, vips},
};
use proto::model::{Endpoint, IpFamily, PoolClass, Protocol, ServicePort, TrafficPolicy};

use super::{PoolChain, PoolChainKind, sources};
use crate::{
    element::{AddressRange, Element, ElementData, Map, Verdict},
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

/// What the maps of one family should contain for a service port. Its elements are derived from this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    protocol: Protocol,
    /// The VIPs that belong to this service port, sorted.
    vips: Box<[(Vip, Dispatch)]>,
    /// The cluster IP, unless this VIP belongs to another service port.
    cluster_ip: Option<IpAddr>,
    /// The VIPs with source ranges, and the ranges; sorted.
    restricted: Box<[(Vip, Box<[AddressRange]>)]>,
    /// The cluster pool, by slot.
    cluster: Box<[Endpoint]>,
    /// The local pool, by slot.
    local: Box<[Endpoint]>,
    /// The verdict if the pool is empty.
    empty_pool: Verdict,
    /// The timeout of session affinity in seconds; `None`: no affinity.
    affinity: Option<NonZeroU32>,
}

/// Which endpoint has which slot, with gaps where that is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) cluster: Vec<Option<Endpoint>>,
    pub(crate) local: Vec<Option<Endpoint>>,
}

/// What the maps of one family should contain for a service port, with endpoints in the order of the pool; `None`:
/// nothing. `owned`: whether a VIP belongs to this service port; `node`: the addresses of the node.
pub(crate) fn desired(
    service: &ServicePortState,
    family: IpFamily,
    masquerade: Masquerade,
    owned: impl Fn(&Vip) -> bool,
    node: &[IpAddr],
) -> Option<Desired> {
    let vips: Vec<_> = vips(&service.port, family).into_iter().filter(|(vip, _)| owned(vip)).collect();
    let restricted = vips.iter().filter_map(|(vip, _)| match vip {
        Vip::AddressPort { address, .. } => Some((*vip, sources::allowed(&service.port, *address, node)?)),
        Vip::NodePort { .. } | Vip::Address(_) => None,
    });
    let has_cluster_ip = vips.iter().any(|(_, kind)| *kind == VipKind::ClusterIp);
    let any_endpoints = service.port.any_endpoints[family];
    let no_endpoints = !any_endpoints && service.cluster[family].is_empty() && service.local[family].is_empty();
    let desired = Desired {
        protocol: service.port.key.protocol,
        restricted: restricted.collect(),
        cluster_ip: service.port.cluster_ips[family].filter(|_| has_cluster_ip),
        vips: vips
            .into_iter()
            // Without endpoints anywhere, one verdict serves all source classes.
            .map(|(vip, kind)| (vip, if no_endpoints { ONE_POOL } else { dispatch(kind, &service.port, masquerade) }))
            .collect(),
        cluster: slots::assign(&[], &service.cluster[family]).into(),
        local: slots::assign(&[], &service.local[family]).into(),
        empty_pool: if any_endpoints { Verdict::Drop } else { Verdict::Reject },
        affinity: service.port.affinity_seconds,
    };
    (!desired.vips.is_empty() || !desired.local.is_empty()).then_some(desired)
}

const ONE_POOL: Dispatch = Dispatch::Pool(PoolChainKind::Pool);

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
        (VipKind::External, TrafficPolicy::Cluster, _) => PoolChainKind::MasqPool,
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
        for (endpoints, slots) in [(&mut self.cluster, &applied.cluster), (&mut self.local, &applied.local)] {
            if !slots.is_empty() {
                *endpoints = slots::assign(slots, endpoints).into();
            }
        }
    }

    /// The slots of the endpoints.
    pub(crate) fn slots(&self) -> Slots {
        let slots = |slots: &[Endpoint]| slots.iter().copied().map(Some).collect();
        Slots { cluster: slots(&self.cluster), local: slots(&self.local) }
    }

    /// Appends all elements that are not shared, sorted.
    pub(crate) fn elements(&self, to: &mut Vec<Element>) {
        for (vip, dispatch) in &self.vips {
            let start = to.len();
            let is_node_port = matches!(vip, Vip::NodePort { .. });
            match dispatch {
                Dispatch::Pool(kind) => {
                    self.endpoint_elements(to, *vip, *kind);
                    to.push(self.verdict(*vip, if is_node_port { Map::NodePorts } else { Map::Vips }, *kind));
                }
                Dispatch::PolicyLocal => {
                    let (policy_local, cluster, local) = if is_node_port {
                        let local = (Map::LocalNodePorts, PoolChainKind::NodePortLocalPool);
                        (Map::PolicyLocalNodePorts, (Map::ClusterNodePorts, PoolChainKind::NodePortPool), local)
                    } else {
                        let local = (Map::LocalVips, PoolChainKind::LocalPool);
                        (Map::PolicyLocalVips, (Map::ClusterVips, PoolChainKind::Pool), local)
                    };
                    self.endpoint_elements(to, *vip, cluster.1);
                    self.endpoint_elements(to, *vip, local.1);
                    to.push(Element::new(policy_local, *vip, ElementData::None));
                    to.extend([cluster, local].map(|(map, kind)| self.verdict(*vip, map, kind)));
                }
            }
            self.source_ranges(to, *vip);
            if self.affinity.is_some() {
                // The additional maps of a pool come between the others, and members are sorted by address.
                to[start..].sort_unstable();
            }
        }
    }

    fn source_ranges(&self, to: &mut Vec<Element>, vip: Vip) {
        let Ok(at) = self.restricted.binary_search_by_key(&vip, |(vip, _)| *vip) else { return };
        to.push(Element::new(Map::Restricted, vip, ElementData::None));
        let ranges = self.restricted[at].1.iter();
        to.extend(ranges.map(|range| Element::new(Map::SourceRanges, vip, ElementData::Range(*range))));
    }

    /// Appends the elements that other service ports may need too, sorted: for local endpoints and the cluster IP.
    pub(crate) fn shared(&self, to: &mut Vec<Element>) {
        let protocol = self.protocol;
        to.extend(self.local.iter().map(|endpoint| {
            let vip = Vip::AddressPort { address: endpoint.address, port: endpoint.port.get(), protocol };
            Element::new(Map::Hairpin, vip, ElementData::None)
        }));
        let cluster_ip = self.cluster_ip.map(Vip::Address);
        to.extend(cluster_ip.map(|vip| Element::new(Map::ClusterIps, vip, ElementData::None)));
        to.sort_unstable();
    }

    fn endpoint_elements(&self, to: &mut Vec<Element>, vip: Vip, kind: PoolChainKind) {
        let endpoints = || self.pool(kind).iter().map(|endpoint| (endpoint.address, endpoint.port.get()));
        let of_map = |map| {
            (0..).zip(endpoints()).map(move |(index, (address, port))| Element {
                index,
                ..Element::new(map, vip, ElementData::Endpoint(address, port))
            })
        };
        to.extend(of_map(kind.endpoints(self.count(kind))));
        if self.affinity.is_some() {
            let maps = kind.affinity();
            to.extend(of_map(maps.endpoints));
            to.extend(
                endpoints().map(|(address, port)| Element::new(maps.live, vip, ElementData::Member(address, port))),
            );
        }
    }

    fn verdict(&self, vip: Vip, map: Map, kind: PoolChainKind) -> Element {
        let verdict = match self.count(kind) {
            0 => self.empty_pool,
            count => Verdict::Pool(PoolChain { kind, count, affinity: self.affinity }),
        };
        Element::new(map, vip, ElementData::Verdict(verdict))
    }

    fn pool(&self, kind: PoolChainKind) -> &[Endpoint] {
        match kind.class() {
            PoolClass::Cluster => &self.cluster,
            PoolClass::Local => &self.local,
        }
    }

    fn count(&self, kind: PoolChainKind) -> u32 {
        u32::try_from(self.pool(kind).len()).unwrap_or(u32::MAX)
    }
}

//! What one service port puts into the maps of one family.
//!
//! ```text
//!   cluster IP    internal policy          ─▶ vips ─▶ pool or local pool
//!   external VIP  external policy Cluster  ─▶ vips ─▶ cluster pool, masqueraded
//!   node port     external policy Local    ─▶ policy-local-vips ─┬▶ cluster-vips ─▶ cluster pool   (pods, the node itself)
//!                                                                └▶ local-vips   ─▶ local pool     (everybody else)
//!   an empty pool is a verdict: drop, or reject when nothing in the cluster could serve
//!   session affinity: the same pools by other chains, and their endpoints in more maps
//! ```

use std::{net::IpAddr, num::NonZeroU32};

use backend::{
    ServicePortState,
    dataplane::{Masquerade, Vip, VipKind, vips},
};
use proto::model::{Endpoint, IpFamily, PoolClass, Protocol, ServicePort, TrafficPolicy};

use super::{PoolChain, PoolKind, sources};
use crate::{
    element::{Data, Element, Map, Range, Verdict, VipShape},
    slots,
};

/// What a packet to a VIP is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispatch {
    /// One pool, wherever it comes from.
    Pool(PoolKind),
    /// External traffic policy Local: one of two pools.
    PolicyLocal,
}

/// What one service port puts into the maps of one family: all elements follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    protocol: Protocol,
    /// Sorted; those that belong to this service port.
    vips: Box<[(Vip, Dispatch)]>,
    /// Its cluster IP, unless the port there belongs to another service port.
    cluster_ip: Option<IpAddr>,
    /// Those that not everybody may use, and who may; sorted.
    restricted: Box<[(Vip, Box<[Range]>)]>,
    /// The cluster pool, by slot.
    cluster: Box<[Endpoint]>,
    /// The local pool, by slot.
    local: Box<[Endpoint]>,
    /// The verdict instead of an empty pool.
    empty: Verdict,
    /// Seconds, with session affinity.
    affinity: Option<NonZeroU32>,
}

/// Which endpoint has which slot, with gaps where that is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) cluster: Vec<Option<Endpoint>>,
    pub(crate) local: Vec<Option<Endpoint>>,
}

/// What a service port puts into the maps of one family, with its endpoints in the order of the pool. `owned`: whether
/// a VIP belongs to this service port; `node`: the node's own addresses. `None`: nothing.
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
    let has_cluster_ip = vips.iter().any(|(_, class)| *class == VipKind::ClusterIp);
    let some = service.port.any_endpoints[family];
    let nothing = !some && service.cluster[family].is_empty() && service.local[family].is_empty();
    let desired = Desired {
        protocol: service.port.key.protocol,
        restricted: restricted.collect(),
        cluster_ip: service.port.cluster_ips[family].filter(|_| has_cluster_ip),
        vips: vips
            .into_iter()
            // Without endpoints anywhere, one verdict serves all source classes.
            .map(|(vip, class)| (vip, if nothing { ONE_POOL } else { dispatch(class, &service.port, masquerade) }))
            .collect(),
        cluster: slots::assign(&[], &service.cluster[family]).into(),
        local: slots::assign(&[], &service.local[family]).into(),
        empty: if some { Verdict::Drop } else { Verdict::Reject },
        affinity: service.port.affinity_seconds,
    };
    (!desired.vips.is_empty() || !desired.local.is_empty()).then_some(desired)
}

const ONE_POOL: Dispatch = Dispatch::Pool(PoolKind::Pool);

fn dispatch(class: VipKind, port: &ServicePort, masquerade: Masquerade) -> Dispatch {
    let policy = match class {
        VipKind::ClusterIp => port.internal_policy,
        VipKind::External | VipKind::NodePort => port.external_policy,
    };
    Dispatch::Pool(match (class, policy, masquerade) {
        (VipKind::ClusterIp, TrafficPolicy::Cluster, Masquerade::Never) => PoolKind::Pool,
        (VipKind::ClusterIp, TrafficPolicy::Local, Masquerade::Never) => PoolKind::LocalPool,
        (VipKind::ClusterIp, TrafficPolicy::Cluster, _) => PoolKind::ClusterIpPool,
        (VipKind::ClusterIp, TrafficPolicy::Local, _) => PoolKind::ClusterIpLocalPool,
        (VipKind::External, TrafficPolicy::Cluster, _) => PoolKind::MasqPool,
        (VipKind::NodePort, TrafficPolicy::Cluster, _) => PoolKind::MasqNodePortPool,
        (_, TrafficPolicy::Local, _) => return Dispatch::PolicyLocal,
    })
}

// === impl Desired ===

impl Desired {
    /// The VIPs of the service port.
    pub(crate) fn vips(&self) -> impl Iterator<Item = &Vip> {
        self.vips.iter().map(|(vip, _)| vip)
    }

    /// Leaves endpoints in the slots that they have in the kernel. To be called once, while they are in the order of
    /// the pool.
    pub(crate) fn keep_slots(&mut self, applied: &Slots) {
        for (endpoints, slots) in [(&mut self.cluster, &applied.cluster), (&mut self.local, &applied.local)] {
            if !slots.is_empty() {
                *endpoints = slots::assign(slots, endpoints).into();
            }
        }
    }

    /// The slots of its endpoints.
    pub(crate) fn slots(&self) -> Slots {
        let known = |slots: &[Endpoint]| slots.iter().copied().map(Some).collect();
        Slots { cluster: known(&self.cluster), local: known(&self.local) }
    }

    /// Appends all its elements but those that are shared, sorted.
    pub(crate) fn elements(&self, to: &mut Vec<Element>) {
        for (vip, dispatch) in &self.vips {
            let start = to.len();
            match (dispatch, VipShape::of(vip)) {
                (Dispatch::Pool(kind), vip_shape) => {
                    self.places(to, *vip, *kind);
                    let map = match vip_shape {
                        VipShape::NodePort => Map::NodePorts,
                        VipShape::Vip | VipShape::Address => Map::Vips,
                    };
                    to.push(self.verdict(*vip, map, *kind));
                }
                (Dispatch::PolicyLocal, VipShape::Vip | VipShape::Address) => {
                    self.places(to, *vip, PoolKind::Pool);
                    self.places(to, *vip, PoolKind::LocalPool);
                    to.push(Element { vip: *vip, map: Map::PolicyLocalVips, index: 0, data: Data::None });
                    to.push(self.verdict(*vip, Map::ClusterVips, PoolKind::Pool));
                    to.push(self.verdict(*vip, Map::LocalVips, PoolKind::LocalPool));
                }
                (Dispatch::PolicyLocal, VipShape::NodePort) => {
                    self.places(to, *vip, PoolKind::NodePortPool);
                    self.places(to, *vip, PoolKind::NodePortLocalPool);
                    to.push(Element { vip: *vip, map: Map::PolicyLocalNodePorts, index: 0, data: Data::None });
                    to.push(self.verdict(*vip, Map::ClusterNodePorts, PoolKind::NodePortPool));
                    to.push(self.verdict(*vip, Map::LocalNodePorts, PoolKind::NodePortLocalPool));
                }
            }
            self.sources(to, *vip);
            if self.affinity.is_some() {
                // More maps for each pool, and in one of them endpoints are in their own order.
                to[start..].sort_unstable();
            }
        }
    }

    fn sources(&self, to: &mut Vec<Element>, vip: Vip) {
        let Ok(at) = self.restricted.binary_search_by_key(&vip, |(vip, _)| *vip) else { return };
        to.push(Element { vip, map: Map::Restricted, index: 0, data: Data::None });
        let ranges = self.restricted[at].1.iter();
        to.extend(ranges.map(|range| Element { vip, map: Map::SourceRanges, index: 0, data: Data::Range(*range) }));
    }

    /// Appends those that other service ports may need as well, sorted: of its endpoints on this node, and of its
    /// cluster IP.
    pub(crate) fn shared(&self, to: &mut Vec<Element>) {
        to.extend(self.local.iter().map(|endpoint| Element {
            vip: Vip::AddressPort { address: endpoint.address, port: endpoint.port.get(), protocol: self.protocol },
            map: Map::Hairpin,
            index: 0,
            data: Data::None,
        }));
        to.extend(self.cluster_ip.map(|address| Element {
            vip: Vip::Address(address),
            map: Map::ClusterIps,
            index: 0,
            data: Data::None,
        }));
        to.sort_unstable();
    }

    fn places(&self, to: &mut Vec<Element>, vip: Vip, kind: PoolKind) {
        let places = |map| {
            (0..).zip(self.pool(kind)).map(move |(index, endpoint)| {
                let data = Data::Endpoint(endpoint.address, endpoint.port.get());
                Element { vip, map, index, data }
            })
        };
        to.extend(places(kind.endpoints(self.count(kind))));
        if self.affinity.is_some() {
            let maps = kind.affinity();
            to.extend(places(maps.endpoints));
            to.extend(self.pool(kind).iter().map(|endpoint| {
                let data = Data::Member(endpoint.address, endpoint.port.get());
                Element { vip, map: maps.live, index: 0, data }
            }));
        }
    }

    fn verdict(&self, vip: Vip, map: Map, kind: PoolKind) -> Element {
        let verdict = match self.count(kind) {
            0 => self.empty,
            count => Verdict::Pool(PoolChain { kind, count, affinity: self.affinity }),
        };
        Element { vip, map, index: 0, data: Data::Verdict(verdict) }
    }

    fn pool(&self, kind: PoolKind) -> &[Endpoint] {
        match kind.class() {
            PoolClass::Cluster => &self.cluster,
            PoolClass::Local => &self.local,
        }
    }

    fn count(&self, kind: PoolKind) -> u32 {
        u32::try_from(self.pool(kind).len()).unwrap_or(u32::MAX)
    }
}

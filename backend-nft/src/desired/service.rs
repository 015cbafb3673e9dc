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
    element::{Data, Element, FrontKind, Map, Range, Verdict},
    order,
};

/// What a packet to a front is given to.
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
    fronts: Box<[(Vip, Dispatch)]>,
    /// Its cluster IP, unless the port there belongs to another service port.
    cluster_ip: Option<IpAddr>,
    /// Those that not everybody may use, and who may; sorted.
    restricted: Box<[(Vip, Box<[Range]>)]>,
    /// The cluster pool in the order of places.
    cluster: Box<[Endpoint]>,
    /// The local pool in the order of places.
    local: Box<[Endpoint]>,
    /// The verdict instead of an empty pool.
    empty: Verdict,
    /// Seconds, with session affinity.
    affinity: Option<NonZeroU32>,
}

/// Who has which place now, with holes where that is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) cluster: Vec<Option<Endpoint>>,
    pub(crate) local: Vec<Option<Endpoint>>,
}

/// What a service port puts into the maps of one family. `owned`: whether a front is this service port's; `orders`: the places
/// that its endpoints have had; `node`: the node's own addresses. `None` when that is nothing.
pub(crate) fn desired(
    service: &ServicePortState,
    family: IpFamily,
    masquerade: Masquerade,
    owned: impl Fn(&Vip) -> bool,
    orders: &Orders,
    node: &[IpAddr],
) -> Option<Desired> {
    let fronts: Vec<_> = vips(&service.port, family).into_iter().filter(|(front, _)| owned(front)).collect();
    let restricted = fronts.iter().filter_map(|(front, _)| match front {
        Vip::AddressPort { address, .. } => Some((*front, sources::allowed(&service.port, *address, node)?)),
        Vip::NodePort { .. } | Vip::Address(_) => None,
    });
    let has_cluster_ip = fronts.iter().any(|(_, class)| *class == VipKind::ClusterIp);
    let some = service.port.any_endpoints[family];
    let nothing = !some && service.cluster[family].is_empty() && service.local[family].is_empty();
    let desired = Desired {
        protocol: service.port.key.protocol,
        restricted: restricted.collect(),
        cluster_ip: service.port.cluster_ips[family].filter(|_| has_cluster_ip),
        fronts: fronts
            .into_iter()
            // With nothing anywhere, one rejection for everybody does.
            .map(|(front, class)| (front, if nothing { EVERYBODY } else { dispatch(class, &service.port, masquerade) }))
            .collect(),
        cluster: order::assign(&orders.cluster, &service.cluster[family]).into(),
        local: order::assign(&orders.local, &service.local[family]).into(),
        empty: if some { Verdict::Drop } else { Verdict::Reject },
        affinity: service.port.affinity_seconds,
    };
    (!desired.fronts.is_empty() || !desired.local.is_empty()).then_some(desired)
}

const EVERYBODY: Dispatch = Dispatch::Pool(PoolKind::Pool);

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
    /// What leads to the service port.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &Vip> {
        self.fronts.iter().map(|(front, _)| front)
    }

    /// The places as they are to be.
    pub(crate) fn orders(&self) -> Orders {
        let known = |places: &[Endpoint]| places.iter().copied().map(Some).collect();
        Orders { cluster: known(&self.cluster), local: known(&self.local) }
    }

    /// Appends all its elements but those that are shared, sorted.
    pub(crate) fn elements(&self, to: &mut Vec<Element>) {
        for (front, dispatch) in &self.fronts {
            let start = to.len();
            match (dispatch, FrontKind::of(front)) {
                (Dispatch::Pool(kind), front_kind) => {
                    self.places(to, *front, *kind);
                    let map = match front_kind {
                        FrontKind::NodePort => Map::NodePorts,
                        FrontKind::Vip | FrontKind::Address => Map::Vips,
                    };
                    to.push(self.verdict(*front, map, *kind));
                }
                (Dispatch::PolicyLocal, FrontKind::Vip | FrontKind::Address) => {
                    self.places(to, *front, PoolKind::Pool);
                    self.places(to, *front, PoolKind::LocalPool);
                    to.push(Element { front: *front, map: Map::PolicyLocalVips, index: 0, data: Data::None });
                    to.push(self.verdict(*front, Map::ClusterVips, PoolKind::Pool));
                    to.push(self.verdict(*front, Map::LocalVips, PoolKind::LocalPool));
                }
                (Dispatch::PolicyLocal, FrontKind::NodePort) => {
                    self.places(to, *front, PoolKind::NodePortPool);
                    self.places(to, *front, PoolKind::NodePortLocalPool);
                    to.push(Element { front: *front, map: Map::PolicyLocalNodePorts, index: 0, data: Data::None });
                    to.push(self.verdict(*front, Map::ClusterNodePorts, PoolKind::NodePortPool));
                    to.push(self.verdict(*front, Map::LocalNodePorts, PoolKind::NodePortLocalPool));
                }
            }
            self.sources(to, *front);
            if self.affinity.is_some() {
                // More maps for each pool, and in one of them endpoints are in their own order.
                to[start..].sort_unstable();
            }
        }
    }

    fn sources(&self, to: &mut Vec<Element>, front: Vip) {
        let Ok(at) = self.restricted.binary_search_by_key(&front, |(front, _)| *front) else { return };
        to.push(Element { front, map: Map::Restricted, index: 0, data: Data::None });
        let ranges = self.restricted[at].1.iter();
        to.extend(ranges.map(|range| Element { front, map: Map::SourceRanges, index: 0, data: Data::Range(*range) }));
    }

    /// Appends those that other service ports may need as well, sorted: of its endpoints on this node, and of its cluster IP.
    pub(crate) fn shared(&self, to: &mut Vec<Element>) {
        to.extend(self.local.iter().map(|endpoint| Element {
            front: Vip::AddressPort { address: endpoint.address, port: endpoint.port.get(), protocol: self.protocol },
            map: Map::Hairpin,
            index: 0,
            data: Data::None,
        }));
        to.extend(self.cluster_ip.map(|address| Element {
            front: Vip::Address(address),
            map: Map::ClusterIps,
            index: 0,
            data: Data::None,
        }));
        to.sort_unstable();
    }

    fn places(&self, to: &mut Vec<Element>, front: Vip, kind: PoolKind) {
        let places = |map| {
            (0..).zip(self.pool(kind)).map(move |(index, endpoint)| {
                let data = Data::Endpoint(endpoint.address, endpoint.port.get());
                Element { front, map, index, data }
            })
        };
        to.extend(places(kind.endpoints(self.count(kind))));
        if self.affinity.is_some() {
            let maps = kind.affinity();
            to.extend(places(maps.endpoints));
            to.extend(self.pool(kind).iter().map(|endpoint| {
                let data = Data::Member(endpoint.address, endpoint.port.get());
                Element { front, map: maps.live, index: 0, data }
            }));
        }
    }

    fn verdict(&self, front: Vip, map: Map, kind: PoolKind) -> Element {
        let verdict = match self.count(kind) {
            0 => self.empty,
            count => Verdict::Pool(PoolChain { kind, count, affinity: self.affinity }),
        };
        Element { front, map, index: 0, data: Data::Verdict(verdict) }
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

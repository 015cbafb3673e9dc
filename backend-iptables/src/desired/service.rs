//! What one service port adds in one family: chains of its own, and lines in the chains that lead there.
//!
//! ```text
//!   nat     cluster IP ─▶ SVC or SVL       external VIP, node port ─▶ EXT (load-balancer IP with source ranges: FW ─▶ EXT)
//!   filter  what no endpoint was found for: refused, or dropped while somebody else could serve
//! ```

use std::{collections::BTreeMap, net::IpAddr};

use backend::{
    ServicePortState,
    dataplane::{EffectiveOptions, Masquerade, PodMatch, Vip, VipKind, allowed_sources, vips},
};
use ipnet::IpNet;
use iptables::{ChainSpec, Table};
use proto::model::{Endpoint, IpFamily, Protocol, TrafficPolicy};

use super::{chains::Filled, rule::Line};
use crate::{
    names::{self, Kind, Names},
    table::Dispatch,
};

/// What one service port adds in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// Those that belong to this service port.
    pub(crate) vips: Vec<Vip>,
    pub(crate) chains: Vec<ChainSpec>,
    pub(crate) lines: Vec<(Dispatch, String)>,
}

/// What holds for all service ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) effective: &'a EffectiveOptions,
    /// The node's own addresses.
    pub(crate) node: &'a [IpAddr],
}

/// A service port in a family.
pub(super) struct Port<'a> {
    pub(super) service: &'a ServicePortState,
    pub(super) family: IpFamily,
    pub(super) context: Context<'a>,
    pub(super) names: Names,
}

/// What a service port adds. `owned`: whether a front is this service port's. `None` when that is nothing.
pub(crate) fn desired(
    service: &ServicePortState,
    family: IpFamily,
    context: Context<'_>,
    owned: impl Fn(&Vip) -> bool,
) -> Option<Desired> {
    let fronts: Vec<_> = vips(&service.port, family).into_iter().filter(|(front, _)| owned(front)).collect();
    if fronts.is_empty() {
        return None;
    }
    let port = Port { service, family, context, names: Names::new(&service.port.key) };
    let lines = port.lines(&fronts);
    let chains = port.chains(&fronts);
    Some(Desired { vips: fronts.into_iter().map(|(front, _)| front).collect(), chains, lines })
}

// === impl Context ===

impl Context<'_> {
    pub(super) fn masquerade(&self, family: IpFamily) -> Masquerade {
        self.effective.masquerade[family]
    }

    pub(super) fn pods(&self, family: IpFamily) -> &PodMatch {
        &self.effective.pods[family]
    }
}

// === impl Port ===

impl Port<'_> {
    fn chains(&self, fronts: &[(Vip, VipKind)]) -> Vec<ChainSpec> {
        let (cluster, local) = (&self.service.cluster[self.family], &self.service.local[self.family]);
        let filled = self.filled();
        let policy = self.service.port.internal_policy;
        let cluster_ip = fronts.iter().find_map(|(front, class)| match (front, class) {
            (Vip::AddressPort { address, .. }, VipKind::ClusterIp) => Some(*address),
            _ => None,
        });
        let external = self.has_external() && fronts.iter().any(|(_, class)| *class != VipKind::ClusterIp);
        let external_policy = self.service.port.external_policy;
        let mut chains = Vec::new();
        let mut endpoints = BTreeMap::<String, &Endpoint>::new();
        let add = |chains: &mut Vec<ChainSpec>, table, name, rules| chains.push(ChainSpec { table, name, rules });
        let pools = [(TrafficPolicy::Cluster, Kind::Svc, cluster), (TrafficPolicy::Local, Kind::Svl, local)];
        for (pool, kind, members) in pools {
            let internal = cluster_ip.filter(|_| policy == pool);
            // Under external policy Local both are needed.
            let externally = external && (kind == Kind::Svc || external_policy == TrafficPolicy::Local);
            if !members.is_empty() && (internal.is_some() || externally) {
                add(&mut chains, Table::Nat, self.names.chain(kind), self.pool(internal, members));
                endpoints.extend(members.iter().map(|member| (self.endpoint_chain(member), member)));
            }
        }
        for (name, endpoint) in endpoints {
            add(&mut chains, Table::Nat, name, self.endpoint(endpoint));
        }
        if external {
            add(&mut chains, Table::Nat, self.names.chain(Kind::Ext), self.external(filled));
        }
        let restricted = self.restricted(fronts);
        if !restricted.is_empty() {
            let fw = self.names.chain(Kind::Fw);
            if external {
                add(&mut chains, Table::Nat, fw, self.firewall(&restricted));
            } else if self.refuses() {
                add(&mut chains, Table::Filter, fw, self.silence(&restricted));
            }
        }
        chains
    }

    fn lines(&self, fronts: &[(Vip, VipKind)]) -> Vec<(Dispatch, String)> {
        let port = &self.service.port;
        let filled = self.filled();
        let mut lines = Vec::new();
        for (front, class) in fronts {
            match (*front, class) {
                (Vip::AddressPort { address, .. }, VipKind::ClusterIp) => {
                    let (kind, served) = match port.internal_policy {
                        TrafficPolicy::Cluster => (Kind::Svc, filled.cluster),
                        TrafficPolicy::Local => (Kind::Svl, filled.local),
                    };
                    lines.push(if served {
                        let line = self.front(address, "cluster IP");
                        (Dispatch::Services, line.jump(&self.names.chain(kind)))
                    } else {
                        let line = self.front(address, self.excuse());
                        (Dispatch::UnservedServices, self.unserved(line))
                    });
                    let of = format!("{}/{} has no such port", port.key.namespace, port.key.name);
                    let line = Line::new().to(address).comment(&of).jump(names::REJECT);
                    lines.push((Dispatch::ClusterIps, line));
                }
                (Vip::AddressPort { address, .. }, _) => self.external_lines(address, &mut lines),
                (Vip::NodePort { port, .. }, _) => {
                    let line = |comment: &str| {
                        let comment = format!("{}{comment}", self.names.service);
                        Line::new().comment(&comment).port(self.protocol(), port)
                    };
                    if self.has_external() {
                        let line = line("").jump(&self.names.chain(Kind::Ext));
                        lines.push((Dispatch::NodePorts, line));
                    }
                    if !self.is_served_to_all() {
                        let line = line(&format!(" {}", self.excuse()));
                        lines.push((Dispatch::UnservedNodePorts, self.unserved(line)));
                    }
                }
                (Vip::Address(_), _) => {}
            }
        }
        // A cluster IP is what a family of a Service has.
        if let (Some(port), Some(_)) = (port.health_check_node_port, port.cluster_ips[self.family]) {
            let key = &self.service.port.key;
            let of = format!("{}/{} health check node port", key.namespace, key.name);
            let line = Line::new().comment(&of).port(Protocol::Tcp, port.get()).jump("ACCEPT");
            lines.push((Dispatch::HealthPorts, line));
        }
        lines
    }

    fn external_lines(&self, address: IpAddr, lines: &mut Vec<(Dispatch, String)>) {
        let restricted = self.allowed(address).is_some();
        let (comment, kind) = if !self.service.port.load_balancer_ips.contains(&address) {
            ("external IP", Kind::Ext)
        } else if restricted {
            ("loadbalancer IP", Kind::Fw)
        } else {
            ("loadbalancer IP", Kind::Ext)
        };
        if self.has_external() {
            let line = self.front(address, comment).jump(&self.names.chain(kind));
            lines.push((Dispatch::Services, line));
        }
        if !self.is_served_to_all() {
            let line = self.unserved(self.front(address, self.excuse()));
            lines.push((Dispatch::UnservedExternal, line));
        }
        if restricted {
            let fw = self.names.chain(Kind::Fw);
            let line = self.front(address, &format!("traffic not accepted by {fw}"));
            let to = if self.has_external() || !self.refuses() { "DROP" } else { &fw };
            lines.push((Dispatch::Firewall, line.jump(to)));
        }
    }

    /// What is addressed to a VIP.
    pub(super) fn front(&self, address: IpAddr, comment: &str) -> Line {
        let comment = format!("{} {comment}", self.names.service);
        Line::new().to(address).comment(&comment).port(self.protocol(), self.service.port.port.get())
    }

    fn unserved(&self, line: Line) -> String {
        if self.refuses() { line.reject(self.family, self.protocol()) } else { line.jump("DROP") }
    }

    fn excuse(&self) -> &'static str {
        if self.refuses() { "has no endpoints" } else { "has no local endpoints" }
    }

    /// Nobody in the whole cluster can serve.
    fn refuses(&self) -> bool {
        !self.service.port.any_endpoints[self.family]
    }

    fn filled(&self) -> Filled {
        let (cluster, local) = (&self.service.cluster[self.family], &self.service.local[self.family]);
        Filled { cluster: !cluster.is_empty(), local: !local.is_empty() }
    }

    /// Somebody serves some external traffic.
    fn has_external(&self) -> bool {
        let Filled { cluster, local } = self.filled();
        cluster || (local && self.service.port.external_policy == TrafficPolicy::Local)
    }

    /// Somebody serves external traffic wherever it comes from.
    fn is_served_to_all(&self) -> bool {
        let Filled { cluster, local } = self.filled();
        cluster && (local || self.service.port.external_policy == TrafficPolicy::Cluster)
    }

    fn restricted(&self, fronts: &[(Vip, VipKind)]) -> Vec<(IpAddr, Vec<IpNet>)> {
        let allowed = fronts.iter().filter_map(|(front, _)| match front {
            Vip::AddressPort { address, .. } => Some((*address, self.allowed(*address)?)),
            Vip::NodePort { .. } | Vip::Address(_) => None,
        });
        allowed.collect()
    }

    fn allowed(&self, vip: IpAddr) -> Option<Vec<IpNet>> {
        allowed_sources(&self.service.port, vip, self.context.node)
    }

    fn protocol(&self) -> Protocol {
        self.service.port.key.protocol
    }
}

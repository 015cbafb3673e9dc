//! The desired rules of one service port in one family: its own chains, and its rules in shared chains.
//!
//! ```text
//!   nat     cluster IP ─▶ SVC or SVL;  external VIP, node port ─▶ EXT;  with source ranges ─▶ FW ─▶ EXT
//!   filter  without endpoints: rejected, or dropped while endpoints exist on other nodes
//! ```

use std::{collections::BTreeMap, net::IpAddr};

use backend::{
    ServicePortState,
    dataplane::{EffectiveOptions, PodMatch, Vip, VipKind, allowed_sources, vips},
};
use ipnet::IpNet;
use iptables::{ChainSpec, Table};
use proto::model::{Endpoint, IpFamily, Pool, Protocol, TrafficPolicy};

use super::rule::RuleBuilder;
use crate::{
    names::{self, ChainKind, ChainNames},
    table::SharedChain,
};

/// The desired rules of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// The VIPs that belong to this service port.
    pub(crate) vips: Vec<Vip>,
    pub(crate) chains: Vec<ChainSpec>,
    /// Its rules in shared chains.
    pub(crate) lines: Vec<(SharedChain, String)>,
}

/// Writes the rules of a service port in a family.
pub(super) struct ServicePortRules<'a> {
    pub(super) service: &'a ServicePortState,
    pub(super) family: IpFamily,
    pub(super) effective: &'a EffectiveOptions,
    pub(super) node: &'a [IpAddr],
    pub(super) names: ChainNames,
}

/// The desired rules of a service port. `node`: the node's own addresses; `owned`: whether a VIP belongs to the service
/// port. `None` when it owns no VIP.
pub(crate) fn desired(
    service: &ServicePortState,
    family: IpFamily,
    effective: &EffectiveOptions,
    node: &[IpAddr],
    owned: impl Fn(&Vip) -> bool,
) -> Option<Desired> {
    let owned_vips: Vec<_> = vips(&service.port, family).into_iter().filter(|(vip, _)| owned(vip)).collect();
    if owned_vips.is_empty() {
        return None;
    }
    let port = ServicePortRules { service, family, effective, node, names: ChainNames::new(&service.port.key) };
    let lines = port.lines(&owned_vips);
    let chains = port.chains(&owned_vips);
    Some(Desired { vips: owned_vips.into_iter().map(|(vip, _)| vip).collect(), chains, lines })
}

// === impl ServicePortRules ===

impl ServicePortRules<'_> {
    fn chains(&self, vips: &[(Vip, VipKind)]) -> Vec<ChainSpec> {
        let cluster_ip = vips.iter().find_map(|(vip, vip_kind)| match (vip, vip_kind) {
            (Vip::AddressPort { address, .. }, VipKind::ClusterIp) => Some(*address),
            _ => None,
        });
        let external = self.has_external() && vips.iter().any(|(_, vip_kind)| *vip_kind != VipKind::ClusterIp);
        let mut chains = Vec::new();
        let mut parts = BTreeMap::<String, ChainSpec>::new();
        let mut add = |table, name, (rules, of_chain): (Vec<String>, Vec<ChainSpec>)| {
            chains.push(ChainSpec { table, name, rules });
            // Pools with equal endpoints share their parts.
            parts.extend(of_chain.into_iter().map(|part| (part.name.clone(), part)));
        };
        let mut endpoints = BTreeMap::<String, &Endpoint>::new();
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            let (kind, members) = self.pool_of(policy);
            let internal = cluster_ip.filter(|_| self.service.port.internal_policy == policy);
            // External policy Local needs both pools.
            let externally =
                external && (policy == TrafficPolicy::Cluster || self.service.port.external_policy == policy);
            if !members.is_empty() && (internal.is_some() || externally) {
                add(Table::Nat, self.names.chain(kind), self.pool(internal, members));
                endpoints.extend(members.iter().map(|member| (self.endpoint_chain(member), member)));
            }
        }
        for (name, endpoint) in endpoints {
            add(Table::Nat, name, (self.endpoint(endpoint), Vec::new()));
        }
        if external {
            add(Table::Nat, self.names.chain(ChainKind::Ext), (self.external(), Vec::new()));
        }
        let restricted = self.restricted(vips);
        if !restricted.is_empty() {
            let fw = self.names.chain(ChainKind::Fw);
            if external {
                add(Table::Nat, fw, self.firewall(&restricted));
            } else if self.rejects() {
                add(Table::Filter, fw, self.firewall_without_endpoints(&restricted));
            }
        }
        chains.extend(parts.into_values());
        chains
    }

    fn lines(&self, vips: &[(Vip, VipKind)]) -> Vec<(SharedChain, String)> {
        let port = &self.service.port;
        let mut lines = Vec::new();
        for (vip, vip_kind) in vips {
            match (*vip, vip_kind) {
                (Vip::AddressPort { address, .. }, VipKind::ClusterIp) => {
                    let (kind, pool) = self.pool_of(port.internal_policy);
                    lines.push(if !pool.is_empty() {
                        let line = self.vip_rule(address, "cluster IP");
                        (SharedChain::Services, line.jump(&self.names.chain(kind)))
                    } else {
                        let line = self.vip_rule(address, self.no_endpoints_comment());
                        (SharedChain::UnservedServices, self.unserved(line))
                    });
                    let of = format!("{}/{} has no such port", port.key.namespace, port.key.name);
                    let line = RuleBuilder::new().to(address).comment(&of).jump(names::REJECT);
                    lines.push((SharedChain::ClusterIps, line));
                }
                (Vip::AddressPort { address, .. }, _) => self.external_lines(address, &mut lines),
                (Vip::NodePort { port, .. }, _) => {
                    let line = |comment: &str| {
                        let comment = format!("{}{comment}", self.names.service);
                        RuleBuilder::new().comment(&comment).port(self.protocol(), port)
                    };
                    if self.has_external() {
                        let line = line("").jump(&self.names.chain(ChainKind::Ext));
                        lines.push((SharedChain::NodePorts, line));
                    }
                    if !self.serves_all_sources() {
                        let line = line(&format!(" {}", self.no_endpoints_comment()));
                        lines.push((SharedChain::UnservedNodePorts, self.unserved(line)));
                    }
                }
                (Vip::Address(_), _) => {}
            }
        }
        // A Service has a family if it has a cluster IP of it.
        if let (Some(port), Some(_)) = (port.health_check_node_port, port.cluster_ips[self.family]) {
            let key = &self.service.port.key;
            let of = format!("{}/{} health check node port", key.namespace, key.name);
            let line = RuleBuilder::new().comment(&of).port(Protocol::Tcp, port.get()).jump("ACCEPT");
            lines.push((SharedChain::HealthPorts, line));
        }
        lines
    }

    fn external_lines(&self, address: IpAddr, lines: &mut Vec<(SharedChain, String)>) {
        let restricted = self.allowed(address).is_some();
        let (comment, kind) = if !self.service.port.load_balancer_ips.contains(&address) {
            ("external IP", ChainKind::Ext)
        } else if restricted {
            ("loadbalancer IP", ChainKind::Fw)
        } else {
            ("loadbalancer IP", ChainKind::Ext)
        };
        if self.has_external() {
            let line = self.vip_rule(address, comment).jump(&self.names.chain(kind));
            lines.push((SharedChain::Services, line));
        }
        if !self.serves_all_sources() {
            let line = self.unserved(self.vip_rule(address, self.no_endpoints_comment()));
            lines.push((SharedChain::UnservedExternal, line));
        }
        if restricted {
            let fw = self.names.chain(ChainKind::Fw);
            let line = self.vip_rule(address, &format!("traffic not accepted by {fw}"));
            let to = if self.has_external() || !self.rejects() { "DROP" } else { &fw };
            lines.push((SharedChain::Firewall, line.jump(to)));
        }
    }

    pub(super) fn vip_rule(&self, address: IpAddr, comment: &str) -> RuleBuilder {
        let comment = format!("{} {comment}", self.names.service);
        RuleBuilder::new().to(address).comment(&comment).port(self.protocol(), self.service.port.port.get())
    }

    fn unserved(&self, line: RuleBuilder) -> String {
        if self.rejects() { line.reject(self.family, self.protocol()) } else { line.jump("DROP") }
    }

    fn no_endpoints_comment(&self) -> &'static str {
        if self.rejects() { "has no endpoints" } else { "has no local endpoints" }
    }

    /// Whether the cluster has no endpoint at all.
    fn rejects(&self) -> bool {
        !self.service.port.any_endpoints[self.family]
    }

    /// The endpoints under a traffic policy, and the chain that selects one of them.
    fn pool_of(&self, policy: TrafficPolicy) -> (ChainKind, &Pool) {
        match policy {
            TrafficPolicy::Cluster => (ChainKind::Svc, &self.service.cluster[self.family]),
            TrafficPolicy::Local => (ChainKind::Svl, &self.service.local[self.family]),
        }
    }

    pub(super) fn has_endpoints(&self, policy: TrafficPolicy) -> bool {
        !self.pool_of(policy).1.is_empty()
    }

    /// Whether some external traffic has an endpoint.
    fn has_external(&self) -> bool {
        [TrafficPolicy::Cluster, self.service.port.external_policy].into_iter().any(|policy| self.has_endpoints(policy))
    }

    /// Whether external traffic of all source classes has an endpoint.
    fn serves_all_sources(&self) -> bool {
        [TrafficPolicy::Cluster, self.service.port.external_policy].into_iter().all(|policy| self.has_endpoints(policy))
    }

    fn restricted(&self, vips: &[(Vip, VipKind)]) -> Vec<(IpAddr, Vec<IpNet>)> {
        let allowed = vips.iter().filter_map(|(vip, _)| match vip {
            Vip::AddressPort { address, .. } => Some((*address, self.allowed(*address)?)),
            Vip::NodePort { .. } | Vip::Address(_) => None,
        });
        allowed.collect()
    }

    fn allowed(&self, vip: IpAddr) -> Option<Vec<IpNet>> {
        allowed_sources(&self.service.port, vip, self.node)
    }

    pub(super) fn pods(&self) -> &PodMatch {
        &self.effective.pods[self.family]
    }

    fn protocol(&self) -> Protocol {
        self.service.port.key.protocol
    }
}

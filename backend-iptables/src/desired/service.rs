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

use super::{chains::ChainRules, rule::RuleBuilder};
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

/// The chains of a service port.
#[derive(Debug, Default)]
struct ChainList {
    chains: Vec<ChainSpec>,
    /// The parts by their names, because pools with equal endpoints share them.
    parts: BTreeMap<String, ChainSpec>,
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
/// port. `None`: it owns no VIP.
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

    let rules = ServicePortRules { service, family, effective, node, names: ChainNames::new(&service.port.key) };
    let lines = rules.lines(&owned_vips);
    let chains = rules.chains(&owned_vips);
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

        let mut list = ChainList::default();
        let mut endpoints = BTreeMap::<String, &Endpoint>::new();
        for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
            let (kind, members) = self.pool_of(policy);
            let internal = if self.service.port.internal_policy == policy { cluster_ip } else { None };
            // External policy Local needs both pools.
            let externally =
                external && (policy == TrafficPolicy::Cluster || self.service.port.external_policy == policy);
            if !members.is_empty() && (internal.is_some() || externally) {
                list.push_with_parts(Table::Nat, self.names.chain(kind), self.pool(internal, members));
                endpoints.extend(members.iter().map(|member| (self.endpoint_chain(member), member)));
            }
        }
        for (name, endpoint) in endpoints {
            list.push(Table::Nat, name, self.endpoint(endpoint));
        }
        if external {
            list.push(Table::Nat, self.names.chain(ChainKind::Ext), self.external());
        }

        let restricted = self.restricted(vips);
        if !restricted.is_empty() {
            let fw = self.names.chain(ChainKind::Fw);
            if external {
                list.push_with_parts(Table::Nat, fw, self.firewall(&restricted));
            } else if self.rejects() {
                list.push_with_parts(Table::Filter, fw, self.firewall_without_endpoints(&restricted));
            }
        }
        list.chains.extend(list.parts.into_values());
        list.chains
    }

    fn lines(&self, vips: &[(Vip, VipKind)]) -> Vec<(SharedChain, String)> {
        let mut lines = Vec::new();
        for (vip, vip_kind) in vips {
            match (*vip, vip_kind) {
                (Vip::AddressPort { address, .. }, VipKind::ClusterIp) => self.cluster_ip_lines(address, &mut lines),
                (Vip::AddressPort { address, .. }, _) => self.external_lines(address, &mut lines),
                (Vip::NodePort { port, .. }, _) => self.node_port_lines(port, &mut lines),
                (Vip::Address(_), _) => {}
            }
        }

        let port = &self.service.port;
        // A Service has a family if it has a cluster IP of it.
        if let (Some(node_port), Some(_)) = (port.health_check_node_port, port.cluster_ips[self.family]) {
            let comment = format!("{}/{} health check node port", port.key.namespace, port.key.name);
            let line = RuleBuilder::new().comment(&comment).port(Protocol::Tcp, node_port.get());
            lines.push((SharedChain::HealthPorts, line.jump("ACCEPT")));
        }
        lines
    }

    fn cluster_ip_lines(&self, address: IpAddr, lines: &mut Vec<(SharedChain, String)>) {
        let port = &self.service.port;
        let (kind, pool) = self.pool_of(port.internal_policy);
        if pool.is_empty() {
            let line = self.vip_rule(address, self.no_endpoints_comment());
            lines.push((SharedChain::UnservedServices, self.unserved(line)));
        } else {
            let line = self.vip_rule(address, "cluster IP");
            lines.push((SharedChain::Services, line.jump(&self.names.chain(kind))));
        }

        let comment = format!("{}/{} has no such port", port.key.namespace, port.key.name);
        let other_ports = RuleBuilder::new().to(address).comment(&comment);
        lines.push((SharedChain::ClusterIps, other_ports.jump(names::REJECT)));
    }

    fn node_port_lines(&self, port: u16, lines: &mut Vec<(SharedChain, String)>) {
        let service = &self.names.service;
        if self.has_external() {
            let line = RuleBuilder::new().comment(service).port(self.protocol(), port);
            lines.push((SharedChain::NodePorts, line.jump(&self.names.chain(ChainKind::Ext))));
        }
        if !self.serves_all_sources() {
            let comment = format!("{service} {}", self.no_endpoints_comment());
            let line = RuleBuilder::new().comment(&comment).port(self.protocol(), port);
            lines.push((SharedChain::UnservedNodePorts, self.unserved(line)));
        }
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
        self.has_endpoints(TrafficPolicy::Cluster) || self.has_endpoints(self.service.port.external_policy)
    }

    /// Whether external traffic of all source classes has an endpoint.
    fn serves_all_sources(&self) -> bool {
        self.has_endpoints(TrafficPolicy::Cluster) && self.has_endpoints(self.service.port.external_policy)
    }

    /// The VIPs with source ranges, and the sources that may use each of them.
    fn restricted(&self, vips: &[(Vip, VipKind)]) -> Vec<(IpAddr, Vec<IpNet>)> {
        let mut restricted = Vec::new();
        for (vip, _) in vips {
            if let Vip::AddressPort { address, .. } = vip
                && let Some(ranges) = self.allowed(*address)
            {
                restricted.push((*address, ranges));
            }
        }
        restricted
    }

    /// The sources that may use a VIP; `None`: all.
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

// === impl ChainList ===

impl ChainList {
    fn push(&mut self, table: Table, name: String, rules: Vec<String>) {
        self.chains.push(ChainSpec { table, name, rules });
    }

    fn push_with_parts(&mut self, table: Table, name: String, chain: ChainRules) {
        self.push(table, name, chain.rules);
        for part in chain.parts {
            self.parts.insert(part.name.clone(), part);
        }
    }
}

//! The chains of one service port, in the form of kube-proxy:
//!
//! ```text
//!   SVC, SVL  mark packets to the cluster IP that are not from pods; then the client's SEP (affinity), or a random one
//!   EXT       external traffic: mark, then SVC; under policy Local: pods and this node to SVC, others to SVL
//!   FW        load-balancer IPs with source ranges: clients within them to EXT
//!   SEP       an endpoint: mark connections to itself; with affinity, remember the client; DNAT
//! ```
//!
//! The kernel replaces the rules of a chain in one transaction. So a chain for many endpoints or source ranges jumps to
//! parts, with a fraction of them each. A part is named after its rules: a part with other rules is a new chain, which
//! is filled before the chain that jumps to it changes, and the change of one endpoint writes one part.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use backend::dataplane::{Masquerade, PodMatch};
use ipnet::IpNet;
use iptables::{ChainSpec, Table};
use proto::model::{Endpoint, IpFamily, TrafficPolicy};

use super::{
    rule::{MatchSense, RuleBuilder},
    service::ServicePortRules,
};
use crate::names::{self, ChainKind};

/// The most endpoints, or source ranges, of a chain without parts: with session affinity each endpoint has two rules,
/// and a script has 1,000 lines.
const MAX_CHAIN_ENTRIES: usize = 400;

/// The approximate number of endpoints, or source ranges, of a part.
const PART_ENTRIES: usize = 256;

/// The rules of a chain, and the chains of its parts.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainRules {
    pub(super) rules: Vec<String>,
    pub(super) parts: Vec<ChainSpec>,
}

// === impl ServicePortRules ===

impl ServicePortRules<'_> {
    /// The rules of SVC or SVL. `cluster_ip`: the cluster IP whose packets are sent to this chain.
    pub(super) fn pool(&self, cluster_ip: Option<IpAddr>, endpoints: &[Endpoint]) -> ChainRules {
        let mut chain = ChainRules::default();
        chain.rules.extend(cluster_ip.and_then(|ip| self.mark_others(ip)));
        let endpoints: Vec<&Endpoint> = endpoints.iter().collect();
        if endpoints.len() <= MAX_CHAIN_ENTRIES {
            chain.rules.extend(self.sticky(&endpoints));
            chain.rules.extend(self.random(&endpoints));
            return chain;
        }

        let groups = groups(endpoints, |endpoint| socket(endpoint).to_string());
        let comment = |group: &[&Endpoint]| format!("{} -> {} endpoints", self.names.service, group.len());
        if self.service.port.affinity_seconds.is_some() {
            for group in &groups {
                let part = self.part(Table::Nat, ChainKind::PoolPart, self.sticky(group));
                chain.rules.push(RuleBuilder::new().comment(&comment(group)).jump(&part.name));
                chain.parts.push(part);
            }
        }

        let mut left = groups.iter().map(Vec::len).sum();
        for group in &groups {
            let part = self.part(Table::Nat, ChainKind::PoolPart, self.random(group));
            let line = RuleBuilder::new().comment(&comment(group));
            chain.rules.push(one_of(line, group.len(), left).jump(&part.name));
            chain.parts.push(part);
            left -= group.len();
        }
        chain
    }

    /// One rule for each endpoint, for the clients that it has served before.
    fn sticky(&self, endpoints: &[&Endpoint]) -> Vec<String> {
        let Some(seconds) = self.service.port.affinity_seconds else { return Vec::new() };
        let mut rules = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let chain = self.endpoint_chain(endpoint);
            let recent = format!("-m recent --rcheck --seconds {seconds} --reap {}", self.recent_list(&chain));
            let line = RuleBuilder::new().comment(&self.endpoint_comment(endpoint));
            rules.push(line.matching(&recent).jump(&chain));
        }
        rules
    }

    /// One rule for each endpoint, each with the same probability.
    fn random(&self, endpoints: &[&Endpoint]) -> Vec<String> {
        let mut rules = Vec::with_capacity(endpoints.len());
        for (index, endpoint) in endpoints.iter().enumerate() {
            let line = RuleBuilder::new().comment(&self.endpoint_comment(endpoint));
            rules.push(one_of(line, 1, endpoints.len() - index).jump(&self.endpoint_chain(endpoint)));
        }
        rules
    }

    fn part(&self, table: Table, kind: ChainKind, rules: Vec<String>) -> ChainSpec {
        ChainSpec { table, name: self.names.part(kind, &rules), rules }
    }

    /// Masquerades packets to the cluster IP that are not from pods.
    fn mark_others(&self, ip: IpAddr) -> Option<String> {
        let line = || self.vip_rule(ip, "cluster IP");
        match (self.effective.masquerade[self.family], self.pods()) {
            (Masquerade::Never, _) | (Masquerade::UnlessPod, PodMatch::Unknown) => None,
            (Masquerade::Always, _) => Some(line().jump(names::MARK_MASQ)),
            (Masquerade::UnlessPod, PodMatch::Source(cidrs)) => match &cidrs[..] {
                cidrs if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
                [cidr] => Some(line().from(MatchSense::IsNot, cidr).jump(names::MARK_MASQ)),
                _ => Some(line().jump(names::MASQ_OTHERS)),
            },
            (Masquerade::UnlessPod, pods) => {
                let from_elsewhere = line().pods(MatchSense::IsNot, pods).pop()?;
                Some(from_elsewhere.jump(names::MARK_MASQ))
            }
        }
    }

    /// The rules of EXT.
    pub(super) fn external(&self) -> Vec<String> {
        let name = &self.names.service;
        let svc = self.names.chain(ChainKind::Svc);
        if self.service.port.external_policy == TrafficPolicy::Cluster {
            let comment = format!("masquerade traffic for {name} external destinations");
            return vec![RuleBuilder::new().comment(&comment).jump(names::MARK_MASQ), RuleBuilder::new().jump(&svc)];
        }

        let cluster_target = if self.has_endpoints(TrafficPolicy::Cluster) { &*svc } else { "RETURN" };
        let line = RuleBuilder::new().comment(&format!("pod traffic for {name} external destinations"));
        let mut rules = Vec::new();
        for from_pod in line.pods(MatchSense::Is, self.pods()) {
            rules.push(from_pod.jump(cluster_target));
        }
        for (verb, target) in [("masquerade", names::MARK_MASQ), ("route", cluster_target)] {
            let line = RuleBuilder::new().comment(&format!("{verb} LOCAL traffic for {name} external destinations"));
            rules.push(line.matching("-m addrtype --src-type LOCAL").jump(target));
        }
        if self.has_endpoints(TrafficPolicy::Local) {
            rules.push(RuleBuilder::new().jump(&self.names.chain(ChainKind::Svl)));
        }
        rules
    }

    /// The rules of FW, for VIPs with their source ranges.
    pub(super) fn firewall(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> ChainRules {
        let name = &self.names.service;
        let ext = self.names.chain(ChainKind::Ext);
        let line = || RuleBuilder::new().comment(&format!("{name} loadbalancer IP"));
        let mut chain = self.split(Table::Nat, allowed(vips, line, &ext));

        let comment = format!("other traffic to {name} will be dropped by {}", names::PROXY_FIREWALL);
        chain.rules.push(RuleBuilder::new().comment(&comment).end());
        chain
    }

    /// The rules of FW without endpoints: clients outside the ranges are dropped, all other clients are rejected.
    pub(super) fn firewall_without_endpoints(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> ChainRules {
        let mut rules = allowed(vips, RuleBuilder::new, "RETURN");
        if rules.len() > MAX_CHAIN_ENTRIES {
            // RETURN would leave the part only.
            rules = allowed(vips, RuleBuilder::new, names::REJECT);
        }
        let mut chain = self.split(Table::Filter, rules);
        chain.rules.push(RuleBuilder::new().jump("DROP"));
        chain
    }

    /// Moves many rules, whose order does not matter, to parts.
    fn split(&self, table: Table, rules: Vec<String>) -> ChainRules {
        if rules.len() <= MAX_CHAIN_ENTRIES {
            return ChainRules { rules, parts: Vec::new() };
        }

        let mut chain = ChainRules::default();
        for group in groups(rules, String::clone) {
            let part = self.part(table, ChainKind::SourcePart, group);
            chain.rules.push(RuleBuilder::new().jump(&part.name));
            chain.parts.push(part);
        }
        chain
    }

    /// The rules of SEP.
    pub(super) fn endpoint(&self, endpoint: &Endpoint) -> Vec<String> {
        let name = &self.names.service;
        let protocol = self.service.port.key.protocol;
        let hairpin = RuleBuilder::new().from(MatchSense::Is, &IpNet::from(endpoint.address)).comment(name);

        let mut dnat = RuleBuilder::new().protocol(protocol).comment(name);
        if self.service.port.affinity_seconds.is_some() {
            let list = self.recent_list(&self.endpoint_chain(endpoint));
            dnat = dnat.matching(&format!("-m recent --set {list}"));
        }
        dnat = dnat.matching(&format!("-m {}", protocol.lower()));
        vec![hairpin.jump(names::MARK_MASQ), dnat.jump(&format!("DNAT --to-destination {}", socket(endpoint)))]
    }

    pub(super) fn endpoint_chain(&self, endpoint: &Endpoint) -> String {
        self.names.endpoint(socket(endpoint))
    }

    fn endpoint_comment(&self, endpoint: &Endpoint) -> String {
        format!("{} -> {}", self.names.service, socket(endpoint))
    }

    /// The options of the match `recent` for the clients of an endpoint.
    fn recent_list(&self, name: &str) -> String {
        let mask = match self.family {
            IpFamily::V4 => "255.255.255.255",
            IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("--name {name} --mask {mask} --rsource")
    }
}

/// Groups of about [`PART_ENTRIES`]. A member stays in its group while the number of members does not double.
fn groups<T>(members: Vec<T>, text: impl Fn(&T) -> String) -> Vec<Vec<T>> {
    let count = members.len().div_ceil(PART_ENTRIES).next_power_of_two();
    let mut groups: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for member in members {
        groups[names::group(&text(&member), count)].push(member);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// A rule that matches with the probability of `count` endpoints among `left`.
fn one_of(line: RuleBuilder, count: usize, left: usize) -> RuleBuilder {
    if count == left {
        return line;
    }
    line.matching(&format!("-m statistic --mode random --probability {}", probability(count, left)))
}

/// One rule for each range, without duplicates. The rule for a VIP as its own source matches that VIP only.
fn allowed(vips: &[(IpAddr, Vec<IpNet>)], line: impl Fn() -> RuleBuilder, to: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let mut seen = HashSet::new();
    for (vip, ranges) in vips {
        for range in ranges {
            let is_own_source = range.addr() == *vip;
            let destination = if is_own_source { Some(*vip) } else { None };
            if !seen.insert((*range, destination)) {
                continue;
            }
            let mut line = line().from(MatchSense::Is, range);
            if is_own_source {
                line = line.to(*vip);
            }
            rules.push(line.jump(to));
        }
    }
    rules
}

fn socket(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address, endpoint.port.get())
}

/// The probability of `count` of `left` endpoints. kube-proxy writes ten decimals; the kernel stores and prints units
/// of 2^-31.
fn probability(count: usize, left: usize) -> String {
    const UNITS: f64 = (1u32 << 31) as f64;
    let written = (1e10 * count as f64 / left as f64).round() / 1e10;
    format!("{:.11}", (written * UNITS).round() / UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What iptables 1.8.9 prints for the rules of kube-proxy.
    #[test]
    fn probabilities_are_written_as_the_kernel_stores_them() {
        for (left, printed) in [(2, "0.50000000000"), (3, "0.33333333349"), (7, "0.14285714272"), (10, "0.10000000009")]
        {
            assert_eq!(probability(1, left), printed);
        }
    }
}

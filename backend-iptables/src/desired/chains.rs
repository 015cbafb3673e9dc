//! The chains of one service port, in the form of kube-proxy:
//!
//! ```text
//!   SVC, SVL  mark packets to the cluster IP that are not from pods; then the client's SEP (affinity), or a random one
//!   EXT       external traffic: mark, then SVC; under policy Local: pods and this node to SVC, others to SVL
//!   FW        load-balancer IPs with source ranges: clients within them to EXT
//!   SEP       an endpoint: mark connections to itself; with affinity, remember the client; DNAT
//! ```

use std::net::{IpAddr, SocketAddr};

use backend::dataplane::{Masquerade, PodMatch};
use ipnet::IpNet;
use proto::model::{Endpoint, IpFamily, TrafficPolicy};

use super::{
    rule::{MatchSense, RuleBuilder},
    service::ServicePortRules,
};
use crate::names::{self, ChainKind};

impl ServicePortRules<'_> {
    /// The rules of SVC or SVL. `cluster_ip`: set when packets to it are sent to this chain.
    pub(super) fn pool(&self, cluster_ip: Option<IpAddr>, endpoints: &[Endpoint]) -> Vec<String> {
        let mut rules: Vec<String> = cluster_ip.and_then(|ip| self.mark_others(ip)).into_iter().collect();
        if let Some(seconds) = self.service.port.affinity_seconds {
            let sticky = |endpoint: &Endpoint| {
                let chain = self.endpoint_chain(endpoint);
                let recent = format!("-m recent --rcheck --seconds {seconds} --reap {}", self.recent_list(&chain));
                RuleBuilder::new().comment(&self.endpoint_comment(endpoint)).matching(&recent).jump(&chain)
            };
            rules.extend(endpoints.iter().map(sticky));
        }
        rules.extend((0..).zip(endpoints).map(|(index, endpoint)| {
            let line = RuleBuilder::new().comment(&self.endpoint_comment(endpoint));
            let line = match endpoints.len() - index {
                1 => line,
                left => line.matching(&format!("-m statistic --mode random --probability {}", probability(left))),
            };
            line.jump(&self.endpoint_chain(endpoint))
        }));
        rules
    }

    /// Masquerades packets to the cluster IP that are not from pods.
    fn mark_others(&self, ip: IpAddr) -> Option<String> {
        let line = || self.vip_rule(ip, "cluster IP");
        match (self.context.effective.masquerade[self.family], self.pods()) {
            (Masquerade::Never, _) | (Masquerade::UnlessPod, PodMatch::Unknown) => None,
            (Masquerade::Always, _) => Some(line().jump(names::MARK_MASQ)),
            (Masquerade::UnlessPod, PodMatch::Source(cidrs)) => match &cidrs[..] {
                cidrs if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
                [cidr] => Some(line().from(MatchSense::IsNot, cidr).jump(names::MARK_MASQ)),
                _ => Some(line().jump(names::MASQ_OTHERS)),
            },
            (Masquerade::UnlessPod, pods) => {
                line().pods(MatchSense::IsNot, pods).pop().map(|line| line.jump(names::MARK_MASQ))
            }
        }
    }

    /// The rules of EXT.
    pub(super) fn external(&self) -> Vec<String> {
        let name = &self.names.service;
        let (svc, svl) = (self.names.chain(ChainKind::Svc), self.names.chain(ChainKind::Svl));
        if self.service.port.external_policy == TrafficPolicy::Cluster {
            let comment = format!("masquerade traffic for {name} external destinations");
            return vec![RuleBuilder::new().comment(&comment).jump(names::MARK_MASQ), RuleBuilder::new().jump(&svc)];
        }
        let cluster_target = if self.has_endpoints(TrafficPolicy::Cluster) { &*svc } else { "RETURN" };
        let pods = RuleBuilder::new().comment(&format!("pod traffic for {name} external destinations"));
        let pods = pods.pods(MatchSense::Is, self.pods());
        let mut rules: Vec<String> = pods.into_iter().map(|line| line.jump(cluster_target)).collect();
        let local = |verb: &str| {
            let comment = format!("{verb} LOCAL traffic for {name} external destinations");
            RuleBuilder::new().comment(&comment).matching("-m addrtype --src-type LOCAL")
        };
        rules.extend([local("masquerade").jump(names::MARK_MASQ), local("route").jump(cluster_target)]);
        if self.has_endpoints(TrafficPolicy::Local) {
            rules.push(RuleBuilder::new().jump(&svl));
        }
        rules
    }

    /// The rules of FW, for VIPs with their source ranges.
    pub(super) fn firewall(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> Vec<String> {
        let name = &self.names.service;
        let ext = self.names.chain(ChainKind::Ext);
        let line = || RuleBuilder::new().comment(&format!("{name} loadbalancer IP"));
        let mut rules = allowed(vips, line, &ext);
        let comment = format!("other traffic to {name} will be dropped by {}", names::PROXY_FIREWALL);
        rules.push(RuleBuilder::new().comment(&comment).end());
        rules
    }

    /// The rules of FW without endpoints: clients outside the ranges are dropped, the others are rejected.
    pub(super) fn firewall_without_endpoints(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> Vec<String> {
        let mut rules = allowed(vips, RuleBuilder::new, "RETURN");
        rules.push(RuleBuilder::new().jump("DROP"));
        rules
    }

    /// The rules of SEP.
    pub(super) fn endpoint(&self, endpoint: &Endpoint) -> Vec<String> {
        let (name, protocol) = (&self.names.service, self.service.port.key.protocol);
        let socket = socket(endpoint);
        let hairpin = RuleBuilder::new().from(MatchSense::Is, &IpNet::from(endpoint.address)).comment(name);
        let mut line = RuleBuilder::new().protocol(protocol).comment(name);
        if self.service.port.affinity_seconds.is_some() {
            let list = self.recent_list(&self.endpoint_chain(endpoint));
            line = line.matching(&format!("-m recent --set {list}"));
        }
        let line = line.matching(&format!("-m {}", protocol.lower()));
        vec![hairpin.jump(names::MARK_MASQ), line.jump(&format!("DNAT --to-destination {socket}"))]
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

/// One rule for each range, without duplicates. The rule for a VIP as its own source matches that VIP only.
fn allowed(vips: &[(IpAddr, Vec<IpNet>)], line: impl Fn() -> RuleBuilder, to: &str) -> Vec<String> {
    let mut rules = Vec::new();
    for (vip, ranges) in vips {
        for range in ranges {
            let line = line().from(MatchSense::Is, range);
            let line = if range.addr() == *vip { line.to(*vip) } else { line };
            let rule = line.jump(to);
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

fn socket(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address, endpoint.port.get())
}

/// The probability of one of `left` endpoints. kube-proxy writes ten decimals; the kernel stores and prints units of
/// 2^-31.
fn probability(left: usize) -> String {
    const UNITS: f64 = (1u32 << 31) as f64;
    let written = (1e10 / left as f64).round() / 1e10;
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
            assert_eq!(probability(left), printed);
        }
    }
}

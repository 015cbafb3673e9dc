//! The chains of one service port, in kube-proxy's forms:
//!
//! ```text
//!   SVC, SVL  mark what is no pod's, on the way to the cluster IP; who is remembered, to its SEP; else any SEP, at random
//!   EXT       external traffic: mark, then SVC; under policy Local: pods and this node to SVC, everybody else to SVL
//!   FW        load-balancer IPs with source ranges: who is in one, to EXT
//!   SEP       an endpoint: mark who reaches itself; remember the client; translate
//! ```

use std::net::{IpAddr, SocketAddr};

use backend::dataplane::{Masquerade, PodMatch};
use ipnet::IpNet;
use proto::model::{Endpoint, IpFamily, TrafficPolicy};

use super::{
    rule::{Line, Sense},
    service::Port,
};
use crate::names::{self, Kind};

/// Which pools have endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

impl Port<'_> {
    /// SVC or SVL. `cluster_ip`: if packets to it come here.
    pub(super) fn pool(&self, cluster_ip: Option<IpAddr>, endpoints: &[Endpoint]) -> Vec<String> {
        let mut rules: Vec<String> = cluster_ip.and_then(|ip| self.mark_others(ip)).into_iter().collect();
        if let Some(seconds) = self.service.port.affinity_seconds {
            let remembered = |endpoint: &Endpoint| {
                let chain = self.endpoint_chain(endpoint);
                let recent = format!("-m recent --rcheck --seconds {seconds} --reap {}", self.list(&chain));
                Line::new().comment(&self.arrow(endpoint)).matching(&recent).jump(&chain)
            };
            rules.extend(endpoints.iter().map(remembered));
        }
        rules.extend((0..).zip(endpoints).map(|(index, endpoint)| {
            let line = Line::new().comment(&self.arrow(endpoint));
            let line = match endpoints.len() - index {
                1 => line,
                left => line.matching(&format!("-m statistic --mode random --probability {}", probability(left))),
            };
            line.jump(&self.endpoint_chain(endpoint))
        }));
        rules
    }

    /// What is no pod's is masqueraded on the way to the cluster IP.
    fn mark_others(&self, ip: IpAddr) -> Option<String> {
        let line = || self.front(ip, "cluster IP");
        match (self.context.masquerade(self.family), self.context.pods(self.family)) {
            (Masquerade::Never, _) | (Masquerade::UnlessPod, PodMatch::Unknown) => None,
            (Masquerade::Always, _) => Some(line().jump(names::MARK_MASQ)),
            (Masquerade::UnlessPod, PodMatch::Source(cidrs)) => match &cidrs[..] {
                cidrs if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
                [cidr] => Some(line().from(Sense::IsNot, cidr).jump(names::MARK_MASQ)),
                _ => Some(line().jump(names::MASQ_OTHERS)),
            },
            (Masquerade::UnlessPod, pods) => {
                line().pods(Sense::IsNot, pods).pop().map(|line| line.jump(names::MARK_MASQ))
            }
        }
    }

    /// EXT.
    pub(super) fn external(&self, filled: Filled) -> Vec<String> {
        let name = &self.names.service;
        let (svc, svl) = (self.names.chain(Kind::Svc), self.names.chain(Kind::Svl));
        if self.service.port.external_policy == TrafficPolicy::Cluster {
            let comment = format!("masquerade traffic for {name} external destinations");
            return vec![Line::new().comment(&comment).jump(names::MARK_MASQ), Line::new().jump(&svc)];
        }
        let to_all = if filled.cluster { &*svc } else { "RETURN" };
        let pods = Line::new().comment(&format!("pod traffic for {name} external destinations"));
        let pods = pods.pods(Sense::Is, self.context.pods(self.family));
        let mut rules: Vec<String> = pods.into_iter().map(|line| line.jump(to_all)).collect();
        let local = |verb: &str| {
            Line::new().comment(&format!("{verb} LOCAL traffic for {name} external destinations")).local_source()
        };
        rules.extend([local("masquerade").jump(names::MARK_MASQ), local("route").jump(to_all)]);
        if filled.local {
            rules.push(Line::new().jump(&svl));
        }
        rules
    }

    /// FW. Each VIP with who may use it.
    pub(super) fn firewall(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> Vec<String> {
        let name = &self.names.service;
        let ext = self.names.chain(Kind::Ext);
        let line = || Line::new().comment(&format!("{name} loadbalancer IP"));
        let mut rules = allowed(vips, line, &ext);
        let comment = format!("other traffic to {name} will be dropped by {}", names::PROXY_FIREWALL);
        rules.push(Line::new().comment(&comment).end());
        rules
    }

    /// The same where nobody serves: who is not in a range is told nothing, not even that.
    pub(super) fn silence(&self, vips: &[(IpAddr, Vec<IpNet>)]) -> Vec<String> {
        let mut rules = allowed(vips, Line::new, "RETURN");
        rules.push(Line::new().jump("DROP"));
        rules
    }

    /// SEP.
    pub(super) fn endpoint(&self, endpoint: &Endpoint) -> Vec<String> {
        let (name, protocol) = (&self.names.service, self.service.port.key.protocol);
        let socket = socket(endpoint);
        let own = Line::new().from(Sense::Is, &IpNet::from(endpoint.address)).comment(name);
        let mut line = Line::new().protocol(protocol).comment(name);
        if self.service.port.affinity_seconds.is_some() {
            let list = self.list(&self.endpoint_chain(endpoint));
            line = line.matching(&format!("-m recent --set {list}"));
        }
        let line = line.matching(&format!("-m {}", protocol.lower()));
        vec![own.jump(names::MARK_MASQ), line.jump(&format!("DNAT --to-destination {socket}"))]
    }

    pub(super) fn endpoint_chain(&self, endpoint: &Endpoint) -> String {
        self.names.endpoint(socket(endpoint))
    }

    fn arrow(&self, endpoint: &Endpoint) -> String {
        format!("{} -> {}", self.names.service, socket(endpoint))
    }

    /// The clients of an endpoint, as the match `recent` has them.
    fn list(&self, name: &str) -> String {
        let mask = match self.family {
            IpFamily::V4 => "255.255.255.255",
            IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("--name {name} --mask {mask} --rsource")
    }
}

/// One rule for each range, that of all VIPs once; a VIP that may be its own source is for itself only.
fn allowed(vips: &[(IpAddr, Vec<IpNet>)], line: impl Fn() -> Line, to: &str) -> Vec<String> {
    let mut rules = Vec::new();
    for (vip, ranges) in vips {
        for range in ranges {
            let line = line().from(Sense::Is, range);
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

/// One of so many. kube-proxy writes ten decimals; the kernel keeps it in units of 2^-31, and that is what is printed.
fn probability(left: usize) -> String {
    const UNITS: f64 = (1u32 << 31) as f64;
    let written = (1e10 / left as f64).round() / 1e10;
    format!("{:.11}", (written * UNITS).round() / UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that iptables 1.8.9 prints for what kube-proxy writes.
    #[test]
    fn probabilities_are_printed_as_the_kernel_keeps_them() {
        for (left, printed) in [(2, "0.50000000000"), (3, "0.33333333349"), (7, "0.14285714272"), (10, "0.10000000009")]
        {
            assert_eq!(probability(left), printed);
        }
    }
}

//! What kube-proxy's rules do with new connections, in all its modes: for each VIP, to which endpoints they are sent.
//!
//! ```text
//!   iptables-save ── KUBE-SERVICES, KUBE-NODEPORTS ─▶ chains ─▶ DNAT ──┐
//!   nf_tables ────── service-ips, service-nodeports ▶ chains ─▶ dnat ──┼──▶ VipKey ─▶ VipRules
//!   ip_vs ────────── virtual servers ─────────────▶ destinations ──────┘
//! ```
//!
//! Only endpoints are read: not marks, masquerading, source ranges or session affinity.

mod iptables;
mod ipvs;
mod nft;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use ::iptables::{Ruleset, save_all};
use anyhow::Result;
use proto::model::IpFamily;
use serde::Serialize;

/// What kube-proxy's rules do with connections to each VIP. Where several of its modes have left rules, the one that is
/// read first counts.
#[derive(Debug, Default)]
pub struct KubeProxyRules {
    /// By VIP.
    pub vips: BTreeMap<VipKey, VipRules>,
}

/// A VIP: what a connection is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    /// The IP family of the connection.
    pub family: IpFamily,
    /// The destination.
    pub address: VipAddress,
    /// The IANA number of the protocol.
    pub protocol: u8,
}

/// The address and port of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipAddress {
    /// A cluster IP, external IP or load-balancer IP, and its port.
    Ip(IpAddr, u16),
    /// A port at addresses of the node.
    NodePort(u16),
}

/// What happens to connections to a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VipRules {
    /// The mode that wrote the rules: `iptables`, `nftables`, `ipvs`.
    pub mode: &'static str,
    /// `namespace/name:port`, if the rules contain it.
    pub service: Option<String>,
    /// For connections from this node and its pods.
    pub internal: ConnectionVerdict,
    /// For connections from elsewhere.
    pub external: ConnectionVerdict,
}

/// What happens to a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionVerdict {
    /// It is sent to one of these endpoints; never empty.
    Endpoints(BTreeSet<SocketAddr>),
    /// It is rejected.
    Reject,
    /// Its packets are dropped.
    Drop,
}

/// The endpoints of a VIP.
#[derive(Debug, Default)]
struct Reached {
    internal: BTreeSet<SocketAddr>,
    external: BTreeSet<SocketAddr>,
}

// === impl Reached ===

impl Reached {
    /// For connections from anywhere.
    fn by_all(endpoints: BTreeSet<SocketAddr>) -> Self {
        Self { internal: endpoints.clone(), external: endpoints }
    }

    /// Adds the endpoints of a rule that matches connections from here.
    fn add_internal(&mut self, endpoints: BTreeSet<SocketAddr>) {
        self.internal.extend(endpoints);
    }

    /// Adds the endpoints of a rule that matches all connections; those from here only if no earlier rule matched them.
    fn add_all(&mut self, endpoints: BTreeSet<SocketAddr>) {
        if self.internal.is_empty() {
            self.internal.extend(&endpoints);
        }
        self.external.extend(endpoints);
    }
}

// === impl KubeProxyRules ===

impl KubeProxyRules {
    /// Reads the rules in the network namespace of the calling thread. Changes nothing.
    ///
    /// # Errors
    /// When a part of the kernel cannot be read. What is not installed or not loaded has no rules.
    pub async fn read() -> Result<Self> {
        let mut all = Self::default();
        for saved in save_all().await? {
            all.merge(iptables::read(saved.program.family, &Ruleset::parse(&saved.text)?));
        }
        for family in IpFamily::ALL {
            all.merge(nft::read(family)?);
        }
        all.merge(ipvs::read()?);
        Ok(all)
    }

    fn merge(&mut self, more: BTreeMap<VipKey, VipRules>) {
        for (vip, rules) in more {
            self.vips.entry(vip).or_insert(rules);
        }
    }
}

// === impl VipRules ===

impl VipRules {
    fn everywhere(mode: &'static str, service: Option<String>, verdict: ConnectionVerdict) -> Self {
        Self { mode, service, internal: verdict.clone(), external: verdict }
    }
}

// === impl ConnectionVerdict ===

impl ConnectionVerdict {
    /// These endpoints; if there are none, `otherwise`.
    fn of(endpoints: BTreeSet<SocketAddr>, otherwise: Self) -> Self {
        if endpoints.is_empty() { otherwise } else { Self::Endpoints(endpoints) }
    }
}

impl fmt::Display for VipKey {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp (IPv4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            6 => "tcp",
            17 => "udp",
            132 => "sctp",
            _ => "unknown",
        };
        match self.address {
            VipAddress::Ip(address, port) => write!(f, "{}/{protocol}", SocketAddr::new(address, port)),
            VipAddress::NodePort(port) => write!(f, "node port {port}/{protocol} ({})", self.family),
        }
    }
}

impl fmt::Display for ConnectionVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(endpoints) => {
                let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
                f.write_str(&endpoints.join(" "))
            }
            Self::Reject => f.write_str("rejected"),
            Self::Drop => f.write_str("dropped"),
        }
    }
}

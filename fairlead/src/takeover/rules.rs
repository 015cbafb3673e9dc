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
mod nft;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::SocketAddr,
};

use ::iptables::{Table, save_all};
use anyhow::Result;
use backend::{dataplane::Vip, read_rules};
use netlink::ipvs::VirtualServerKey;
use proto::model::IpFamily;
use serde::Serialize;

use super::{
    iptables::names::is_kube_proxys,
    ipvs::{self, KubeProxyServer, ServerKind},
};
use crate::modes::Mode;

/// What kube-proxy's rules do with connections to each VIP.
pub(crate) type KubeProxyRules = BTreeMap<VipKey, VipRules>;

/// A VIP, and the IP family of connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VipKey {
    pub(crate) family: IpFamily,
    pub(crate) vip: Vip,
}

/// What happens to connections to a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VipRules {
    /// The mode of kube-proxy that wrote the rules.
    pub(crate) mode: Mode,
    /// `namespace/name:port`, if the rules contain it.
    pub(crate) service: Option<String>,
    /// For connections from this node and its pods.
    pub(crate) internal: ConnectionVerdict,
    /// For connections from elsewhere.
    pub(crate) external: ConnectionVerdict,
}

/// What happens to a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ConnectionVerdict {
    /// It is sent to one of these endpoints; never empty.
    Endpoints(BTreeSet<SocketAddr>),
    /// It is rejected.
    Reject,
    /// Its packets are dropped.
    Drop,
}

/// The chains of a mode, with their rules.
#[derive(Debug, Default)]
struct Chains(HashMap<String, Vec<RuleTargets>>);

/// What a rule leads to.
#[derive(Debug, Default)]
struct RuleTargets {
    /// Whether it matches only some connections. Where rules distinguish sources, only connections from this node.
    is_conditional: bool,
    endpoints: Vec<SocketAddr>,
    chains: Vec<String>,
}

/// More than the longest path of chains, in case they form a cycle.
const MAX_DEPTH: usize = 4;

impl Chains {
    /// The endpoints that a chain leads to, for connections from this node and its pods, and for connections from
    /// elsewhere. `by_source`: whether its rules distinguish them.
    fn reached(&self, chain: &str, by_source: bool) -> [BTreeSet<SocketAddr>; 2] {
        if !by_source {
            let endpoints = self.endpoints(chain, MAX_DEPTH);
            return [endpoints.clone(), endpoints];
        }
        let [mut internal, mut external] = [BTreeSet::new(), BTreeSet::new()];
        for rule in self.0.get(chain).into_iter().flatten() {
            let endpoints: BTreeSet<_> = rule.chains.iter().flat_map(|next| self.endpoints(next, MAX_DEPTH)).collect();
            // A rule for all connections matches connections from here only if no earlier rule has.
            if rule.is_conditional || internal.is_empty() {
                internal.extend(&endpoints);
            }
            if !rule.is_conditional {
                external.extend(endpoints);
            }
        }
        [internal, external]
    }

    /// The destinations of NAT in a chain and the chains that it leads to.
    fn endpoints(&self, chain: &str, depth: usize) -> BTreeSet<SocketAddr> {
        let mut endpoints = BTreeSet::new();
        for rule in self.0.get(chain).into_iter().flatten() {
            endpoints.extend(&rule.endpoints);
            if depth > 0 {
                endpoints.extend(rule.chains.iter().flat_map(|next| self.endpoints(next, depth - 1)));
            }
        }
        endpoints
    }
}

/// Reads the rules in the network namespace of the calling thread. Changes nothing. Where several modes of kube-proxy
/// have left rules for a VIP, mode iptables takes precedence over nftables, and nftables over ipvs.
///
/// # Errors
/// When a part of the kernel cannot be read. What is not installed or not loaded has no rules.
pub(crate) async fn kube_proxy_rules() -> Result<KubeProxyRules> {
    let mut modes = Vec::new();
    for saved in save_all().await? {
        let rules = read_rules(&saved, &[Table::Filter, Table::Nat], is_kube_proxys)?;
        modes.push(iptables::read(saved.program.family, &rules));
    }
    modes.extend([nft::read()?, read_ipvs()?]);
    // The last value of a key counts.
    Ok(modes.into_iter().rev().flatten().collect())
}

/// Reads virtual servers. The IPVS mode does not distinguish where a connection comes from.
fn read_ipvs() -> Result<KubeProxyRules> {
    let mut vips = KubeProxyRules::new();
    for KubeProxyServer { service, kind, destinations } in ipvs::observe()?.servers {
        // kube-proxy creates none for marks.
        let VirtualServerKey::Address(protocol, socket) = service else { continue };
        let address = socket.ip();
        let port = socket.port();
        let vip = match kind {
            // Each address of the node has a virtual server, all with the same endpoints.
            ServerKind::NodePort => Vip::NodePort { port, protocol },
            ServerKind::OnDevice => Vip::AddressPort { address, port, protocol },
        };
        let active = destinations.iter().filter(|destination| destination.weight > 0);
        // The kernel rejects connections to a virtual server without destinations.
        let verdict = ConnectionVerdict::of(active.map(|it| it.address).collect(), ConnectionVerdict::Reject);
        let key = VipKey { family: IpFamily::of(&address), vip };
        vips.insert(key, VipRules::everywhere(Mode::Ipvs, None, verdict));
    }
    Ok(vips)
}

impl VipRules {
    /// `endpoints`: for connections from this node and its pods, and for others. Without an endpoint the
    /// packet is dropped.
    fn new(mode: Mode, service: Option<String>, endpoints: [BTreeSet<SocketAddr>; 2]) -> Self {
        let [internal, external] = endpoints.map(|endpoints| ConnectionVerdict::of(endpoints, ConnectionVerdict::Drop));
        Self { mode, service, internal, external }
    }

    fn everywhere(mode: Mode, service: Option<String>, verdict: ConnectionVerdict) -> Self {
        Self { mode, service, internal: verdict.clone(), external: verdict }
    }
}

impl ConnectionVerdict {
    /// These endpoints; if there are none, `otherwise`.
    fn of(endpoints: BTreeSet<SocketAddr>, otherwise: Self) -> Self {
        if endpoints.is_empty() { otherwise } else { Self::Endpoints(endpoints) }
    }
}

impl fmt::Display for VipKey {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp (IPv4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vip {
            Vip::NodePort { .. } => write!(f, "{} ({})", self.vip, self.family),
            vip => vip.fmt(f),
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

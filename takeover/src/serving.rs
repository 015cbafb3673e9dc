//! What kube-proxy's rules do with new connections, whichever mode wrote them: for each way in, which endpoints.
//!
//! ```text
//!   iptables-save ── KUBE-SERVICES, KUBE-NODEPORTS ─▶ chains ─▶ DNAT ──┐
//!   nf_tables ────── service-ips, service-nodeports ▶ chains ─▶ dnat ──┼──▶ Way ─▶ Served
//!   ip_vs ────────── virtual servers ─────────────▶ destinations ──────┘
//! ```
//!
//! Read as far as it matters for who is reached: not marks, not masquerading, not session affinity.

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

use anyhow::Result;
use serde::Serialize;

use crate::Family;

/// All ways in. What several modes have left is together; the first that knows a way has it.
#[derive(Debug, Default)]
pub struct Serving {
    /// What becomes of connections.
    pub ways: BTreeMap<Way, Served>,
}

/// What a connection is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Way {
    /// Whose packets.
    pub family: Family,
    /// Where to.
    pub to: To,
    /// The IANA number of the protocol.
    pub protocol: u8,
}

/// An address, or any of the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum To {
    /// A cluster IP, external IP or load-balancer IP, and its port.
    Vip(IpAddr, u16),
    /// A node port.
    NodePort(u16),
}

/// Where a connection may be sent: from this node and its pods, and from outside.
#[derive(Debug, Default)]
struct Reached {
    inside: BTreeSet<SocketAddr>,
    outside: BTreeSet<SocketAddr>,
}

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Served {
    /// In which mode's rules: `iptables`, `nftables`, `ipvs`.
    pub mode: &'static str,
    /// `namespace/name:port`, where the rules say so.
    pub service: Option<String>,
    /// That of a pod of this node, or of the node itself.
    pub inside: Outcome,
    /// That of everybody else.
    pub outside: Outcome,
}

/// Where a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// At one of these; never empty.
    Endpoints(BTreeSet<SocketAddr>),
    /// Nowhere, and the client is told.
    Reject,
    /// Nowhere, in silence.
    Drop,
}

impl Reached {
    /// Whoever connects.
    fn by_all(endpoints: BTreeSet<SocketAddr>) -> Self {
        Self { inside: endpoints.clone(), outside: endpoints }
    }

    /// A rule says so of what comes from here.
    fn add_inside(&mut self, endpoints: BTreeSet<SocketAddr>) {
        self.inside.extend(endpoints);
    }

    /// A rule says so of everybody: of what comes from here too, unless a rule before it has.
    fn add_everywhere(&mut self, endpoints: BTreeSet<SocketAddr>) {
        if self.inside.is_empty() {
            self.inside.extend(&endpoints);
        }
        self.outside.extend(endpoints);
    }
}

impl Serving {
    /// Reads it, in the network namespace of the calling thread. Blocks; changes nothing.
    ///
    /// # Errors
    /// When some part of the kernel cannot be asked. What is not installed or not loaded holds nothing.
    pub fn find() -> Result<Self> {
        let mut serving = Self::default();
        for (program, saved) in crate::iptables::save_all()? {
            serving.merge(iptables::read(program.family, &saved));
        }
        for family in Family::BOTH {
            serving.merge(nft::read(family)?);
        }
        serving.merge(ipvs::read()?);
        Ok(serving)
    }

    fn merge(&mut self, more: BTreeMap<Way, Served>) {
        for (way, served) in more {
            self.ways.entry(way).or_insert(served);
        }
    }
}

impl Served {
    fn everywhere(mode: &'static str, service: Option<String>, outcome: Outcome) -> Self {
        Self { mode, service, inside: outcome.clone(), outside: outcome }
    }
}

impl Outcome {
    /// One of these; without any, `otherwise`.
    fn of(endpoints: BTreeSet<SocketAddr>, otherwise: Self) -> Self {
        if endpoints.is_empty() { otherwise } else { Self::Endpoints(endpoints) }
    }
}

impl fmt::Display for Way {
    /// `10.96.0.1:80/tcp`, `node port 30080/tcp (ipv4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            6 => "tcp",
            17 => "udp",
            132 => "sctp",
            _ => "unknown",
        };
        match self.to {
            To::Vip(address, port) => write!(f, "{}/{protocol}", SocketAddr::new(address, port)),
            To::NodePort(port) => write!(f, "node port {port}/{protocol} ({})", self.family),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(endpoints) => {
                let words: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(" "))
            }
            Self::Reject => f.write_str("refused"),
            Self::Drop => f.write_str("dropped"),
        }
    }
}

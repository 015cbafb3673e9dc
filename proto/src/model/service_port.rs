//! The service port, which is the same on every node, and its key.

use std::{
    cmp::Ordering,
    fmt,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    str::FromStr,
    sync::Arc,
};

use ipnet::IpNet;
use serde::Serialize;

use super::{IpFamily, PerFamily};

/// A transport protocol, as in Kubernetes `ServicePort.protocol`. The values are IANA protocol numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum Protocol {
    /// `IPPROTO_TCP`
    Tcp = 6,
    /// `IPPROTO_UDP`
    Udp = 17,
    /// `IPPROTO_SCTP`
    Sctp = 132,
}

/// Identifies a [`ServicePort`] in the cluster. Ordered by its fields; clones share the strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ServicePortKey {
    /// Service `metadata.namespace`.
    pub namespace: Arc<str>,
    /// Service `metadata.name`.
    pub name: Arc<str>,
    /// `spec.ports[].name`; empty if the port has no name.
    pub port_name: Arc<str>,
    /// `spec.ports[].protocol`.
    pub protocol: Protocol,
}

/// `internalTrafficPolicy` or `externalTrafficPolicy` of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum TrafficPolicy {
    /// Traffic goes to endpoints on any node, subject to topology hints.
    #[default]
    Cluster,
    /// Traffic goes only to endpoints on the node that received it.
    Local,
}

/// One port of a Service. Its endpoints are in [`super::Pool`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// The key.
    pub key: ServicePortKey,
    /// `spec.ports[].port`: the port at every VIP.
    pub port: NonZeroU16,
    /// `spec.clusterIPs`: at most one per family.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// `spec.ports[].nodePort`.
    pub node_port: Option<NonZeroU16>,
    /// `spec.externalIPs`, sorted.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` VIP or none, sorted.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, sorted: the sources allowed at `load_balancer_ips`. No range of a family: all.
    pub source_ranges: Vec<IpNet>,
    /// `spec.internalTrafficPolicy`: for traffic to the cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`: for traffic to the node port, external IPs and load-balancer IPs.
    pub external_policy: TrafficPolicy,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds` under `sessionAffinity: ClientIP`.
    pub affinity_seconds: Option<NonZeroU32>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Whether any endpoint in the cluster can serve. If a pool is empty, true drops packets and false rejects them.
    pub any_endpoints: PerFamily<bool>,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The IANA protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The protocol with an IANA number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// The lower-case name, as in `nft` and `iptables`.
    #[must_use]
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    /// Parses the upper-case name of the Kubernetes API, such as `TCP`.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|protocol| protocol.to_string() == name);
        known.ok_or_else(|| format!("unknown protocol {name:?}: expected TCP, UDP or SCTP"))
    }
}

impl Ord for ServicePortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most comparisons are with clones, or within a namespace.
        let text = |one: &Arc<str>, other: &Arc<str>| {
            if Arc::ptr_eq(one, other) { Ordering::Equal } else { one.cmp(other) }
        };
        text(&self.namespace, &other.namespace)
            .then_with(|| text(&self.name, &other.name))
            .then_with(|| text(&self.port_name, &other.port_name))
            .then_with(|| self.protocol.cmp(&other.protocol))
    }
}

impl PartialOrd for ServicePortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl ServicePortKey {
    /// Makes a key.
    #[must_use]
    pub fn new(
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        port_name: impl Into<Arc<str>>,
        protocol: Protocol,
    ) -> Self {
        Self { namespace: namespace.into(), name: name.into(), port_name: port_name.into(), protocol }
    }
}

impl fmt::Display for ServicePortKey {
    /// `namespace/name:port-name/tcp`, or `namespace/name/tcp` for a port without a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if !self.port_name.is_empty() {
            write!(f, ":{}", self.port_name)?;
        }
        write!(f, "/{}", self.protocol.lower())
    }
}

impl ServicePort {
    /// A service port without any VIP, with default policies.
    #[must_use]
    pub fn new(key: ServicePortKey, port: NonZeroU16) -> Self {
        Self {
            key,
            port,
            cluster_ips: PerFamily::default(),
            node_port: None,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            internal_policy: TrafficPolicy::default(),
            external_policy: TrafficPolicy::default(),
            affinity_seconds: None,
            health_check_node_port: None,
            any_endpoints: PerFamily::default(),
        }
    }

    /// Whether it is reachable from outside the cluster: by a node port, external IP or load-balancer IP.
    #[must_use]
    pub fn externally_accessible(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// The IPs of a family that `external_policy` applies to: external IPs, then load-balancer IPs.
    pub fn external_policy_ips(&self, family: IpFamily) -> impl Iterator<Item = IpAddr> + '_ {
        let ips = self.external_ips.iter().chain(&self.load_balancer_ips);
        ips.copied().filter(move |ip| IpFamily::of(ip) == family)
    }
}

//! The service port, which is the same on every node.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;
use serde::Serialize;

use super::{IpFamily, IpvsScheduler, PerFamily, ServicePortKey};

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
    /// Annotation `fairlead.io/ipvs-scheduler`, for IPVS only; `None`: the backend's default.
    pub ipvs_scheduler: Option<IpvsScheduler>,
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
            ipvs_scheduler: None,
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

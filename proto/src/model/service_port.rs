//! What a service port is, the same for every node.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
};

use ipnet::IpNet;
use serde::Serialize;

use super::{IpFamily, IpvsScheduler, PerFamily, ServicePortKey};

/// Which endpoints may serve a class of traffic: `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum TrafficPolicy {
    /// Endpoints anywhere in the cluster (narrowed by topology hints).
    #[default]
    Cluster,
    /// Only endpoints on the node that the traffic reached.
    Local,
}

/// One port of a Service. Endpoints are apart, in [`super::Pool`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// Identity.
    pub key: ServicePortKey,
    /// `spec.ports[].port`: the port at every VIP.
    pub port: NonZeroU16,
    /// `spec.clusterIPs`: at most one of each family.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// `spec.ports[].nodePort`.
    pub node_port: Option<NonZeroU16>,
    /// `spec.externalIPs`, sorted.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is VIP or absent, sorted.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, sorted: who may use `load_balancer_ips`. A family without any is unrestricted.
    pub source_ranges: Vec<IpNet>,
    /// `spec.internalTrafficPolicy`: for traffic to the cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`: for traffic to the node port, external and load-balancer IPs.
    pub external_policy: TrafficPolicy,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds` under `sessionAffinity: ClientIP`.
    pub affinity_seconds: Option<NonZeroU32>,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Whether anything anywhere in the cluster could serve. Decides between drop and reject when a pool is empty.
    pub any_endpoints: PerFamily<bool>,
    /// Annotation `fairlead.io/ipvs-scheduler`, for IPVS only; `None`: as the backend does by default.
    pub ipvs_scheduler: Option<IpvsScheduler>,
}

impl ServicePort {
    /// A service port with nothing but an identity: no VIP, no policy, no endpoint.
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

    /// Whether traffic from outside the cluster has a way in: a node port, an external IP or a load-balancer IP.
    #[must_use]
    pub fn externally_accessible(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// The external and load-balancer IPs of one family: those that follow `external_policy`.
    pub fn external_policy_ips(&self, family: IpFamily) -> impl Iterator<Item = IpAddr> + '_ {
        let ips = self.external_ips.iter().chain(&self.load_balancer_ips);
        ips.copied().filter(move |ip| IpFamily::of(ip) == family)
    }
}

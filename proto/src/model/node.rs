//! Information about the node and the cluster, so that backends need no access to the Kubernetes API.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::Serialize;

use super::IpFamily;

/// The node that a stream is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// Node `metadata.name`.
    pub name: Arc<str>,
    /// Node `status.addresses`: InternalIPs, then ExternalIPs, in that order, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// Node `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// Label `topology.kubernetes.io/zone`; empty if unknown.
    pub zone: Arc<str>,
    /// Whether load balancers may send new traffic to the node: false if the Node object does not exist, is being
    /// deleted, or is tainted `ToBeDeletedByClusterAutoscaler`.
    pub eligible: bool,
}

/// Information about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterInfo {
    /// The ranges of cluster IPs: ServiceCIDR `spec.cidrs`, sorted.
    pub service_cidrs: Vec<IpNet>,
}

impl NodeInfo {
    /// The info of a node without a Node object.
    #[must_use]
    pub fn unknown(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), addresses: Vec::new(), pod_cidrs: Vec::new(), zone: "".into(), eligible: false }
    }

    /// The primary address of a family: the first InternalIP, else the first ExternalIP. Skips loopback addresses.
    #[must_use]
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| IpFamily::of(address) == family && !address.is_loopback())
    }
}

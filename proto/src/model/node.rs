//! Facts about the receiving node and about the cluster, so that an agent needs no access to the Kubernetes API.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::Serialize;

use super::IpFamily;

/// The receiving node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// Node `metadata.name`.
    pub name: Arc<str>,
    /// Node `status.addresses`: InternalIPs, then ExternalIPs, in their order there, each once.
    pub addresses: Vec<IpAddr>,
    /// Node `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// Label `topology.kubernetes.io/zone`; empty when unknown.
    pub zone: Arc<str>,
    /// Whether load balancers may go on sending new traffic: false while the Node object is unknown, being deleted, or
    /// tainted `ToBeDeletedByClusterAutoscaler`.
    pub eligible: bool,
}

/// Facts about the whole cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterInfo {
    /// Where cluster IPs are allocated from: ServiceCIDR `spec.cidrs`, sorted.
    pub service_cidrs: Vec<IpNet>,
}

impl NodeInfo {
    /// A node of which nothing but the name is known.
    #[must_use]
    pub fn unknown(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), addresses: Vec::new(), pod_cidrs: Vec::new(), zone: "".into(), eligible: false }
    }

    /// The node's primary address of a family: the first InternalIP, else the first ExternalIP. The loopback address is none.
    #[must_use]
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| IpFamily::of(address) == family && !address.is_loopback())
    }
}

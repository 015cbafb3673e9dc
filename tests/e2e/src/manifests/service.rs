//! A builder of a Service with its EndpointSlices.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Value, json};

use super::Endpoint;
use crate::{
    cluster::Pod,
    plan::{DualStack, IpFamily},
    wire::Protocol,
};

/// A Service and its endpoints. Clone and change it to write its next state.
#[derive(Clone, Debug)]
pub struct Service {
    namespace: String,
    name: String,
    cluster_ips: Vec<IpAddr>,
    ports: Vec<Port>,
    external_ips: Vec<IpAddr>,
    load_balancer_ips: Vec<IpAddr>,
    source_ranges: Vec<String>,
    internal_policy: TrafficPolicy,
    external_policy: TrafficPolicy,
    affinity_seconds: Option<u32>,
    health_check_node_port: Option<u16>,
    endpoints: Vec<Endpoint>,
    annotations: BTreeMap<String, String>,
}

/// A traffic policy, internal or external.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Endpoints anywhere.
    Cluster,
    /// Endpoints on the node that receives the packet.
    Local,
}

#[derive(Clone, Debug)]
struct Port {
    name: String,
    protocol: Protocol,
    port: u16,
    target_port: u16,
    node_port: Option<u16>,
}

// === impl Service ===

impl Service {
    /// A Service in the namespace `default`, without ports, addresses and endpoints yet.
    pub fn new(name: &str) -> Self {
        Self {
            namespace: "default".into(),
            name: name.into(),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            health_check_node_port: None,
            endpoints: Vec::new(),
            annotations: BTreeMap::new(),
        }
    }

    /// Adds an annotation.
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.into(), value.into());
        self
    }

    /// Sets its namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets its cluster IPs, in both families.
    pub fn cluster_ip(mut self, address: DualStack) -> Self {
        self.cluster_ips = address.both().to_vec();
        self
    }

    /// Sets its cluster IP, in one family only.
    pub fn single_stack(mut self, address: IpAddr) -> Self {
        self.cluster_ips = vec![address];
        self
    }

    /// Adds a port that is named after its protocol and number (`tcp-80`).
    pub fn port(mut self, protocol: Protocol, port: u16, target_port: u16) -> Self {
        let name = format!("{}-{port}", protocol.kubernetes().to_lowercase());
        self.ports.push(Port { name, protocol, port, target_port, node_port: None });
        self
    }

    /// Adds a port for each protocol.
    pub fn port_all(self, port: u16, target_port: u16) -> Self {
        Protocol::ALL.into_iter().fold(self, |service, protocol| service.port(protocol, port, target_port))
    }

    /// Sets the node port of the port added last, or, after [`Self::port_all`], of those for all protocols.
    pub fn node_port(mut self, node_port: u16) -> Self {
        if let Some(last) = self.ports.last().map(|port| port.port) {
            let same = self.ports.iter_mut().filter(|port| port.port == last);
            same.for_each(|port| port.node_port = Some(node_port));
        }
        self
    }

    /// Sets its external IPs, in both families.
    pub fn external_ip(mut self, address: DualStack) -> Self {
        self.external_ips = address.both().to_vec();
        self
    }

    /// Sets its load-balancer IPs, in both families, and thereby its type LoadBalancer.
    pub fn load_balancer_ip(mut self, address: DualStack) -> Self {
        self.load_balancer_ips = address.both().to_vec();
        self
    }

    /// Sets the source ranges of its load-balancer IPs.
    pub fn source_ranges(mut self, ranges: &[&str]) -> Self {
        self.source_ranges = ranges.iter().map(|&range| range.to_owned()).collect();
        self
    }

    /// Sets its internal traffic policy.
    pub fn internal_policy(mut self, policy: TrafficPolicy) -> Self {
        self.internal_policy = policy;
        self
    }

    /// Sets its external traffic policy.
    pub fn external_policy(mut self, policy: TrafficPolicy) -> Self {
        self.external_policy = policy;
        self
    }

    /// Sets session affinity by client IP with this timeout.
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.affinity_seconds = Some(seconds);
        self
    }

    /// Sets the node port for health checks of a load balancer.
    pub fn health_check_node_port(mut self, port: u16) -> Self {
        self.health_check_node_port = Some(port);
        self
    }

    /// Replaces its endpoints by these pods, ready.
    pub fn pods<'a>(self, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        self.endpoints(pods.into_iter().map(Endpoint::of))
    }

    /// Replaces its endpoints.
    pub fn endpoints(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// `<namespace>/<name>`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The name of its file, without `.yaml`.
    pub(crate) fn file_stem(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }

    /// The Service, then an EndpointSlice for each of its families.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let slices = self.families().map(|family| self.slice(family));
        [self.service()].into_iter().chain(slices).collect()
    }

    fn families(&self) -> impl Iterator<Item = IpFamily> {
        self.cluster_ips.iter().map(IpFamily::of)
    }

    fn kind(&self) -> &'static str {
        if !self.load_balancer_ips.is_empty() {
            "LoadBalancer"
        } else if self.ports.iter().any(|port| port.node_port.is_some()) {
            "NodePort"
        } else {
            "ClusterIP"
        }
    }

    fn service(&self) -> Value {
        let families = self.families().map(|family| family.to_string()).collect::<Vec<_>>();
        let mut spec = json!({
            "type": self.kind(),
            "clusterIP": self.cluster_ips.first(),
            "clusterIPs": self.cluster_ips,
            "ipFamilies": families,
            "ipFamilyPolicy": if families.len() == 2 { "RequireDualStack" } else { "SingleStack" },
            "internalTrafficPolicy": self.internal_policy.kubernetes(),
            "ports": self.ports.iter().map(Port::service_object).collect::<Vec<_>>(),
            "selector": { "app": self.name },
            "sessionAffinity": "None",
        });
        // The API server accepts and sets this field only for Services with external addresses.
        if self.kind() != "ClusterIP" || !self.external_ips.is_empty() {
            spec["externalTrafficPolicy"] = json!(self.external_policy.kubernetes());
        }
        if !self.external_ips.is_empty() {
            spec["externalIPs"] = json!(self.external_ips);
        }
        if !self.source_ranges.is_empty() {
            spec["loadBalancerSourceRanges"] = json!(self.source_ranges);
        }
        if let Some(port) = self.health_check_node_port {
            spec["healthCheckNodePort"] = json!(port);
        }
        if let Some(seconds) = self.affinity_seconds {
            spec["sessionAffinity"] = json!("ClientIP");
            spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": seconds } });
        }
        let ingress = self.load_balancer_ips.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
        let load_balancer = match ingress.collect::<Vec<_>>() {
            none if none.is_empty() => json!({}),
            ingress => json!({ "ingress": ingress }),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name, "namespace": self.namespace, "annotations": self.annotations },
            "spec": spec,
            "status": { "loadBalancer": load_balancer },
        })
    }

    fn slice(&self, family: IpFamily) -> Value {
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.object(family)).collect::<Vec<_>>();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name, family.to_string().to_lowercase()),
                "namespace": self.namespace,
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": family.to_string(),
            "ports": self.ports.iter().map(Port::slice_object).collect::<Vec<_>>(),
            "endpoints": endpoints,
        })
    }
}

// === impl TrafficPolicy ===

impl TrafficPolicy {
    fn kubernetes(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

// === impl Port ===

impl Port {
    fn service_object(&self) -> Value {
        let mut object = json!({
            "name": self.name,
            "protocol": self.protocol.kubernetes(),
            "port": self.port,
            "targetPort": self.target_port,
        });
        if let Some(node_port) = self.node_port {
            object["nodePort"] = json!(node_port);
        }
        object
    }

    fn slice_object(&self) -> Value {
        json!({ "name": self.name, "protocol": self.protocol.kubernetes(), "port": self.target_port })
    }
}

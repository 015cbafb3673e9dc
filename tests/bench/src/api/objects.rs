//! The objects of a large cluster as an API server writes them, including the fields that Fairlead does not read.

use std::net::Ipv4Addr;

use fake_api_server::Resource;
use serde_json::{Value, json};

const FIRST_POD: u32 = 0x0a80_0000;
const FIRST_CLUSTER_IP: u32 = 0x0a40_0001;
const FIRST_NODE_IP: u32 = 0xc0a8_0000;

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSize {
    pub(super) nodes: u32,
    pub(super) services: u32,
    /// Endpoints of each service, in one slice.
    pub(super) endpoints: u32,
}

// === impl ClusterSize ===

impl ClusterSize {
    /// All objects.
    pub(super) fn objects(self) -> impl Iterator<Item = (Resource, Value)> {
        let cidr = json!({"metadata": metadata("kubernetes", None, &json!({})), "spec": {"cidrs": ["10.64.0.0/12"]}});
        let nodes = (0..self.nodes).map(|number| (Resource::Node, node(number)));
        let services = (0..self.services).map(|number| (Resource::Service, service(number)));
        let slices = (0..self.services).map(move |number| (Resource::EndpointSlice, self.slice(number)));
        nodes.chain(services).chain(slices).chain([(Resource::ServiceCidr, cidr)])
    }

    fn slice(self, number: u32) -> Value {
        let labels = json!({
            "kubernetes.io/service-name": service_name(number),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        });
        let endpoints = (0..self.endpoints).map(|n| {
            let pod = number * self.endpoints + n;
            json!({
                "addresses": [ip(FIRST_POD + pod)],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": node_name(pod % self.nodes),
                "targetRef": {
                    "kind": "Pod",
                    "name": format!("{}-7d4b9c6f5-{pod:05}", service_name(number)),
                    "namespace": "bench",
                    "uid": format!("11111111-2222-3333-4444-{pod:012}"),
                },
                "zone": zone(pod % self.nodes),
            })
        });
        json!({
            "metadata": metadata(&format!("{}-x7k2p", service_name(number)), Some("bench"), &labels),
            "addressType": "IPv4",
            "endpoints": endpoints.collect::<Vec<_>>(),
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        })
    }
}

fn service(number: u32) -> Value {
    let address = ip(FIRST_CLUSTER_IP + number);
    json!({
        "metadata": metadata(&service_name(number), Some("bench"), &json!({"app": service_name(number)})),
        "spec": {
            "clusterIP": address,
            "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": service_name(number)},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}

fn node(number: u32) -> Value {
    let labels = json!({
        "kubernetes.io/hostname": node_name(number),
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone(number),
    });
    let images = (0..40).map(|image| {
        let digest = "0123456789abcdef".repeat(4);
        let name = format!("registry.example/team/image-{image}");
        json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.2.3")], "sizeBytes": 123_456_789})
    });
    let pod_cidr = format!("{}/24", ip(FIRST_POD + number * 256));
    json!({
        "metadata": metadata(&node_name(number), None, &labels),
        "spec": {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": ip(FIRST_NODE_IP + number)},
                {"type": "Hostname", "address": node_name(number)},
            ],
            "images": images.collect::<Vec<_>>(),
        },
    })
}

fn metadata(name: &str, namespace: Option<&str>, labels: &Value) -> Value {
    let fields = (0..12).map(|field| (format!("f:field-{field}"), json!({"f:name": {}, "f:value": {}})));
    json!({
        "name": name,
        "namespace": namespace,
        "uid": "11111111-2222-3333-4444-555555555555",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        "managedFields": [{
            "manager": "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": fields.collect::<serde_json::Map<_, _>>(),
        }],
    })
}

fn service_name(number: u32) -> String {
    format!("service-{number:05}")
}

fn node_name(number: u32) -> String {
    format!("node-{number:04}.cluster.example")
}

fn zone(node: u32) -> String {
    format!("zone-{}", node % 3)
}

fn ip(number: u32) -> String {
    Ipv4Addr::from_bits(number).to_string()
}

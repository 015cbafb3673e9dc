//! The objects of a random cluster on the API server that all proxies watch, and when a proxy has programmed them.

use std::{collections::BTreeMap, net::IpAddr};

use e2e::{DualStack, IpFamily, plan};
use fake_api_server::{ApiServer, Resource};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Endpoint, NODES, Service, ServiceKind, Slice};

/// Then numbers begin again: the port of the marker must fit.
const MAX_CHANGES: u16 = 60_000;
pub(crate) const NAMESPACE: &str = "default";

/// The API server, and what is in it. Each change ends with a marker: a Service and a slice with numbers that no
/// earlier change had, so that a proxy that has programmed them has programmed all before.
#[derive(Debug)]
pub(crate) struct Api {
    server: ApiServer,
    objects: BTreeMap<(Resource, String), Value>,
    changes: u16,
}

/// The VIP and the endpoint of the last change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    pub(crate) vip: DualStack,
    pub(crate) port: u16,
    pub(crate) endpoint: DualStack,
}

// === impl Api ===

impl Api {
    /// An API server with the nodes of the cluster.
    pub(crate) fn new() -> Self {
        let server = ApiServer::in_process();
        for number in 1..=NODES {
            let _ = server.put(Resource::Node, node(number));
        }
        let cidrs = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": plan::SERVICE_CIDRS}});
        let _ = server.put(Resource::ServiceCidr, cidrs);
        Self { server, objects: BTreeMap::new(), changes: 0 }
    }

    pub(crate) fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Replaces all Services and slices.
    pub(crate) fn publish(&mut self, cluster: &Cluster) -> Marker {
        self.changes = self.changes % MAX_CHANGES + 1;
        let marker = Marker::new(self.changes);
        let mut wanted = objects(cluster);
        for resource in [Resource::Service, Resource::EndpointSlice] {
            let former = self.objects.extract_if((resource, String::new()).., |(of, name), _| {
                *of == resource && !wanted.contains_key(&(resource, name.clone()))
            });
            for ((resource, name), _) in former {
                self.server.delete(resource, NAMESPACE, &name);
            }
        }
        wanted.retain(|key, object| self.objects.get(key) != Some(object));
        for ((resource, name), object) in wanted {
            let _ = self.server.put(resource, object.clone());
            self.objects.insert((resource, name), object);
        }
        for (resource, object) in marker.objects() {
            let _ = self.server.put(resource, object);
        }
        marker
    }
}

// === impl Marker ===

impl Marker {
    fn new(change: u16) -> Self {
        let [high, low] = change.to_be_bytes();
        let endpoint =
            DualStack::new([10, 244, 200 + high % 50, low].into(), [0xfd00, 0x10, 0x244, 0xff, 0, 0, 0, change].into());
        Self { vip: plan::cluster_ip(99), port: 1_000 + change, endpoint }
    }

    fn objects(self) -> Vec<(Resource, Value)> {
        let ips = self.vip.both();
        let service = json!({
            "metadata": {"namespace": NAMESPACE, "name": "marker"},
            "spec": {
                "type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"],
                "ports": [{"protocol": "TCP", "port": self.port, "targetPort": 80}],
            },
        });
        let mut objects = vec![(Resource::Service, service)];
        for ip in self.endpoint.both() {
            let endpoint = json!({"addresses": [ip], "conditions": {"ready": true}});
            let ports = json!([{"name": "", "protocol": "TCP", "port": 80}]);
            objects.push((
                Resource::EndpointSlice,
                slice_object("marker", IpFamily::of(&ip) as usize, &ip, ports, vec![endpoint]),
            ));
        }
        objects
    }
}

// === objects ===

pub(crate) fn objects(cluster: &Cluster) -> BTreeMap<(Resource, String), Value> {
    let mut objects = BTreeMap::new();
    for service in &cluster.services {
        objects.insert((Resource::Service, service.name.clone()), service_object(service));
        for (number, slice) in service.slices.iter().enumerate() {
            let name = slice_name(&service.name, number, slice.family);
            objects.insert((Resource::EndpointSlice, name), of_slice(service, number, slice));
        }
    }
    objects
}

fn node(number: u8) -> Value {
    let name = node_name(number);
    let addresses = plan::node(number).both().map(|ip| json!({"type": "InternalIP", "address": ip}));
    let cidrs = plan::pod_cidrs(number);
    let labels = json!({"topology.kubernetes.io/zone": zone(number), "kubernetes.io/hostname": name});
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {"addresses": addresses},
    })
}

/// The name of a node, from 1.
pub(crate) fn node_name(number: u8) -> String {
    format!("node-{}", char::from(b'a' + number - 1))
}

fn zone(number: u8) -> String {
    format!("zone-{number}")
}

fn service_object(service: &Service) -> Value {
    let policy = |is_local: bool| if is_local { "Local" } else { "Cluster" };
    let ports = service.ports.iter().map(|port| {
        let mut object = json!({"protocol": port.protocol.to_string(), "port": port.number, "targetPort": 8080});
        if !port.name.is_empty() {
            object["name"] = port.name.clone().into();
        }
        if let Some(node_port) = port.node_port {
            object["nodePort"] = node_port.into();
        }
        object
    });
    let ports: Vec<_> = ports.collect();
    let families: Vec<_> = service.families().map(|family| family.to_string()).collect();
    let mut spec = json!({
        "clusterIP": service.cluster_ips[0], "clusterIPs": service.cluster_ips, "ipFamilies": families,
        "ports": ports, "internalTrafficPolicy": policy(service.is_internal_local), "externalIPs": service.external_ips,
        "type": "ClusterIP",
    });
    match service.kind {
        ServiceKind::ClusterIp => {}
        ServiceKind::Headless => {
            spec["clusterIP"] = "None".into();
            spec["clusterIPs"] = json!(["None"]);
        }
        ServiceKind::NodePort => spec["type"] = "NodePort".into(),
        ServiceKind::LoadBalancer => spec["type"] = "LoadBalancer".into(),
    }
    if matches!(service.kind, ServiceKind::NodePort | ServiceKind::LoadBalancer) {
        spec["externalTrafficPolicy"] = policy(service.is_external_local).into();
    }
    if let Some(seconds) = service.affinity_seconds {
        spec["sessionAffinity"] = "ClientIP".into();
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
    }
    if !service.source_ranges.is_empty() {
        spec["loadBalancerSourceRanges"] = service.source_ranges.iter().map(ToString::to_string).collect();
    }
    let ingress = service
        .load_balancer_ips
        .iter()
        .map(|ip| json!({"ip": ip.ip, "ipMode": if ip.is_proxy { "Proxy" } else { "VIP" }}));
    let ingress: Vec<_> = ingress.collect();
    let mut labels = json!({});
    if service.is_foreign {
        labels["service.kubernetes.io/service-proxy-name"] = "another".into();
    }
    json!({
        "metadata": {"namespace": NAMESPACE, "name": service.name, "labels": labels},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

fn of_slice(service: &Service, number: usize, slice: &Slice) -> Value {
    let ports = slice
        .ports
        .iter()
        .map(|(name, protocol, port)| json!({"name": name, "protocol": protocol.to_string(), "port": port}));
    let ports: Vec<_> = ports.collect();
    let any = if slice.family == IpFamily::V4 { plan::OUTSIDE.v4.into() } else { plan::OUTSIDE.v6.into() };
    slice_object(&service.name, number, &any, ports.into(), slice.endpoints.iter().map(endpoint_object).collect())
}

/// Contains the family: the address type of a slice cannot change.
fn slice_name(service: &str, number: usize, family: IpFamily) -> String {
    format!("{service}-{number}-{}", family.to_string().to_lowercase())
}

fn slice_object(service: &str, number: usize, ip: &IpAddr, ports: Value, endpoints: Vec<Value>) -> Value {
    json!({
        "metadata": {
            "namespace": NAMESPACE,
            "name": slice_name(service, number, IpFamily::of(ip)),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": IpFamily::of(ip).to_string(),
        "ports": ports,
        "endpoints": endpoints,
    })
}

fn endpoint_object(endpoint: &Endpoint) -> Value {
    let mut conditions = json!({});
    for (name, value) in
        [("ready", endpoint.ready), ("serving", endpoint.serving), ("terminating", endpoint.terminating)]
    {
        if let Some(value) = value {
            conditions[name] = value.into();
        }
    }
    let mut object = json!({"addresses": [endpoint.ip], "conditions": conditions});
    if let Some(node) = endpoint.node {
        object["nodeName"] = node_name(node).into();
        object["zone"] = zone(node).into();
    }
    let names = |nodes: &[u8], name: fn(u8) -> String| -> Value {
        nodes.iter().map(|node| json!({"name": name(*node)})).collect()
    };
    if !endpoint.zone_hints.is_empty() {
        object["hints"]["forZones"] = names(&endpoint.zone_hints, zone);
    }
    if !endpoint.node_hints.is_empty() {
        object["hints"]["forNodes"] = names(&endpoint.node_hints, node_name);
    }
    object
}

//! Random objects of the cluster: few Services with few endpoints, so that changes concern each other.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use backend::dataplane::Vip;
use fake_api_server::{ApiServer, Resource};
use fastrand::Rng;
use proto::model::{IpFamily, Protocol};
use serde_json::{Value, json};

use crate::oracle::ServicePorts;

const NAMESPACES: [&str; 2] = ["shop", "infra"];
/// The label of Services that another proxy serves.
pub(crate) const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
const ZONES: [&str; 2] = ["zone-a", "zone-b"];
/// How many addresses a Service has on each node. Their numbers show the Service.
const HOSTS: usize = 7;

/// The first one contains all cluster IPs.
const SERVICE_CIDRS: [[&str; 2]; 2] = [["10.96.0.0/16", "fd00:96::/112"], ["10.97.0.0/24", "fd00:97::/120"]];

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterSize {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
}

/// Makes one random change. Returns what it was.
pub(crate) fn change(api: &ApiServer, rng: &mut Rng, size: ClusterSize) -> String {
    let service = rng.usize(..size.services);
    match rng.u8(0..21) {
        0..4 => {
            let _ = api.put(Resource::Service, self::service(rng, service));
            format!("put Service {service}")
        }
        4 => {
            api.delete(Resource::Service, namespace(service), &service_name(service));
            format!("delete Service {service}")
        }
        5..16 => {
            let part = rng.usize(..3);
            put_slice(api, rng, service, part, size.nodes);
            format!("put slice {part} of Service {service}")
        }
        16 => {
            let part = rng.usize(..3);
            delete_slice(api, service, part);
            format!("delete slice {part} of Service {service}")
        }
        17 | 18 => {
            let number = rng.usize(..size.nodes);
            put_node(api, rng, number);
            format!("put Node {number}")
        }
        19 => {
            let number = rng.usize(..size.nodes);
            api.delete(Resource::Node, "", &node_name(number));
            format!("delete Node {number}")
        }
        _ => {
            let number = rng.usize(..SERVICE_CIDRS.len());
            if rng.bool() {
                put_service_cidr(api, number);
                format!("put ServiceCIDR {number}")
            } else {
                api.delete(Resource::ServiceCidr, "", &service_cidr_name(number));
                format!("delete ServiceCIDR {number}")
            }
        }
    }
}

/// Changes the endpoints of one Service so that each node notices.
pub(crate) fn replace_endpoints(api: &ApiServer, rng: &mut Rng, size: ClusterSize) -> String {
    let service = rng.usize(..size.services);
    let _ = api.put(Resource::Service, self::service(rng, service));
    (0..3).for_each(|part| put_slice(api, rng, service, part, size.nodes));
    format!("replace Service {service} and its slices")
}

/// Deletes all slices of all Services.
pub(crate) fn delete_all_slices(api: &ApiServer, size: ClusterSize) {
    for service in 0..size.services {
        (0..3).for_each(|part| delete_slice(api, service, part));
    }
}

/// An address of a random endpoint, and its node; `None`: there is none.
pub(crate) fn any_pod(api: &ApiServer, rng: &mut Rng) -> Option<(IpAddr, usize)> {
    let slices = api.list(Resource::EndpointSlice);
    let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let endpoint = rng.choice(endpoints.collect::<Vec<_>>())?;
    let address = endpoint["addresses"][0].as_str()?.parse().ok()?;
    let node = endpoint["nodeName"].as_str()?.strip_prefix("node-")?.parse().ok()?;
    Some((address, node))
}

/// All slices say that the pods at an address are terminating, at their other addresses, too.
pub(crate) fn end_pods_at(api: &ApiServer, address: IpAddr) {
    let is_there = |endpoint: &Value| endpoint["addresses"][0].as_str().and_then(|it| it.parse().ok()) == Some(address);
    let slices = api.list(Resource::EndpointSlice);
    let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let pods: Vec<_> = endpoints.filter(|endpoint| is_there(endpoint)).map(|it| it["targetRef"].clone()).collect();
    let ends = |it: &Value| is_there(it) || (it["targetRef"].is_object() && pods.contains(&it["targetRef"]));

    for mut slice in slices {
        let endpoints = slice["endpoints"].as_array_mut().into_iter().flatten().filter(|endpoint| ends(endpoint));
        let ended =
            endpoints.map(|pod| pod["conditions"] = json!({"ready": false, "serving": true, "terminating": true}));
        if ended.count() > 0 {
            let _ = api.put(Resource::EndpointSlice, slice);
        }
    }
}

/// The cluster at the beginning.
pub(crate) fn fill(api: &ApiServer, rng: &mut Rng, size: ClusterSize) {
    (0..size.nodes).for_each(|number| put_node(api, rng, number));
    put_service_cidr(api, 0);
    for number in 0..size.services {
        let _ = api.put(Resource::Service, service(rng, number));
        put_slice(api, rng, number, 0, size.nodes);
    }
}

/// The names of all Node objects.
pub(crate) fn node_names(api: &ApiServer) -> BTreeSet<String> {
    let nodes = api.list(Resource::Node);
    nodes.iter().filter_map(|node| node["metadata"]["name"].as_str()).map(str::to_owned).collect()
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number}")
}

pub(crate) fn service_name(number: usize) -> String {
    format!("service-{number}")
}

/// The VIPs that a Service may have at its cluster IPs.
pub(crate) fn vips(service: usize) -> BTreeSet<Vip> {
    let ips = cluster_ips(service);
    let vips = ips.iter().flat_map(|&address| {
        [(80, Protocol::Tcp), (53, Protocol::Udp)].map(|(port, protocol)| Vip::AddressPort { address, port, protocol })
    });
    vips.collect()
}

fn cluster_ips(service: usize) -> Vec<IpAddr> {
    let host = service as u16 + 10;
    let [high, low] = host.to_be_bytes();
    let v4 = has_v4(service).then(|| Ipv4Addr::new(10, 96, high, low).into());
    let v6 = has_v6(service).then(|| Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, host).into());
    v4.into_iter().chain(v6).collect()
}

fn namespace(service: usize) -> &'static str {
    NAMESPACES[service % 2]
}

/// The families of a Service never change.
fn has_v4(service: usize) -> bool {
    service % 5 != 3
}

fn has_v6(service: usize) -> bool {
    service % 5 >= 3
}

/// Whether an address is that of a pod, not of a node.
pub(crate) fn is_pod(address: IpAddr) -> bool {
    pod(address).is_some()
}

/// What no state may contain: an endpoint of another Service, family or node; a VIP of two service ports.
pub(crate) fn invalid(node: &str, service_ports: &ServicePorts) -> Option<String> {
    let mut vips = BTreeSet::new();
    for (key, service) in service_ports {
        let number = key.name.strip_prefix("service-").and_then(|number| number.parse().ok());
        for family in IpFamily::ALL {
            let cluster = service.cluster[family].iter().map(|endpoint| (endpoint, false));
            let local = service.local[family].iter().map(|endpoint| (endpoint, true));
            for (endpoint, is_local) in cluster.chain(local) {
                let (on, host) = pod(endpoint.address)?;
                let is_here = !is_local || node_name(on) == node;
                if Some((host - 1) / HOSTS) != number || IpFamily::of(&endpoint.address) != family || !is_here {
                    return Some(format!("{endpoint:?} as an endpoint of {key}"));
                }
            }
        }
        let port = &service.port;
        let ips = port.cluster_ips.iter().filter_map(|(_, ip)| *ip).chain(port.external_ips.iter().copied());
        let ips = ips.map(|ip| format!("{ip} {}", port.port));
        for vip in ips.chain(port.node_port.map(|number| format!("node port {number}"))) {
            let vip = format!("{vip}/{}", key.protocol);
            if !vips.insert(vip.clone()) {
                return Some(format!("{vip} twice, once for {key}"));
            }
        }
    }
    None
}

/// The node and host number of a pod.
fn pod(address: IpAddr) -> Option<(usize, usize)> {
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 244, node, host] => Some((node.into(), host.into())),
            _ => None,
        },
        IpAddr::V6(address) => match address.segments() {
            [0xfd00, 0x244, node, .., host] => Some((node.into(), host.into())),
            _ => None,
        },
    }
}

fn put_node(api: &ApiServer, rng: &mut Rng, number: usize) {
    let zone = rng.choice(ZONES).unwrap_or_default();
    let node = json!({
        "metadata": {"name": node_name(number), "labels": {"topology.kubernetes.io/zone": zone}},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
        "status": {"addresses": [{"type": "InternalIP", "address": format!("172.16.0.{}", number + 1)}]},
    });
    let _ = api.put(Resource::Node, node);
}

fn service_cidr_name(number: usize) -> String {
    format!("cidr-{number}")
}

fn put_service_cidr(api: &ApiServer, number: usize) {
    let metadata = json!({"name": service_cidr_name(number)});
    let _ = api.put(Resource::ServiceCidr, json!({"metadata": metadata, "spec": {"cidrs": SERVICE_CIDRS[number]}}));
}

fn service(rng: &mut Rng, number: usize) -> Value {
    let mut ports = vec![json!({"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080})];
    if rng.bool() {
        ports.push(json!({"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353}));
    }
    let policy = |rng: &mut Rng| if rng.u8(0..4) == 0 { "Local" } else { "Cluster" };
    let ips = cluster_ips(number);
    let families: Vec<_> = ips.iter().map(|ip| IpFamily::of(ip).to_string()).collect();
    let mut spec = json!({
        "clusterIP": ips[0],
        "clusterIPs": ips,
        "ipFamilies": families,
        "type": "ClusterIP",
        "internalTrafficPolicy": policy(rng),
        "ports": ports,
    });
    if rng.u8(0..3) == 0 {
        spec["type"] = "NodePort".into();
        spec["externalTrafficPolicy"] = policy(rng).into();
        spec["ports"][0]["nodePort"] = (30_000 + number).into();
    }
    if rng.u8(0..4) == 0 {
        // Sometimes that of two Services.
        let host = rng.u8(1..6);
        let ip = if has_v4(number) { format!("192.0.2.{host}") } else { format!("2001:db8::{host}") };
        spec["externalIPs"] = json!([ip]);
    }
    let mut metadata = json!({"namespace": namespace(number), "name": service_name(number)});
    if rng.u8(0..8) == 0 {
        metadata["labels"] = json!({OTHER_PROXY: "other"});
    }
    json!({"metadata": metadata, "spec": spec})
}

/// A slice for each family of the Service, and sometimes one of the other family, which must not be used.
fn put_slice(api: &ApiServer, rng: &mut Rng, service: usize, part: usize, nodes: usize) {
    let is_any = rng.u8(0..4) == 0;
    if has_v4(service) || is_any {
        let _ = api.put(Resource::EndpointSlice, slice(rng, service, (part, "v4"), nodes));
    }
    if has_v6(service) || is_any {
        let _ = api.put(Resource::EndpointSlice, slice(rng, service, (part, "v6"), nodes));
    }
}

fn delete_slice(api: &ApiServer, service: usize, part: usize) {
    for family in ["v4", "v6"] {
        api.delete(Resource::EndpointSlice, namespace(service), &slice_name(service, (part, family)));
    }
}

fn slice_name(service: usize, (part, family): (usize, &str)) -> String {
    format!("{}-{part}-{family}", service_name(service))
}

/// The pod of an endpoint, which has an address of each family. The first two slices of a Service name different pods
/// at the same address, as if it was used again before the former pod has left its slice; the third one was written by
/// hand.
fn pod_of(service: usize, part: usize, (node, host): (usize, usize)) -> Option<Value> {
    let uid = format!("{node:08x}-0000-0000-{part:04x}-{host:012x}");
    let name = format!("pod-{node}-{host}-{part}");
    (part < 2).then(|| json!({"kind": "Pod", "namespace": namespace(service), "name": name, "uid": uid}))
}

fn slice(rng: &mut Rng, service: usize, (part, family): (usize, &str), nodes: usize) -> Value {
    let hinted = rng.u8(0..4) == 0;
    let endpoints: Vec<_> = (0..rng.usize(0..5))
        .map(|_| {
            let (node, host) = (rng.usize(..nodes), 1 + service * HOSTS + rng.usize(..HOSTS));
            let (ready, terminating) = (rng.u8(0..5) > 0, rng.u8(0..6) == 0);
            let address =
                if family == "v4" { format!("10.244.{node}.{host}") } else { format!("fd00:244:{node:x}::{host:x}") };
            let mut endpoint = json!({
                "addresses": [address],
                "conditions": {"ready": ready && !terminating, "serving": ready, "terminating": terminating},
                "nodeName": node_name(node),
            });
            if let Some(pod) = pod_of(service, part, (node, host)) {
                endpoint["targetRef"] = pod;
            }
            if hinted {
                endpoint["hints"] = json!({"forZones": [{"name": rng.choice(ZONES)}]});
            }
            endpoint
        })
        .collect();
    json!({
        "metadata": {
            "namespace": namespace(service),
            "name": slice_name(service, (part, family)),
            "labels": {"kubernetes.io/service-name": service_name(service)},
        },
        "addressType": if family == "v4" { "IPv4" } else { "IPv6" },
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 5353}],
        "endpoints": endpoints,
    })
}

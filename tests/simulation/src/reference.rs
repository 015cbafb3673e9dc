//! What a node must program, computed from the objects of the API server: an implementation of its own, slow and close
//! to the documentation of Kubernetes, for the fields that the objects of simulations have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
};

use fake_api_server::{ApiServer, Resource};
use ipnet::IpNet;
use proto::model::{IpFamily, Protocol, ServicePortKey, TrafficPolicy};
use serde_json::Value;

use crate::{objects::OTHER_PROXY, oracle::ServicePorts};

/// The mark of terminating endpoints.
const TERMINATING: &str = " terminating";

/// A service port on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReferencePort {
    /// Cluster IPs, external IPs and the node port, as text.
    vips: BTreeSet<String>,
    /// Endpoints for traffic policy Cluster, and for Local: those on the node. With a mark if terminating.
    cluster: BTreeSet<String>,
    local: BTreeSet<String>,
    /// What established flows may keep besides those that new ones use.
    established: BTreeSet<String>,
    /// The endpoints whose connections are reset.
    gone: BTreeSet<String>,
    /// The families with an endpoint that can serve, on any node.
    any_endpoints: BTreeSet<&'static str>,
}

type ReferencePorts = BTreeMap<ServicePortKey, ReferencePort>;

/// An endpoint of a slice, with the port of a service port.
struct ReferenceEndpoint<'a> {
    address: IpAddr,
    port: u64,
    object: &'a Value,
}

impl ReferenceEndpoint<'_> {
    fn hints(&self) -> &[Value] {
        array(&self.object["hints"]["forZones"])
    }
}

/// How a state differs from what the objects of the API server mean for the node; `None` if it does not.
pub(crate) fn difference(api: &ApiServer, node: &str, service_ports: &ServicePorts) -> Option<String> {
    let (expected, decided) = (reference(api, node), decided(service_ports));
    let keys: BTreeSet<_> = expected.keys().chain(decided.keys()).collect();
    let mut text = String::new();
    for key in keys {
        let (decided, expected) = (decided.get(key), expected.get(key));
        if decided != expected {
            let _ = write!(text, "\n  {key}: is {decided:?}\n    the objects mean {expected:?}");
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Whether these are the CIDRs in which packets to unallocated addresses are dropped: all of the ServiceCIDRs but the
/// cluster IPs of Services that another proxy serves.
pub(crate) fn are_service_cidrs(api: &ApiServer, decided: &[IpNet]) -> bool {
    let objects = api.list(Resource::ServiceCidr);
    let cidrs = objects.iter().flat_map(|object| array(&object["spec"]["cidrs"]));
    let cidrs: Vec<IpNet> = cidrs.filter_map(|cidr| string(cidr).parse().ok()).collect();
    let contain = |cidrs: &[IpNet], ip: &IpAddr| cidrs.iter().any(|cidr| cidr.contains(ip));
    let mut excluded = 0;
    for service in &api.list(Resource::Service) {
        for ip in array(&service["spec"]["clusterIPs"]).iter().filter_map(|ip| string(ip).parse().ok()) {
            let is_allocated = contain(&cidrs, &ip);
            excluded += u128::from(is_allocated && is_foreign(service));
            if contain(decided, &ip) != (is_allocated && !is_foreign(service)) {
                return false;
            }
        }
    }
    let sum =
        |cidrs: &[IpNet]| -> u128 { cidrs.iter().map(|cidr| 1 << (cidr.max_prefix_len() - cidr.prefix_len())).sum() };
    let is_inside = |cidr: &IpNet| cidrs.iter().any(|outer| outer.contains(cidr));
    decided.iter().all(is_inside) && sum(decided) + excluded == sum(&cidrs)
}

fn is_foreign(service: &Value) -> bool {
    !service["metadata"]["labels"][OTHER_PROXY].is_null()
}

/// The same fields of what the frontend has decided.
fn decided(service_ports: &ServicePorts) -> ReferencePorts {
    let port = |(key, service): (&ServicePortKey, &backend::ServicePortState)| {
        let mut port = ReferencePort::default();
        port.vips.extend(service.port.cluster_ips.iter().filter_map(|(_, ip)| ip.map(|ip| ip.to_string())));
        port.vips.extend(service.port.external_ips.iter().map(ToString::to_string));
        port.vips.extend(service.port.node_port.map(|number| number.to_string()));
        for family in IpFamily::ALL {
            let text = |endpoint: &proto::model::Endpoint| {
                text(endpoint.address, endpoint.port.get().into(), endpoint.terminating)
            };
            port.cluster.extend(service.cluster[family].iter().map(text));
            port.local.extend(service.local[family].iter().map(text));
            let uses_cluster =
                service.port.internal_policy == TrafficPolicy::Cluster || service.port.externally_accessible();
            let used = if uses_cluster { &service.cluster } else { &service.local };
            let established = service.established[family].iter().filter(|endpoint| !used[family].contains(endpoint));
            port.established.extend(established.map(text));
            port.gone.extend(service.gone[family].iter().map(text));
            if service.port.any_endpoints[family] {
                port.any_endpoints.insert(family.name());
            }
        }
        (key.clone(), port)
    };
    service_ports.iter().map(port).collect()
}

fn reference(api: &ApiServer, node: &str) -> ReferencePorts {
    let (services, slices) = (api.list(Resource::Service), api.list(Resource::EndpointSlice));
    let nodes = api.list(Resource::Node);
    let zone = nodes.iter().find(|object| object["metadata"]["name"] == node);
    let zone = zone.map(|node| &node["metadata"]["labels"]["topology.kubernetes.io/zone"]);
    let mut ports = ReferencePorts::new();
    // Of Services of the same age the first one gets an external IP.
    let mut claimed = BTreeSet::new();
    let mut sorted: Vec<(ServicePortKey, &Value, &Value)> = Vec::new();
    for service in services.iter().filter(|service| !is_foreign(service)) {
        for port in array(&service["spec"]["ports"]) {
            let metadata = &service["metadata"];
            let protocol = if port["protocol"] == "UDP" { Protocol::Udp } else { Protocol::Tcp };
            let (namespace, name) = (string(&metadata["namespace"]), string(&metadata["name"]));
            sorted.push((ServicePortKey::new(namespace, name, string(&port["name"]), protocol), service, port));
        }
    }
    sorted.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    for (key, service, port) in sorted {
        let spec = &service["spec"];
        let mut reference = ReferencePort::default();
        reference.vips.extend(array(&spec["clusterIPs"]).iter().map(|ip| string(ip).to_owned()));
        let mut is_external = false;
        for ip in array(&spec["externalIPs"]) {
            if claimed.insert((string(ip).to_owned(), port["port"].as_u64(), key.protocol)) {
                reference.vips.insert(string(ip).to_owned());
                is_external = true;
            }
        }
        if let Some(number) = port["nodePort"].as_u64() {
            reference.vips.insert(number.to_string());
            is_external = true;
        }
        let uses_cluster = spec["internalTrafficPolicy"] != "Local" || is_external;
        for family in array(&spec["ipFamilies"]) {
            let endpoints = endpoints(&key, &slices, family);
            let condition = |endpoint: &ReferenceEndpoint<'_>, name: &str| endpoint.object["conditions"][name] == true;
            let is_ready = |endpoint: &&ReferenceEndpoint<'_>| condition(endpoint, "ready");
            let is_fallback = |endpoint: &&ReferenceEndpoint<'_>| {
                condition(endpoint, "serving") && condition(endpoint, "terminating")
            };
            let of = |endpoint: &ReferenceEndpoint<'_>, terminating| text(endpoint.address, endpoint.port, terminating);
            if endpoints.iter().any(|endpoint| is_ready(&endpoint) || is_fallback(&endpoint)) {
                reference.any_endpoints.insert(if family == "IPv4" { "IPv4" } else { "IPv6" });
            }
            if uses_cluster {
                let ready: Vec<_> = endpoints.iter().filter(is_ready).collect();
                let is_here = |endpoint: &ReferenceEndpoint<'_>| {
                    endpoint.hints().iter().any(|hint| zone.is_some_and(|zone| hint["name"] == *zone))
                };
                let hinted = ready.iter().all(|endpoint| !endpoint.hints().is_empty())
                    && ready.iter().any(|endpoint| is_here(endpoint));
                if ready.is_empty() {
                    reference.cluster.extend(endpoints.iter().filter(is_fallback).map(|endpoint| of(endpoint, false)));
                }
                let used = ready.iter().filter(|endpoint| !hinted || is_here(endpoint));
                reference.cluster.extend(used.map(|endpoint| of(endpoint, false)));
            }
            let local: Vec<_> = endpoints.iter().filter(|endpoint| endpoint.object["nodeName"] == node).collect();
            let ready: Vec<_> = local.iter().filter(|endpoint| is_ready(endpoint)).collect();
            if ready.is_empty() {
                let fallback = local.iter().filter(|endpoint| is_fallback(endpoint));
                reference.local.extend(fallback.map(|endpoint| of(endpoint, true)));
            }
            reference.local.extend(ready.iter().map(|endpoint| of(endpoint, false)));
            if key.protocol == Protocol::Udp {
                let serving = endpoints.iter().filter(|endpoint| condition(endpoint, "serving"));
                let serving = serving.filter(|endpoint| uses_cluster || endpoint.object["nodeName"] == node);
                let used = if uses_cluster { &reference.cluster } else { &reference.local };
                let used: BTreeSet<_> = used.iter().map(|text| text.trim_end_matches(TERMINATING)).collect();
                let established = serving.map(|endpoint| of(endpoint, false));
                let established: Vec<_> = established.filter(|text| !used.contains(&**text)).collect();
                reference.established.extend(established);
            } else {
                let is_node =
                    |name: &Value| nodes.is_empty() || nodes.iter().any(|node| node["metadata"]["name"] == *name);
                let gone = endpoints.iter().filter(|endpoint| {
                    let node = &endpoint.object["nodeName"];
                    !condition(endpoint, "ready")
                        && !condition(endpoint, "serving")
                        && !node.is_null()
                        && !is_node(node)
                });
                reference.gone.extend(gone.map(|endpoint| of(endpoint, false)));
            }
        }
        ports.insert(key, reference);
    }
    ports
}

/// The endpoints of a service port, each address once: the entry that is not terminating, else the ready one, else the
/// serving one, else that of the first slice.
fn endpoints<'a>(key: &ServicePortKey, slices: &'a [Value], family: &Value) -> Vec<ReferenceEndpoint<'a>> {
    let mut endpoints = BTreeMap::<(IpAddr, u64), ((bool, bool, bool), &Value)>::new();
    let of_service = |slice: &&Value| {
        slice["metadata"]["namespace"] == *key.namespace
            && slice["metadata"]["labels"]["kubernetes.io/service-name"] == *key.name
            && slice["addressType"] == *family
    };
    for slice in slices.iter().filter(of_service) {
        let port = array(&slice["ports"]).iter().find(|port| port["name"] == *key.port_name);
        let Some(port) = port.and_then(|port| port["port"].as_u64()) else { continue };
        for object in array(&slice["endpoints"]) {
            let Ok(address) = string(&object["addresses"][0]).parse::<IpAddr>() else { continue };
            let condition = |name: &str| object["conditions"][name] == true;
            let preference = (condition("terminating"), !condition("ready"), !condition("serving"));
            let entry = endpoints.entry((address, port)).or_insert((preference, object));
            if preference < entry.0 {
                *entry = (preference, object);
            }
        }
    }
    endpoints.into_iter().map(|((address, port), (_, object))| ReferenceEndpoint { address, port, object }).collect()
}

fn text(address: IpAddr, port: u64, terminating: bool) -> String {
    format!("{address} {port}{}", if terminating { TERMINATING } else { "" })
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

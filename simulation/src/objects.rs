//! Random objects of the cluster: few Services with few endpoints, so that changes concern each other.

use fake_api_server::{ApiServer, Resource};
use fastrand::Rng;
use serde_json::{Value, json};

/// The number of Services.
const SERVICES: usize = 8;
const NAMESPACES: [&str; 2] = ["shop", "infra"];
const ZONES: [&str; 2] = ["zone-a", "zone-b"];

/// Makes one random change. Returns what it was.
pub(crate) fn change(api: &ApiServer, rng: &mut Rng, nodes: usize) -> String {
    let service = rng.usize(..SERVICES);
    match rng.u8(0..20) {
        0..4 => {
            let _ = api.put(Resource::Service, self::service(rng, service));
            format!("put Service {service}")
        }
        4 => {
            api.delete(Resource::Service, NAMESPACES[service % 2], &name(service));
            format!("delete Service {service}")
        }
        5..16 => {
            let part = rng.usize(..3);
            let _ = api.put(Resource::EndpointSlice, slice(rng, service, part, nodes));
            format!("put slice {part} of Service {service}")
        }
        16 => {
            let part = rng.usize(..3);
            api.delete(Resource::EndpointSlice, NAMESPACES[service % 2], &format!("{}-{part}", name(service)));
            format!("delete slice {part} of Service {service}")
        }
        17 | 18 => {
            let number = rng.usize(..nodes);
            put_node(api, rng, number);
            format!("put Node {number}")
        }
        _ => {
            let number = rng.usize(..nodes);
            api.delete(Resource::Node, "", &node_name(number));
            format!("delete Node {number}")
        }
    }
}

/// The cluster at the beginning.
pub(crate) fn fill(api: &ApiServer, rng: &mut Rng, nodes: usize) {
    (0..nodes).for_each(|number| put_node(api, rng, number));
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}});
    let _ = api.put(Resource::ServiceCidr, cidr);
    for number in 0..SERVICES {
        let _ = api.put(Resource::Service, service(rng, number));
        let _ = api.put(Resource::EndpointSlice, slice(rng, number, 0, nodes));
    }
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number}")
}

fn name(number: usize) -> String {
    format!("service-{number}")
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

fn service(rng: &mut Rng, number: usize) -> Value {
    let mut ports = vec![json!({"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080})];
    if rng.bool() {
        ports.push(json!({"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353}));
    }
    let policy = |rng: &mut Rng| if rng.u8(0..4) == 0 { "Local" } else { "Cluster" };
    let mut spec = json!({
        "clusterIP": format!("10.96.0.{}", number + 10),
        "clusterIPs": [format!("10.96.0.{}", number + 10)],
        "ipFamilies": ["IPv4"],
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
        spec["externalIPs"] = json!([format!("192.0.2.{}", rng.u8(1..6))]);
    }
    json!({"metadata": {"namespace": NAMESPACES[number % 2], "name": name(number)}, "spec": spec})
}

fn slice(rng: &mut Rng, service: usize, part: usize, nodes: usize) -> Value {
    let hinted = rng.u8(0..4) == 0;
    let endpoints: Vec<_> = (0..rng.usize(0..5))
        .map(|_| {
            let node = rng.usize(..nodes);
            let (ready, terminating) = (rng.u8(0..5) > 0, rng.u8(0..6) == 0);
            let mut endpoint = json!({
                "addresses": [format!("10.244.{node}.{}", rng.u8(1..8))],
                "conditions": {"ready": ready && !terminating, "serving": ready, "terminating": terminating},
                "nodeName": node_name(node),
            });
            if hinted {
                endpoint["hints"] = json!({"forZones": [{"name": rng.choice(ZONES)}]});
            }
            endpoint
        })
        .collect();
    json!({
        "metadata": {
            "namespace": NAMESPACES[service % 2],
            "name": format!("{}-{part}", name(service)),
            "labels": {"kubernetes.io/service-name": name(service)},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 5353}],
        "endpoints": endpoints,
    })
}

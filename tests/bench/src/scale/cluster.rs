//! A cluster of any size as numbers: its API objects, and the expected digests of each node, computed independently of
//! the frontend.

use std::{net::Ipv4Addr, num::NonZeroU16};

use anyhow::{Context as _, Result};
use fake_api_server::Resource;
use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, Endpoint, NodeInfo, PoolClass, Protocol, ServicePort, ServicePortKey},
};
use serde_json::{Value, json};

const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// A real API server gives the address before it to `default/kubernetes`.
const FIRST_CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 2);
const FIRST_NODE: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
const FIRST_POD_CIDR: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
const SERVICE_PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(79);
const TARGET_PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(8_079);
/// How many endpoints a controller puts into one slice at most (`--max-endpoints-per-slice`).
const SLICE: usize = 100;
/// The default of `--max-service-endpoints`.
const MAX_ENDPOINTS: usize = 10_000;
/// One of this many services has zone hints.
const HINTED: usize = 10;

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: u32,
    pub(crate) services: usize,
    pub(crate) endpoints: usize,
    /// Endpoints of service 0, included in `endpoints`.
    pub(crate) largest: usize,
}

/// The objects.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: u32,
    services: Vec<Service>,
    next_pod: u32,
}

#[derive(Debug)]
struct Service {
    slices: Vec<Vec<Pod>>,
    hints: Hints,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hints {
    None,
    Zone,
}

#[derive(Clone, Copy, Debug)]
struct Pod {
    address: Ipv4Addr,
    node: u32,
}

/// An EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceId {
    pub(crate) service: usize,
    pub(crate) slice: usize,
}

/// The nodes that a change affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Everyone,
    /// The nodes of one zone.
    Zone(u32),
}

// === impl Size ===

impl Size {
    /// The size of a cluster with this many nodes: 2 services and 50 endpoints for each, and as many endpoints in the
    /// largest service as there are nodes, but not more than a frontend uses.
    pub(crate) fn of_nodes(nodes: u32) -> Self {
        let count = nodes as usize;
        Self { nodes, services: 2 * count, endpoints: 50 * count, largest: count.min(MAX_ENDPOINTS) }
    }
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new(size: Size) -> Self {
        let Size { nodes, services, endpoints, largest } = size;
        let mut cluster = Self { nodes, services: Vec::with_capacity(services), next_pod: 0 };
        let (each, more) = ((endpoints - largest) / (services - 1), (endpoints - largest) % (services - 1));
        for number in 0..services {
            let count = match number {
                0 => largest,
                _ => each + usize::from(number <= more),
            };
            let pods: Vec<_> = (0..count).map(|_| cluster.pod()).collect();
            let hints = if number % HINTED == 1 { Hints::Zone } else { Hints::None };
            cluster.services.push(Service { slices: pods.chunks(SLICE).map(<[_]>::to_vec).collect(), hints });
        }
        cluster
    }

    pub(crate) fn services(&self) -> usize {
        self.services.len()
    }

    /// All slices, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = SliceId> {
        let slices = self.services.iter().enumerate();
        slices.flat_map(|(service, all)| (0..all.slices.len()).map(move |slice| SliceId { service, slice }))
    }

    /// The number of pods in a slice.
    pub(crate) fn pods(&self, SliceId { service, slice }: SliceId) -> usize {
        self.services[service].slices[slice].len()
    }

    /// The addresses of the pods in a slice.
    pub(crate) fn addresses(&self, SliceId { service, slice }: SliceId) -> impl Iterator<Item = Ipv4Addr> {
        self.services[service].slices[slice].iter().map(|pod| pod.address)
    }

    /// Removes the oldest pod of a slice. Its successor, which [`Self::add`] creates, is in the same zone.
    pub(crate) fn remove(&mut self, id: SliceId) -> Reach {
        let pod = self.services[id.service].slices[id.slice].remove(0);
        self.reach(id, pod.node)
    }

    /// Adds a new pod to a slice, in the zone from which [`Self::remove`] took one.
    pub(crate) fn add(&mut self, id: SliceId, reach: Reach) -> Reach {
        let mut pod = self.pod();
        if let Reach::Zone(zone) = reach {
            let zones = ZONES.len() as u32;
            pod.node = pod.node - pod.node % zones + zone;
            if pod.node >= self.nodes {
                pod.node = zone;
            }
        }
        self.services[id.service].slices[id.slice].push(pod);
        self.reach(id, pod.node)
    }

    fn pod(&mut self) -> Pod {
        let number = self.next_pod;
        self.next_pod += 1;
        Pod { address: Ipv4Addr::from(u32::from(FIRST_POD) + number), node: number % self.nodes }
    }

    fn reach(&self, id: SliceId, node: u32) -> Reach {
        match self.services[id.service].hints {
            Hints::None => Reach::Everyone,
            Hints::Zone => Reach::Zone(zone(node)),
        }
    }
}

/// Its objects in the API.
impl Cluster {
    /// All objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Resource, Value)> {
        let nodes = (0..self.nodes).map(|number| (Resource::Node, node(number)));
        let services = (0..self.services.len()).map(|number| (Resource::Service, service(number)));
        nodes.chain(services).chain(self.slices().map(|id| (Resource::EndpointSlice, self.slice(id, 1))))
    }

    /// The current state of a slice. `trigger`: the time of its last change, in microseconds since 1970.
    pub(crate) fn slice(&self, SliceId { service, slice }: SliceId, trigger: u64) -> Value {
        let Service { slices, hints } = &self.services[service];
        let endpoints = slices[slice].iter().enumerate().map(|(number, Pod { address, node })| {
            let zone = ZONES[zone(*node) as usize];
            let uid = format!("6f1c1a1e-0000-4000-8000-{:012x}", u32::from(*address));
            let name = format!("service-{service}-{number}");
            let mut endpoint = json!({
                "addresses": [address.to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": node_name(*node),
                "zone": zone,
                "targetRef": {"kind": "Pod", "namespace": "default", "name": name, "uid": uid},
            });
            if *hints == Hints::Zone {
                endpoint["hints"] = json!({"forZones": [{"name": zone}]});
            }
            endpoint
        });
        json!({
            "metadata": {
                "name": format!("service-{service}-{slice}"),
                "namespace": "default",
                "labels": {
                    "kubernetes.io/service-name": format!("service-{service}"),
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": rfc3339(trigger)},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": TARGET_PORT}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

/// The expected state of nodes.
impl Cluster {
    /// The digests of all nodes.
    pub(crate) fn digests(&self) -> Result<Vec<DigestVector>> {
        let mut zones = vec![DigestVector::default(); ZONES.len()];
        let mut nodes = vec![DigestVector::default(); self.nodes as usize];
        for (number, service) in self.services.iter().enumerate() {
            let port = service_port(number);
            let hash = KeyHash::of(&port.key);
            let (bucket, port) = (hash.bucket(), Digest::of_service_port(&port));
            zones.iter_mut().for_each(|digests| digests[bucket].add(port));
            for Pod { address, node } in service.slices.iter().flatten() {
                let endpoint = Endpoint { address: (*address).into(), port: TARGET_PORT, terminating: false };
                let in_pool = hash.endpoint(PoolClass::Cluster, &endpoint);
                for (number, digests) in (0..).zip(&mut zones) {
                    if service.hints == Hints::None || number == zone(*node) {
                        digests[bucket].add(in_pool);
                    }
                }
                nodes[*node as usize][bucket].add(hash.endpoint(PoolClass::Local, &endpoint));
            }
        }
        let cluster = Digest::of_cluster(&ClusterInfo::default());
        for (number, digests) in (0..).zip(&mut nodes) {
            digests.add_all(&zones[zone(number) as usize]);
            digests[INFO_ENTRY].add(Digest::of_node(&facts(number)?));
            digests[INFO_ENTRY].add(cluster);
        }
        Ok(nodes)
    }
}

fn node(node: u32) -> Value {
    let NodeInfo { name, addresses, pod_cidrs, zone, .. } = facts(node).unwrap_or_else(|_| NodeInfo::unknown(""));
    let address = addresses.first().map(ToString::to_string);
    let cidr = pod_cidrs.first().map(ToString::to_string);
    json!({
        "metadata": {"name": &*name, "labels": {"topology.kubernetes.io/zone": &*zone}},
        "spec": {"podCIDRs": [cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

fn service(service: usize) -> Value {
    let cluster_ip = cluster_ip(service).to_string();
    json!({
        "metadata": {"name": format!("service-{service}"), "namespace": "default"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [{"name": "http", "protocol": "TCP", "port": SERVICE_PORT, "targetPort": TARGET_PORT}],
        },
    })
}

/// The zone of a node, by its number.
pub(crate) fn zone(node: u32) -> u32 {
    node % ZONES.len() as u32
}

pub(crate) fn node_name(node: u32) -> String {
    format!("node-{node}")
}

/// RFC 3339 time, as in objects, from microseconds since 1970.
fn rfc3339(micros: u64) -> String {
    let (days, second) = (micros / 86_400_000_000, micros / 1_000_000 % 86_400);
    // Years that begin in March have their leap day at the end; 146,097 days are 400 of them.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hours, minutes) = (second / 3_600, second / 60 % 60);
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{:02}.{:06}Z", second % 60, micros % 1_000_000)
}

fn facts(node: u32) -> Result<NodeInfo> {
    let cidr = format!("{}/26", Ipv4Addr::from(u32::from(FIRST_POD_CIDR) + node * 64));
    Ok(NodeInfo {
        name: node_name(node).into(),
        addresses: vec![Ipv4Addr::from(u32::from(FIRST_NODE) + node).into()],
        pod_cidrs: vec![cidr.parse().context("the CIDR of a node")?],
        zone: ZONES[zone(node) as usize].into(),
        eligible: true,
    })
}

/// The cluster IP of a service, by its number.
pub(crate) fn cluster_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST_CLUSTER_IP) + service as u32)
}

fn service_port(service: usize) -> ServicePort {
    let key = ServicePortKey::new("default", format!("service-{service}"), "http", Protocol::Tcp);
    let mut port = ServicePort::new(key, SERVICE_PORT);
    port.cluster_ips.v4 = Some(cluster_ip(service).into());
    port.any_endpoints.v4 = true;
    port
}

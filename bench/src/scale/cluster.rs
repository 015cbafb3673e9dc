//! A cluster of any size as numbers: its API objects, and the expected digests of each node, computed independently of
//! the frontend.

use std::{fmt::Write as _, net::Ipv4Addr, num::NonZeroU16};

use anyhow::{Context as _, Result};
use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{ClusterInfo, Endpoint, NodeInfo, PoolClass, Protocol, ServicePort, ServicePortKey},
};

use crate::api_server::{Kind, Objects};

const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
const FIRST_CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);
const FIRST_NODE: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
const FIRST_POD_CIDR: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
const SERVICE_PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(79);
const TARGET_PORT: NonZeroU16 = NonZeroU16::MIN.saturating_add(8_079);
/// How many endpoints a controller puts into one slice at most (`--max-endpoints-per-slice`).
const SLICE: usize = 100;
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

impl Objects for Cluster {
    fn page(&self, kind: Kind, from: usize, limit: usize, version: u64) -> Vec<String> {
        let page = |count: usize| from.min(count)..(from + limit).min(count);
        match kind {
            Kind::Node => page(self.nodes as usize).map(|node| node_json(node as u32)).collect(),
            Kind::Service => page(self.services.len()).map(service_json).collect(),
            Kind::EndpointSlice => {
                let slices = self.slices().skip(from).take(limit);
                slices.map(|id| self.slice_json(id, version, 1)).collect()
            }
            Kind::ServiceCidr => Vec::new(),
        }
    }

    fn node(&self, name: &str) -> Option<String> {
        let number = name.strip_prefix("node-")?.parse().ok()?;
        (number < self.nodes).then(|| node_json(number))
    }
}

impl Cluster {
    /// The current state of a slice. `trigger`: the time of its last change, in microseconds since 1970.
    pub(crate) fn slice_json(&self, id: SliceId, version: u64, trigger: u64) -> String {
        let SliceId { service, slice } = id;
        let Service { slices, hints } = &self.services[service];
        let trigger = rfc3339(trigger);
        let mut json = format!(
            r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{{"name":"service-{service}-{slice}","namespace":"default","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"service-{service}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io"}},"annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":"{trigger}"}}}},"addressType":"IPv4","ports":[{{"name":"http","protocol":"TCP","port":{TARGET_PORT}}}],"endpoints":["#
        );
        for (n, Pod { address, node }) in slices[slice].iter().enumerate() {
            let (comma, zone) = (if n == 0 { "" } else { "," }, ZONES[zone(*node) as usize]);
            // Writing to a String cannot fail.
            let _ = write!(
                json,
                r#"{comma}{{"addresses":["{address}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{node}","zone":"{zone}","targetRef":{{"kind":"Pod","namespace":"default","name":"service-{service}-{n}","uid":"6f1c1a1e-0000-4000-8000-{:012x}"}}"#,
                u32::from(*address),
            );
            if *hints == Hints::Zone {
                let _ = write!(json, r#","hints":{{"forZones":[{{"name":"{zone}"}}]}}"#);
            }
            json.push('}');
        }
        json.push_str("]}");
        json
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

fn node_json(node: u32) -> String {
    let NodeInfo { name, addresses, pod_cidrs, zone, .. } = facts(node).unwrap_or_else(|_| NodeInfo::unknown(""));
    format!(
        r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{name}","resourceVersion":"1","labels":{{"topology.kubernetes.io/zone":"{zone}"}}}},"spec":{{"podCIDRs":["{}"]}},"status":{{"addresses":[{{"type":"InternalIP","address":"{}"}}]}}}}"#,
        pod_cidrs[0], addresses[0],
    )
}

fn service_json(service: usize) -> String {
    let cluster_ip = cluster_ip(service);
    format!(
        r#"{{"kind":"Service","apiVersion":"v1","metadata":{{"name":"service-{service}","namespace":"default","resourceVersion":"1"}},"spec":{{"type":"ClusterIP","clusterIP":"{cluster_ip}","clusterIPs":["{cluster_ip}"],"ports":[{{"name":"http","protocol":"TCP","port":{SERVICE_PORT},"targetPort":{TARGET_PORT}}}]}}}}"#
    )
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

//! The objects of a small cluster, and random changes of them.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use frontend::object::{
    ClusterObject, ObjectKind, ObjectName, Origin, ParsedObject, ServiceObject, ServiceObjectPort, SliceEndpoint,
    SliceObject, SlicePort, SourceUpdate,
};
use proto::model::{IpFamily, NodeInfo, PerFamily, Protocol, TrafficPolicy};

/// The node of the backend.
pub(crate) const NODE: &str = "node-0";

const NODES: [&str; 3] = [NODE, "node-1", "node-2"];
const ZONES: [&str; 3] = ["", "zone-a", "zone-b"];
const SERVICES: [&str; 4] = ["a", "b", "c", "d"];

/// The Service that counts changes.
const MARKER: &str = "marker";

/// A slice of this many endpoints does not fit into one message.
const HUGE: u16 = 8000;

/// All objects of the cluster.
pub(crate) struct TestCluster {
    objects: BTreeMap<(ObjectKind, ObjectName), ClusterObject>,
    rng: fastrand::Rng,
    changes: u16,
}

impl TestCluster {
    pub(crate) fn new(seed: u64) -> Self {
        Self { objects: BTreeMap::new(), rng: fastrand::Rng::with_seed(seed), changes: 0 }
    }

    pub(crate) fn rng(&mut self) -> &mut fastrand::Rng {
        &mut self.rng
    }

    /// The initial events of a source.
    pub(crate) fn initial(&self) -> Vec<SourceUpdate> {
        let of_kind = |kind| {
            let objects = self.objects.iter().filter(|((of, _), _)| *of == kind);
            objects.map(|((kind, name), object)| parsed(*kind, name, object)).collect()
        };
        ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, of_kind(kind))).collect()
    }

    /// A few random changes, and one of the marker after them.
    pub(crate) fn change(&mut self) -> Vec<SourceUpdate> {
        let mut updates: Vec<_> = (0..self.rng.usize(1..6)).map(|_| self.any_update()).collect();
        self.changes += 1;
        let marker = ServiceObject { ports: vec![self.mark()], ..service(MARKER, [10, 96, 9, 9].into()) };
        updates.push(self.put(ObjectKind::Service, marker.name.clone(), ClusterObject::Service(marker)));
        updates
    }

    /// The current port of the marker.
    pub(crate) fn mark(&self) -> ServiceObjectPort {
        ServiceObjectPort { name: "".into(), protocol: Protocol::Tcp, port: number(1 + self.changes), node_port: None }
    }

    /// Whether a service is the marker.
    pub(crate) fn is_marker(name: &str) -> bool {
        name == MARKER
    }

    fn any_update(&mut self) -> SourceUpdate {
        match self.rng.u8(..12) {
            0..4 => self.any_slice(),
            4..7 => self.any_service(),
            7..9 => self.any_node(),
            _ => self.any_deletion(),
        }
    }

    fn put(&mut self, kind: ObjectKind, name: ObjectName, object: ClusterObject) -> SourceUpdate {
        let update = SourceUpdate::Apply(parsed(kind, &name, &object));
        self.objects.insert((kind, name), object);
        update
    }

    fn any_deletion(&mut self) -> SourceUpdate {
        let Some(at) = (!self.objects.is_empty()).then(|| self.rng.usize(..self.objects.len())) else {
            return self.any_node();
        };
        let (kind, name) = self.objects.keys().nth(at).unwrap().clone();
        if TestCluster::is_marker(&name.name) {
            return self.any_slice();
        }
        self.objects.remove(&(kind, name.clone()));
        SourceUpdate::Delete(kind, name)
    }

    fn any_node(&mut self) -> SourceUpdate {
        let name = *self.rng.choice(&NODES).unwrap();
        let node = NodeInfo {
            zone: (*self.rng.choice(&ZONES).unwrap()).into(),
            eligible: self.rng.bool(),
            addresses: vec![[172, 16, 0, self.rng.u8(1..4)].into()],
            ..NodeInfo::unknown(name)
        };
        self.put(ObjectKind::Node, ObjectName::new("", name), ClusterObject::Node(node.into()))
    }

    fn any_service(&mut self) -> SourceUpdate {
        let name = *self.rng.choice(&SERVICES).unwrap();
        let last = self.rng.u8(1..4);
        let mut service = service(name, [10, 96, 0, last].into());
        if self.rng.bool() {
            service.cluster_ips.v6 = Some(v6(last.into()));
        }
        if self.rng.bool() {
            // Sometimes that of a node, or claimed by another.
            service.external_ips = vec![[172, 16, 0, self.rng.u8(1..8)].into()];
        }
        for policy in [&mut service.internal_policy, &mut service.external_policy] {
            *policy = if self.rng.bool() { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
        }
        for (name, port) in [("http", 80), ("https", 443)] {
            if self.rng.u8(..4) > 0 {
                let node_port = self.rng.bool().then(|| number(self.rng.u16(30000..30004)));
                service.ports.push(ServiceObjectPort {
                    name: name.into(),
                    protocol: Protocol::Tcp,
                    port: number(port),
                    node_port,
                });
            }
        }
        self.put(ObjectKind::Service, service.name.clone(), ClusterObject::Service(service))
    }

    fn any_slice(&mut self) -> SourceUpdate {
        let name = ObjectName::new("default", format!("slice-{}", self.rng.u8(..6)));
        let family = if self.rng.bool() { IpFamily::V4 } else { IpFamily::V6 };
        let hints = self.rng.u8(..4);
        let count = if self.rng.u8(..24) == 0 { HUGE } else { self.rng.u16(..6) };
        let endpoints = (0..count).map(|n| self.any_endpoint(family, n, hints)).collect();
        let port = |name: &str, port| SlicePort { name: name.into(), protocol: Protocol::Tcp, port: number(port) };
        let slice = SliceObject {
            name: name.clone(),
            created: None,
            service: (*self.rng.choice(&SERVICES).unwrap()).into(),
            family,
            ports: vec![port("http", 8080), port("https", 8443)],
            endpoints,
            trigger: None,
        };
        self.put(ObjectKind::EndpointSlice, name, ClusterObject::EndpointSlice(slice))
    }

    fn any_endpoint(&mut self, family: IpFamily, n: u16, hints: u8) -> SliceEndpoint {
        let [high, low] = n.to_be_bytes();
        let (ready, serving, terminating) = match self.rng.u8(..6) {
            0 => (false, true, true),
            1 => (false, false, false),
            _ => (true, true, false),
        };
        let zones = &ZONES[1..=self.rng.usize(1..=2)];
        let nodes = &NODES[..self.rng.usize(1..=3)];
        SliceEndpoint {
            address: match family {
                IpFamily::V4 => [10, 244, high, low].into(),
                IpFamily::V6 => v6(n),
            },
            node: Some((*self.rng.choice(&NODES).unwrap()).into()),
            ready,
            serving,
            terminating,
            zone_hints: if hints & 1 == 0 { Vec::new() } else { names(zones) },
            node_hints: if hints & 2 == 0 { Vec::new() } else { names(nodes) },
            pod: None,
        }
    }
}

fn names(names: &[&str]) -> Vec<std::sync::Arc<str>> {
    names.iter().map(|name| (*name).into()).collect()
}

fn v6(last: u16) -> IpAddr {
    std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
}

fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

fn service(name: &str, cluster_ip: IpAddr) -> ServiceObject {
    ServiceObject {
        name: ObjectName::new("default", name),
        cluster_ips: PerFamily { v4: Some(cluster_ip), v6: None },
        ..ServiceObject::default()
    }
}

fn parsed(kind: ObjectKind, name: &ObjectName, object: &ClusterObject) -> ParsedObject {
    ParsedObject {
        kind,
        name: name.clone(),
        object: Some(object.clone()),
        problems: Vec::new(),
        origin: Origin::default(),
    }
}

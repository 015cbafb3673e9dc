//! Objects for tests: builders for single ones, and random ones from sets that are so small that conflicts are
//! frequent.

use std::{
    cell::Cell,
    net::IpAddr,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proptest::{collection::vec, option, prelude::*, sample::subsequence};
use proto::model::{Hello, IpFamily, NodeInfo, PerFamily, Protocol, Role, SourceVersion, TrafficPolicy};
use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

use crate::object::{
    ClusterObject, ObjectKind, ObjectName, Origin, ParsedObject, ServiceCidrObject, ServiceObject, ServiceObjectPort,
    SliceEndpoint, SliceObject, SlicePort, SourceUpdate,
};

pub(crate) const NODES: [&str; 3] = ["node-0", "node-1", "node-2"];
pub(crate) const ZONES: [&str; 2] = ["zone-a", "zone-b"];

const SERVICES: [&str; 4] = ["s0", "s1", "s2", "s3"];
const SLICES: [&str; 5] = ["x0", "x1", "x2", "x3", "x4"];
const CLUSTER_IPS: [&str; 3] = ["10.96.0.1", "10.96.0.2", "10.96.0.3"];
const CLUSTER_IPS_V6: [&str; 2] = ["fd00::1", "fd00::2"];
/// A cluster IP, an address of a node, of a service CIDR, of a pod CIDR and of an endpoint are among them.
const EXTERNAL_IPS: [&str; 8] =
    ["192.0.2.1", "192.0.2.2", "10.96.0.1", "172.16.0.1", "10.97.0.1", "10.244.1.1", "10.0.0.1", "2001:db8::1"];
const NODE_ADDRESSES: [&str; 3] = ["172.16.0.1", "172.16.0.2", "192.0.2.2"];
const PORTS: [(&str, Protocol, u16); 4] =
    [("", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53), ("http", Protocol::Tcp, 80), ("web", Protocol::Tcp, 8080)];

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Counts steps of code whose work must be bounded.
pub(crate) fn count_steps(steps: usize) {
    STEPS.set(STEPS.get() + steps);
}

/// The steps on this thread since the last call.
pub(crate) fn take_steps() -> usize {
    STEPS.take()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn number(value: u16) -> NonZeroU16 {
    NonZeroU16::new(value).unwrap()
}

pub(crate) fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

/// A Service `ns/<name>` with one port `http`, 80/TCP.
pub(crate) fn service(name: &str, cluster_ip: &str) -> ServiceObject {
    ServiceObject {
        name: ObjectName::new("ns", name),
        created: Some(time(1)),
        cluster_ips: PerFamily { v4: Some(ip(cluster_ip)), v6: None },
        ports: vec![ServiceObjectPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: number(80),
            node_port: None,
        }],
        ..ServiceObject::default()
    }
}

/// A slice `ns/<name>` of a service, for its port `http`, with endpoints on port 8080. Its family is that of the first
/// one.
pub(crate) fn slice(name: &str, service: &str, endpoints: Vec<SliceEndpoint>) -> SliceObject {
    SliceObject {
        name: ObjectName::new("ns", name),
        created: Some(time(0)),
        service: service.into(),
        family: endpoints.first().map_or(IpFamily::V4, |endpoint| IpFamily::of(&endpoint.address)),
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: number(8080) }],
        endpoints,
        trigger: None,
    }
}

/// A ready endpoint without hints.
pub(crate) fn endpoint(address: &str, node: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: ip(address),
        node: Some(node.into()),
        ready: true,
        serving: true,
        terminating: false,
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
        pod: None,
    }
}

pub(crate) fn node(name: &str, zone: &str) -> NodeInfo {
    NodeInfo { zone: zone.into(), eligible: true, ..NodeInfo::unknown(name) }
}

/// A ServiceCIDR.
pub(crate) fn service_cidr(name: &str, cidrs: &[&str]) -> ServiceCidrObject {
    let mut cidrs: Vec<_> = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    cidrs.sort_unstable();
    ServiceCidrObject { name: name.into(), cidrs }
}

/// An object as a source delivers it, without problems.
pub(crate) fn parsed(object: impl Into<ClusterObject>) -> ParsedObject {
    let object = object.into();
    let (kind, name) = match &object {
        ClusterObject::Service(service) => (ObjectKind::Service, service.name.clone()),
        ClusterObject::ForeignService(_) => panic!("a Service of another proxy does not contain its name"),
        ClusterObject::EndpointSlice(slice) => (ObjectKind::EndpointSlice, slice.name.clone()),
        ClusterObject::Node(node) => (ObjectKind::Node, ObjectName::new("", node.info.name.clone())),
        ClusterObject::ServiceCidr(object) => (ObjectKind::ServiceCidr, ObjectName::new("", object.name.clone())),
    };
    ParsedObject { kind, name, object: Some(object), problems: Vec::new(), origin: Origin::default() }
}

pub(crate) fn put(object: impl Into<ClusterObject>) -> SourceUpdate {
    SourceUpdate::Apply(parsed(object))
}

/// The first updates of a source with these objects.
pub(crate) fn initial(objects: impl IntoIterator<Item = ClusterObject>) -> Vec<SourceUpdate> {
    let parsed: Vec<_> = objects.into_iter().map(parsed).collect();
    let of_kind = |kind| parsed.iter().filter(move |parsed| parsed.kind == kind).cloned().collect();
    ObjectKind::ALL.into_iter().map(|kind| SourceUpdate::Replace(kind, of_kind(kind))).collect()
}

impl From<ServiceObject> for ClusterObject {
    fn from(service: ServiceObject) -> Self {
        Self::Service(service)
    }
}

impl From<SliceObject> for ClusterObject {
    fn from(slice: SliceObject) -> Self {
        Self::EndpointSlice(slice)
    }
}

impl From<ServiceCidrObject> for ClusterObject {
    fn from(object: ServiceCidrObject) -> Self {
        Self::ServiceCidr(object)
    }
}

impl From<NodeInfo> for ClusterObject {
    fn from(node: NodeInfo) -> Self {
        Self::Node(node.into())
    }
}

/// A subsequence of the texts.
fn some_of<const N: usize>(texts: [&'static str; N]) -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(texts.to_vec(), 0..=N)
}

fn some_ips<const N: usize>(texts: [&'static str; N]) -> impl Strategy<Value = Vec<IpAddr>> {
    some_of(texts).prop_map(|texts| {
        let mut ips: Vec<_> = texts.into_iter().map(ip).collect();
        ips.sort_unstable();
        ips
    })
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)]
}

fn ports() -> impl Strategy<Value = Vec<ServiceObjectPort>> {
    // Also those of VIPs, which are the same at addresses of Nodes.
    let node_port = option::weighted(0.4, prop_oneof![Just(30000), Just(30001), Just(80), Just(53)]);
    subsequence(PORTS.to_vec(), 1..=3).prop_flat_map(move |ports| {
        let count = ports.len();
        (Just(ports), vec(node_port.clone(), count)).prop_map(|(ports, node_ports)| {
            let ports = ports.into_iter().zip(node_ports);
            let port = |((name, protocol, port), node_port): ((&str, _, _), Option<u16>)| ServiceObjectPort {
                name: name.into(),
                protocol,
                port: number(port),
                node_port: node_port.map(number),
            };
            ports.map(port).collect()
        })
    })
}

pub(crate) fn any_service() -> impl Strategy<Value = ServiceObject> {
    let cluster_ips = (
        option::weighted(0.9, proptest::sample::select(CLUSTER_IPS.to_vec())),
        option::weighted(0.5, proptest::sample::select(CLUSTER_IPS_V6.to_vec())),
    );
    let names = proptest::sample::select(SERVICES.to_vec());
    let vips = (some_ips(EXTERNAL_IPS), prop_oneof![Just(Vec::new()), some_ips(EXTERNAL_IPS)]);
    let health_check = option::weighted(0.3, proptest::sample::select(vec![30000, 80]));
    let identity = (names, option::of(0..3u64));
    (identity, cluster_ips, vips, policy(), policy(), ports(), health_check).prop_map(
        |(
            (name, created),
            (v4, v6),
            (external, load_balancer),
            internal_policy,
            external_policy,
            ports,
            health_check,
        )| ServiceObject {
            created: created.map(time),
            health_check_node_port: health_check.map(number),
            cluster_ips: PerFamily { v4: v4.map(ip), v6: v6.map(ip) },
            external_ips: external,
            load_balancer_ips: load_balancer,
            internal_policy,
            external_policy,
            ports,
            ..service(name, CLUSTER_IPS[0])
        },
    )
}

/// Endpoints that all have zone hints, node hints, both, or none, or that differ in it.
fn any_endpoints(family: IpFamily) -> impl Strategy<Value = Vec<SliceEndpoint>> {
    let zone_hints = move || some_of(ZONES);
    let node_hints = move || some_of(NODES);
    let endpoint = move || {
        let conditions = prop_oneof![
            6 => Just((true, true, false)),
            2 => Just((false, true, true)),
            1 => any::<(bool, bool, bool)>(),
        ];
        (
            0..4u8,
            option::weighted(0.9, proptest::sample::select(NODES.to_vec())),
            conditions,
            zone_hints(),
            node_hints(),
        )
    };
    (vec(endpoint(), 0..6), 0..5u8).prop_map(move |(endpoints, hints)| {
        let one =
            |(last, node, (ready, serving, terminating), zones, nodes): (u8, Option<&str>, _, Vec<&str>, Vec<&str>)| {
                let all = |some: Vec<&str>, fallback: &str, wanted: bool| -> Vec<Arc<str>> {
                    match (hints, wanted) {
                        (4, _) => some.into_iter().map(Into::into).collect(),
                        (_, false) => Vec::new(),
                        (_, true) if some.is_empty() => vec![fallback.into()],
                        (_, true) => some.into_iter().map(Into::into).collect(),
                    }
                };
                SliceEndpoint {
                    address: match family {
                        IpFamily::V4 => IpAddr::from([10, 0, 0, last]),
                        IpFamily::V6 => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, last]),
                    },
                    node: node.map(Into::into),
                    ready,
                    serving,
                    terminating,
                    zone_hints: all(zones, ZONES[0], matches!(hints, 1 | 3)),
                    node_hints: all(nodes, NODES[0], matches!(hints, 2 | 3)),
                    pod: None,
                }
            };
        endpoints.into_iter().map(one).collect()
    })
}

pub(crate) fn any_slice() -> impl Strategy<Value = SliceObject> {
    let family = prop_oneof![3 => Just(IpFamily::V4), 1 => Just(IpFamily::V6)];
    let ports = subsequence(PORTS.to_vec(), 1..=3);
    let names = (proptest::sample::select(SLICES.to_vec()), proptest::sample::select(SERVICES.to_vec()));
    let endpoints = family.prop_flat_map(|family| (Just(family), any_endpoints(family)));
    (names, ports, endpoints, option::of(0..3u64), option::of(0..100u64)).prop_map(
        |((name, service), ports, (family, endpoints), created, trigger)| SliceObject {
            created: created.map(time),
            family,
            ports: ports
                .into_iter()
                .map(|(name, protocol, port)| SlicePort { name: name.into(), protocol, port: number(port) })
                .collect(),
            trigger: trigger.map(time),
            ..slice(name, service, endpoints)
        },
    )
}

pub(crate) fn any_node() -> impl Strategy<Value = NodeInfo> {
    let zones = prop_oneof![Just(""), Just(ZONES[0]), Just(ZONES[1])];
    let pod_cidrs = subsequence(vec!["10.244.0.0/16", "10.244.1.0/24"], 0..=1);
    (proptest::sample::select(NODES.to_vec()), zones, some_ips(NODE_ADDRESSES), pod_cidrs).prop_map(
        |(name, zone, addresses, pod_cidrs)| {
            let pod_cidrs = pod_cidrs.into_iter().map(|cidr| cidr.parse().unwrap()).collect();
            NodeInfo { addresses, pod_cidrs, ..node(name, zone) }
        },
    )
}

fn any_service_cidr() -> impl Strategy<Value = ServiceCidrObject> {
    (some_of(["cidr-0", "cidr-1"]), some_of(["10.96.0.0/16", "10.97.0.0/16", "fd00::/112"]))
        .prop_map(|(names, cidrs)| service_cidr(names.first().unwrap_or(&"cidr-2"), &cidrs))
}

fn any_object() -> impl Strategy<Value = ClusterObject> {
    prop_oneof![
        3 => any_service().prop_map(ClusterObject::Service),
        5 => any_slice().prop_map(ClusterObject::EndpointSlice),
        1 => any_node().prop_map(|info| ClusterObject::Node(info.into())),
        1 => any_service_cidr().prop_map(ClusterObject::ServiceCidr),
    ]
}

/// Any update: mostly created or changed objects, some deletions, some unusable objects, and some lists.
pub(crate) fn any_update() -> impl Strategy<Value = SourceUpdate> {
    let deletion = |object: ClusterObject| {
        let ParsedObject { kind, name, .. } = parsed(object);
        SourceUpdate::Delete(kind, name)
    };
    let unusable = |object: ClusterObject| {
        let problem = crate::object::ObjectProblem { field: "spec".to_owned(), message: "unusable".to_owned() };
        SourceUpdate::Apply(ParsedObject { object: None, problems: vec![problem], ..parsed(object) })
    };
    let all = |objects: Vec<ClusterObject>| {
        let kind = objects.first().map_or(ObjectKind::Service, |first| parsed(first.clone()).kind);
        let of_kind = objects.into_iter().map(parsed).filter(|parsed| parsed.kind == kind);
        // A list contains each object once.
        let by_name: std::collections::BTreeMap<_, _> = of_kind.map(|parsed| (parsed.name.clone(), parsed)).collect();
        SourceUpdate::Replace(kind, by_name.into_values().collect())
    };
    prop_oneof![
        12 => any_object().prop_map(put),
        3 => any_object().prop_map(deletion),
        1 => any_object().prop_map(unusable),
        1 => vec(any_object(), 0..6).prop_map(all),
    ]
}

/// The Hello of a node without state.
pub(crate) fn hello(node: &str) -> Hello {
    Hello {
        version: proto::PROTOCOL_VERSION,
        node: node.into(),
        role: Role::Backend,
        backend: "nft".to_owned(),
        backend_version: "1.2.3".to_owned(),
        resume: None,
        digests: None,
        source_version: SourceVersion(0),
        kind_versions: proto::model::KindVersions::default(),
        started: None,
    }
}

/// Counts the warnings and errors that the frontend logs in this thread.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    pub(crate) fn capture() -> (Self, DefaultGuard) {
        let warnings = Self::default();
        (warnings.clone(), tracing::subscriber::set_default(warnings))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("fairlead_frontend")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

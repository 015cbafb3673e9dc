//! The cluster's objects as far as they matter: parsed once at a source, trimmed, right by construction.

use std::{
    fmt,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    sync::Arc,
    time::SystemTime,
};

use ipnet::IpNet;
use proto::model::{IpFamily, IpvsScheduler, NodeInfo, PerFamily, Protocol, SourceVersion, TrafficPolicy};
use serde::Serialize;

/// The kinds of objects that a source delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// core/v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// core/v1 Node.
    Node,
    /// networking.k8s.io/v1 ServiceCIDR.
    ServiceCidr,
}

/// Identifies an object within its kind. The namespace of a Node or ServiceCIDR is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// A Service that gets programmed: neither headless nor ExternalName, and ours by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceObject {
    /// Identity.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`: of two services that claim one VIP and port, the older wins.
    pub created: Option<SystemTime>,
    /// `spec.clusterIPs` (or the legacy `spec.clusterIP`), by family.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// `spec.externalIPs`, sorted.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` in VIP mode, sorted.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, sorted.
    pub source_ranges: Vec<IpNet>,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`, as far as it means something for this service.
    pub external_policy: TrafficPolicy,
    /// ClientIP session affinity.
    pub affinity_seconds: Option<NonZeroU32>,
    /// `spec.healthCheckNodePort`, as far as it means something for this service.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Annotation `fairlead.io/ipvs-scheduler`.
    pub ipvs_scheduler: Option<IpvsScheduler>,
    /// `spec.ports`, sorted by name and protocol.
    pub ports: Vec<ServiceObjectPort>,
}

/// One entry of `spec.ports` of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceObjectPort {
    /// `name`; empty when there is none.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: NonZeroU16,
    /// `nodePort`.
    pub node_port: Option<NonZeroU16>,
}

/// An EndpointSlice with addresses (not names).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceObject {
    /// Identity.
    pub name: ObjectName,
    /// Label `kubernetes.io/service-name`: the Service in the same namespace.
    pub service: Arc<str>,
    /// `addressType`.
    pub family: IpFamily,
    /// `ports` with a number, sorted.
    pub ports: Vec<SlicePort>,
    /// `endpoints` with a usable address, in the order of the object.
    pub endpoints: Vec<SliceEndpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub trigger: Option<SystemTime>,
}

/// One entry of `ports` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlicePort {
    /// `name`; empty when it is empty.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: NonZeroU16,
}

/// One entry of `endpoints` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `conditions.ready`; true when absent.
    pub ready: bool,
    /// `conditions.serving`; true when absent.
    pub serving: bool,
    /// `conditions.terminating`; false when absent.
    pub terminating: bool,
    /// `hints.forZones[].name`, sorted; empty when there are none.
    pub zone_hints: Vec<Arc<str>>,
    /// `hints.forNodes[].name`, sorted; empty when there are none.
    pub node_hints: Vec<Arc<str>>,
}

/// A ServiceCIDR: where cluster IPs are allocated from. There may be several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidrObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `spec.cidrs`, sorted, their host bits cleared.
    pub cidrs: Vec<IpNet>,
}

/// An object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterObject {
    /// A Service.
    Service(ServiceObject),
    /// An EndpointSlice.
    EndpointSlice(SliceObject),
    /// A Node, as it travels to the node itself.
    Node(NodeInfo),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidrObject),
}

/// Something wrong with an object. What is not named by a problem is in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ObjectProblem {
    /// The path of the field: `spec.externalIPs[1]`.
    pub field: String,
    /// What is wrong with it, with the value, and what became of it.
    pub message: String,
}

/// What a source says about one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedObject {
    /// Which object.
    pub kind: ObjectKind,
    /// Its name.
    pub name: ObjectName,
    /// What is in force of it; `None` when it is not for us, or unusable as a whole.
    pub object: Option<ClusterObject>,
    /// What was dropped, and why.
    pub problems: Vec<ObjectProblem>,
}

/// What a source delivers. Sources are interchangeable: a Kubernetes API, a directory of manifests, another frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "moved once through a short queue, while a box would be one more allocation an object"
)]
pub enum SourceUpdate {
    /// An object appeared or changed.
    Apply(ParsedObject),
    /// An object is gone.
    Delete(ObjectKind, ObjectName),
    /// Everything of a kind: what is not in here is gone. Each kind comes once like this before anything is served.
    Replace(ObjectKind, Vec<ParsedObject>),
    /// What was said of a kind before this is so much. Of a source that has versions.
    Progress(ObjectKind, VersionProgress),
}

/// How far a kind has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionProgress {
    /// Up to a change of this version.
    Changed(SourceVersion),
    /// Up to this version, at which nothing need have changed.
    Confirmed(SourceVersion),
}

impl ObjectName {
    /// A name in a namespace; an empty one for objects of the cluster.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl ObjectKind {
    /// All kinds, in an order in which they can be applied.
    pub const ALL: [Self; 4] = [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr];

    /// Whether objects of this kind live in a namespace.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::Service | Self::EndpointSlice => true,
            Self::Node | Self::ServiceCidr => false,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        })
    }
}

impl fmt::Display for ObjectName {
    /// `namespace/name`, or `name` without a namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

//! The objects of the cluster, reduced to the fields that Fairlead uses: parsed and validated once, at the source.

use std::{
    fmt,
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    str::FromStr,
    sync::Arc,
    time::SystemTime,
};

use ipnet::IpNet;
use proto::{
    model::{IpFamily, NodeInfo, PerFamily, Protocol, SourceVersion, TrafficPolicy},
    v1::Problem,
};

/// The annotation of a Service for which connections are reset, in the form of `--reset-connections`.
pub(crate) const RESET_CONNECTIONS_ANNOTATION: &str = "fairlead.io/reset-connections";

/// The taint that keeps pods off a node until its Services work. Its effect and value do not matter.
pub(crate) const STARTUP_TAINT: &str = "fairlead.io/starting";

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
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// Identifies an object.
pub(crate) type ObjectId = (ObjectKind, ObjectName);

/// A Service that is programmed: neither headless nor ExternalName, and not labelled for another proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceObject {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`: of two Services that claim one VIP and port, the older one gets it.
    pub created: Option<SystemTime>,
    /// `spec.clusterIPs` (or the legacy `spec.clusterIP`), by family.
    pub cluster_ips: PerFamily<Option<IpAddr>>,
    /// `spec.externalIPs` of the IP families with a cluster IP, as all addresses here, sorted.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` in VIP mode, sorted.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Load-balancer IPs that are not served, because not all of their source ranges can be used, sorted. They stay
    /// claimed, so that no other Service gets them.
    pub closed_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, sorted.
    pub source_ranges: Vec<IpNet>,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`; Cluster if the Service is not externally accessible.
    pub external_policy: TrafficPolicy,
    /// The timeout of ClientIP session affinity; `None` without affinity.
    pub affinity_seconds: Option<NonZeroU32>,
    /// `spec.healthCheckNodePort` of a load balancer with external policy Local.
    pub health_check_node_port: Option<NonZeroU16>,
    /// Annotation `fairlead.io/reset-connections`, at most what the operator allows; else the operator's choice.
    pub connection_resets: Option<ConnectionResets>,
    /// `spec.ports`, sorted by name and protocol.
    pub ports: Vec<ServiceObjectPort>,
}

/// How much of one Service is used. What exceeds a limit is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimits {
    /// External and load-balancer IPs. At most [`Self::MAX_LIST`].
    pub vips: usize,
    /// Ports times external and load-balancer IPs.
    pub port_vips: usize,
    /// Source ranges, without those that others contain or complete. Beyond it the load-balancer IPs are closed. At
    /// most [`Self::MAX_LIST`].
    pub source_ranges: usize,
    /// Ports times source ranges. Beyond it the load-balancer IPs are closed.
    pub port_source_ranges: usize,
    /// Endpoints of one service port, for each IP family.
    pub endpoints: usize,
    /// Endpoints of all service ports together, for each IP family.
    pub port_endpoints: usize,
}

/// Which TCP connections of a Service are reset: without that, a client waits for an endpoint that does not exist any
/// more until it gives up. Each includes the ones before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionResets {
    /// None.
    #[default]
    Never,
    /// Those to endpoints that do not serve, on a Node whose object is gone.
    NodeGone,
    /// Those to addresses that no EndpointSlice of the Service has.
    Removed,
}

/// One entry of `spec.ports` of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceObjectPort {
    /// `name`; empty if absent.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: NonZeroU16,
    /// `nodePort`.
    pub node_port: Option<NonZeroU16>,
}

/// An EndpointSlice with IP addresses (not FQDNs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceObject {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`: a slice that is older than a claim protects its addresses from it.
    pub created: Option<SystemTime>,
    /// Label `kubernetes.io/service-name`: the Service in the same namespace.
    pub service: Arc<str>,
    /// `addressType`.
    pub family: IpFamily,
    /// `ports` with a number, sorted.
    pub ports: Vec<SlicePort>,
    /// `endpoints` with a usable address, in their order.
    pub endpoints: Vec<SliceEndpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub trigger: Option<SystemTime>,
}

/// One entry of `ports` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlicePort {
    /// `name`.
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
    /// `conditions.ready`; true if absent.
    pub ready: bool,
    /// `conditions.serving`; true if absent.
    pub serving: bool,
    /// `conditions.terminating`; false if absent.
    pub terminating: bool,
    /// `hints.forZones[].name`, sorted.
    pub zone_hints: Vec<Arc<str>>,
    /// `hints.forNodes[].name`, sorted.
    pub node_hints: Vec<Arc<str>>,
    /// `targetRef`, if it is a pod in the namespace of the slice.
    pub pod: Option<PodId>,
}

/// A pod, by its `metadata.uid`, which no other pod ever has: every frontend names it alike, also after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId([u8; 16]);

impl PodId {
    /// Before all others.
    pub(crate) const FIRST: Self = Self([0; 16]);

    /// A pod by its UID, or, if a slice gives none, by its name.
    #[must_use]
    pub fn new(namespace: &str, name: &str, uid: Option<&str>) -> Self {
        let Some(uid) = uid.filter(|uid| !uid.is_empty()) else {
            return Self::hashed(&format!("{namespace}/{name}"));
        };
        let digits = uid.replace('-', "");
        let parsed = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
        parsed.map_or_else(|| Self::hashed(uid), |uid| Self(uid.to_be_bytes()))
    }

    /// For names and for UIDs that are no UUIDs, which the author of a slice may choose.
    fn hashed(text: &str) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_ref()[..16]);
        Self(id)
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", u128::from_be_bytes(self.0));
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// A ServiceCIDR: ranges that cluster IPs are allocated from. There may be several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidrObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `spec.cidrs`, sorted, their host bits cleared.
    pub cidrs: Vec<IpNet>,
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    /// In the form that is sent to the node itself.
    pub info: NodeInfo,
    /// Whether it has the taint [`STARTUP_TAINT`].
    pub is_starting: bool,
}

impl From<NodeInfo> for NodeObject {
    /// Without the taint.
    fn from(info: NodeInfo) -> Self {
        Self { info, is_starting: false }
    }
}

/// Nodes by name; `None` for those that no longer exist.
pub type NodeChanges = Vec<(Arc<str>, Option<Arc<NodeInfo>>)>;

/// An object of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterObject {
    /// A Service.
    Service(ServiceObject),
    /// The cluster IPs of a Service that another proxy serves: label `service.kubernetes.io/service-proxy-name`.
    ForeignService(PerFamily<Option<IpAddr>>),
    /// An EndpointSlice.
    EndpointSlice(SliceObject),
    /// A Node.
    Node(NodeObject),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidrObject),
}

/// An invalid field of an object. All fields without a problem are used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectProblem {
    /// The path of the field: `spec.externalIPs[1]`.
    pub field: String,
    /// The value, what is wrong with it, what Fairlead does instead, and what to do about it.
    pub message: String,
}

/// One object as a source delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedObject {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: ObjectName,
    /// Its usable fields; `None` if it is not for Fairlead, or not usable at all.
    pub object: Option<ClusterObject>,
    /// Its invalid fields.
    pub problems: Vec<ObjectProblem>,
    /// Where this version of it comes from.
    pub origin: Origin,
}

/// The version of an object, and the manager that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// `metadata.resourceVersion`, where that is a number; 0: unknown.
    pub version: SourceVersion,
    /// `manager` of the newest entry of `metadata.managedFields`.
    pub manager: Option<Arc<str>>,
}

/// The object that a change comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: ObjectName,
    /// Its version; unknown if it was deleted.
    pub origin: Origin,
}

/// What a source delivers. Sources are interchangeable: a Kubernetes API server, or a directory of manifests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "moved once through a short queue, and a box would cost an allocation for each object"
)]
pub enum SourceUpdate {
    /// An object was created or changed.
    Apply(ParsedObject),
    /// An object was deleted.
    Delete(ObjectKind, ObjectName),
    /// All objects of a kind; those that are not included no longer exist. Each kind comes once like this before any
    /// backend is served.
    Replace(ObjectKind, Vec<ParsedObject>),
    /// The version up to which a kind has been delivered. Only of a source that has versions.
    Progress(ObjectKind, VersionProgress),
}

/// The version up to which a kind has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionProgress {
    /// The last change has this version.
    Changed(SourceVersion),
    /// All changes up to this version have been delivered; perhaps there was none.
    Confirmed(SourceVersion),
}

impl ObjectProblem {
    /// As it is shown to operators, with the object.
    pub(crate) fn into_wire(self, kind: ObjectKind, name: &ObjectName) -> Problem {
        Problem { object: format!("{kind} {name}"), field: self.field, message: self.message }
    }
}

impl ServiceLimits {
    /// A service port is one message, with at most 23 bytes for an address or a range: full lists are far below its
    /// limit of 1 MiB. A larger one would end the stream of every node.
    pub const MAX_LIST: usize = 4096;
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self {
            vips: Self::MAX_LIST,
            port_vips: 20_000,
            source_ranges: Self::MAX_LIST,
            port_source_ranges: 50_000,
            endpoints: 10_000,
            port_endpoints: 100_000,
        }
    }
}

impl ConnectionResets {
    const ALL: [Self; 3] = [Self::Never, Self::NodeGone, Self::Removed];
}

impl fmt::Display for ConnectionResets {
    /// The form of `--reset-connections`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "never",
            Self::NodeGone => "node-gone",
            Self::Removed => "removed",
        })
    }
}

impl FromStr for ConnectionResets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|resets| resets.to_string() == text);
        named.ok_or_else(|| format!("{text:?}: expected `never`, `node-gone` or `removed`"))
    }
}

impl ObjectName {
    /// A name in a namespace, which is empty for cluster-scoped objects.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl ObjectKind {
    /// All kinds, in the order in which they are applied.
    pub const ALL: [Self; 4] = [Self::Node, Self::Service, Self::EndpointSlice, Self::ServiceCidr];
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

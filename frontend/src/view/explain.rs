//! Why an endpoint is in a pool or not: what `view` decides, told one endpoint at a time for one node.

use std::{collections::BTreeMap, fmt, net::IpAddr, num::NonZeroU16, sync::Arc};

use proto::model::{IpFamily, PerFamily, ServicePort};

use crate::object::{ObjectName, ServiceObject, SliceEndpoint, SliceObject};

use super::{
    Decisions,
    choice::{Basis, Choice, Hints, Scope, Used},
    merge::{Merged, entries, merge},
};

/// What a node is told of a service port, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortExplanation {
    /// The same for every node.
    pub port: ServicePort,
    /// Every endpoint of every slice, in the order of address and port.
    pub endpoints: Vec<EndpointExplanation>,
    /// What is true of all endpoints together: which hints are in force here, and why others are not.
    pub notes: Vec<String>,
}

/// An endpoint as a slice lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointExplanation {
    /// The slice.
    pub slice: ObjectName,
    /// What it says.
    pub endpoint: SliceEndpoint,
    /// The number of the port; `None` when the slice has no such port.
    pub port: Option<NonZeroU16>,
    /// Whether it is in the cluster pool of the node.
    pub cluster: EndpointReason,
    /// Whether it is in the local pool of the node.
    pub local: EndpointReason,
}

/// Why an endpoint is in a pool, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointReason {
    /// In: it is ready.
    Ready,
    /// In: it is ready, and hinted to be used from this node.
    NodeHint,
    /// In: it is ready, and hinted to be used from this zone.
    ZoneHint(Arc<str>),
    /// In: nothing is ready, and it still serves while it terminates.
    Fallback,
    /// Not: it says that it is not ready.
    NotReady,
    /// Not: it terminates, and serves no longer.
    NotServing,
    /// Not: it terminates, and others are ready.
    OthersReady,
    /// Not: others are hinted to be used from this node, and this one from these.
    OtherNodes(Vec<Arc<str>>),
    /// Not: others are hinted to be used from this zone, and this one from these.
    OtherZones(Vec<Arc<str>>),
    /// Not: it is on this node, or on none that is known.
    Elsewhere(Option<Arc<str>>),
    /// Not: nobody follows policy Cluster here.
    PolicyLocal,
    /// Not: the Service has no cluster IP of its family.
    NoClusterIp(IpFamily),
    /// Not: this slice lists the same address and port, and is believed.
    Duplicate(ObjectName),
    /// Not: its slice has no port of this name and protocol.
    NoSuchPort,
}

/// Explains what a node in a zone is told of a service port. `port` and `slices` are those of [`view`](super::view).
#[must_use]
pub fn explain<'a>(
    service: &ServiceObject,
    mut port: ServicePort,
    slices: impl IntoIterator<Item = &'a SliceObject> + Clone,
    node: &str,
    zone: &str,
) -> ServicePortExplanation {
    let merged = merge(&port.key, slices.clone());
    let decisions = Decisions::of(service, &port, &merged);
    port.any_endpoints = decisions.any_endpoints;
    let mut endpoints = Vec::new();
    let mut counts: Option<Merged<'_>> = None;
    for entry in entries(&port.key, slices.clone()) {
        let twin = counts.filter(|counts| counts.identity() == entry.identity());
        let (cluster, local) = match twin {
            Some(twin) => {
                let duplicate = EndpointReason::Duplicate(twin.slice.name.clone());
                (duplicate.clone(), duplicate)
            }
            None => {
                counts = Some(entry);
                decisions.explain(service, &entry, node, zone)
            }
        };
        let (slice, endpoint) = (entry.slice.name.clone(), entry.endpoint.clone());
        endpoints.push(EndpointExplanation { slice, endpoint, port: Some(entry.port), cluster, local });
    }
    let is_its = |slice: &&SliceObject| {
        let mut ports = slice.ports.iter();
        ports.any(|of| of.name == port.key.port_name && of.protocol == port.key.protocol)
    };
    for slice in slices.into_iter().filter(|slice| !is_its(slice)) {
        endpoints.extend(slice.endpoints.iter().map(|endpoint| EndpointExplanation {
            slice: slice.name.clone(),
            endpoint: endpoint.clone(),
            port: None,
            cluster: EndpointReason::NoSuchPort,
            local: EndpointReason::NoSuchPort,
        }));
    }
    endpoints.sort_by_key(|explained| explained.endpoint.address);
    let notes = IpFamily::ALL.into_iter().filter_map(|family| {
        let choice = decisions.cluster[family].as_ref()?;
        let notes = [
            hints("node", &choice.nodes, choice.scope(node, zone) == Scope::Node, node),
            hints("zone", &choice.zones, choice.scope(node, zone) == Scope::Zone, zone),
        ];
        Some(notes.into_iter().flatten().map(move |note| format!("{family}: {note}")))
    });
    let notes = notes.flatten().collect();
    ServicePortExplanation { port, endpoints, notes }
}

impl Decisions<'_> {
    /// For an endpoint that counts: the cluster pool, the local pool.
    fn explain(
        &self,
        service: &ServiceObject,
        merged: &Merged<'_>,
        node: &str,
        zone: &str,
    ) -> (EndpointReason, EndpointReason) {
        let family = merged.family();
        if service.cluster_ips[family].is_none() {
            return (EndpointReason::NoClusterIp(family), EndpointReason::NoClusterIp(family));
        }
        let cluster = match &self.cluster[family] {
            None => EndpointReason::PolicyLocal,
            Some(choice) => choice.explain(merged, node, zone),
        };
        (cluster, explain_local(&self.local, merged, node))
    }
}

impl Choice<'_> {
    fn explain(&self, merged: &Merged<'_>, node: &str, zone: &str) -> EndpointReason {
        let state = self.used.explain(merged);
        let of_node = |hints: &[Arc<str>]| hints.iter().any(|hint| **hint == *node);
        let of_zone = |hints: &[Arc<str>]| hints.iter().any(|hint| **hint == *zone);
        let SliceEndpoint { node_hints, zone_hints, .. } = merged.endpoint;
        match (state, self.scope(node, zone)) {
            (EndpointReason::Ready, Scope::Node) if of_node(node_hints) => EndpointReason::NodeHint,
            (EndpointReason::Ready, Scope::Node) => EndpointReason::OtherNodes(node_hints.clone()),
            (EndpointReason::Ready, Scope::Zone) if of_zone(zone_hints) => EndpointReason::ZoneHint(zone.into()),
            (EndpointReason::Ready, Scope::Zone) => EndpointReason::OtherZones(zone_hints.clone()),
            (state, _) => state,
        }
    }
}

impl Used<'_> {
    /// By its own state and that of the others.
    fn explain(&self, merged: &Merged<'_>) -> EndpointReason {
        match self.basis {
            _ if merged.ready() => EndpointReason::Ready,
            Basis::Fallback if merged.fallback() => EndpointReason::Fallback,
            Basis::Ready if merged.fallback() => EndpointReason::OthersReady,
            _ if merged.endpoint.terminating => EndpointReason::NotServing,
            _ => EndpointReason::NotReady,
        }
    }
}

fn explain_local(local: &PerFamily<BTreeMap<Arc<str>, Used<'_>>>, merged: &Merged<'_>, node: &str) -> EndpointReason {
    match &merged.endpoint.node {
        Some(its) if **its == *node => match local[merged.family()].get(node) {
            Some(used) => used.explain(merged),
            None if merged.endpoint.terminating => EndpointReason::NotServing,
            None => EndpointReason::NotReady,
        },
        other => EndpointReason::Elsewhere(other.clone()),
    }
}

/// Whether hints of a kind narrow the choice at a place.
fn hints(kind: &str, hints: &Hints<'_>, in_force: bool, place: &str) -> Option<String> {
    match hints {
        Hints::Absent => None,
        Hints::Vetoed(without) => {
            let (address, port) = without.identity();
            let address = std::net::SocketAddr::new(address, port.get());
            Some(format!("{kind} hints are ignored, for the ready endpoint {address} has none"))
        }
        Hints::InForce(_) if in_force => {
            Some(format!("{kind} hints are in force: only what is hinted for {place} is used"))
        }
        Hints::InForce(_) if place.is_empty() => {
            Some(format!("{kind} hints are ignored, for the node's {kind} is not known"))
        }
        Hints::InForce(_) => {
            Some(format!("{kind} hints are ignored here, for none is for {place}, or others go first"))
        }
    }
}

impl EndpointExplanation {
    /// The endpoint's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.endpoint.address
    }
}

impl EndpointReason {
    /// Whether it is in the pool.
    #[must_use]
    pub const fn is_in(&self) -> bool {
        matches!(self, Self::Ready | Self::NodeHint | Self::ZoneHint(_) | Self::Fallback)
    }

    /// One word for it, for scripts; it stays.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NodeHint => "node-hint",
            Self::ZoneHint(_) => "zone-hint",
            Self::Fallback => "terminating-fallback",
            Self::NotReady => "not-ready",
            Self::NotServing => "not-serving",
            Self::OthersReady => "terminating-others-ready",
            Self::OtherNodes(_) => "hint-other-node",
            Self::OtherZones(_) => "hint-other-zone",
            Self::Elsewhere(_) => "not-on-this-node",
            Self::PolicyLocal => "policy-local",
            Self::NoClusterIp(_) => "no-cluster-ip",
            Self::Duplicate(_) => "duplicate",
            Self::NoSuchPort => "no-such-port",
        }
    }
}

impl fmt::Display for EndpointReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::NodeHint => f.write_str("ready, hinted for this node"),
            Self::ZoneHint(zone) => write!(f, "ready, hinted for zone {zone}"),
            Self::Fallback => f.write_str("terminates but still serves, and nothing is ready"),
            Self::NotReady => f.write_str("not ready"),
            Self::NotServing => f.write_str("terminates, and serves no longer"),
            Self::OthersReady => f.write_str("terminates, and others are ready"),
            Self::OtherNodes(nodes) => write!(f, "hinted for node {}", nodes.join(", ")),
            Self::OtherZones(zones) => write!(f, "hinted for zone {}", zones.join(", ")),
            Self::Elsewhere(Some(node)) => write!(f, "on {node}"),
            Self::Elsewhere(None) => f.write_str("its slice names no node"),
            Self::PolicyLocal => f.write_str("no traffic follows policy Cluster"),
            Self::NoClusterIp(family) => write!(f, "the Service has no {family} cluster IP"),
            Self::Duplicate(slice) => write!(f, "the same is in slice {}, which counts", slice.name),
            Self::NoSuchPort => f.write_str("its slice has no such port"),
        }
    }
}

//! Why each endpoint is in the pools of a node or not: the decisions of `view`, one endpoint at a time, for one node.

use std::{net::SocketAddr, num::NonZeroU16, sync::Arc};

use proto::model::{IpFamily, Protocol, ServicePort, ServicePortKey};

use crate::object::{ObjectName, ServiceObject, SliceEndpoint, SliceObject};

use super::{
    EndpointDecisions, ServiceEndpoints,
    merge::{MergedEndpoint, Usability, entries, merge},
    selection::{ClusterSelection, HintScope, Hints, UsedEndpoints},
};

/// The most endpoints that are explained at once: tenants choose the ports and the endpoints of their Services, and the
/// explanations of a port include endpoints that no limit counts, those of slices without the port.
pub(crate) const MAX_EXPLAINED: usize = 100_000;

/// How many ports of a Service or slice are named that lacks the wanted one.
pub(crate) const NAMED_PORTS: usize = 3;

/// Why nothing is explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotExplained {
    /// There is no such Service.
    NoService,
    /// The Service has none of the wanted ports, but these valid ones; the first of them if there are many.
    NoPort(Vec<String>),
    /// Several ports together have this many endpoints, more than [`MAX_EXPLAINED`].
    TooMany(usize),
}

/// What a node gets of a service port, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServicePortExplanation {
    /// The same for every node.
    pub(crate) port: ServicePort,
    /// Every endpoint of every slice, sorted by address and port. Without those that exceed the limits of a Service, or
    /// [`MAX_EXPLAINED`].
    pub(crate) endpoints: Vec<EndpointExplanation>,
    /// About all endpoints together: which hints apply to this node, and why others do not.
    pub(crate) notes: Vec<String>,
}

/// An endpoint as a slice lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointExplanation {
    pub(crate) slice: ObjectName,
    pub(crate) endpoint: SliceEndpoint,
    /// The number of the port; `None` if the slice has no such port.
    pub(crate) port: Option<NonZeroU16>,
    /// Whether it is in the cluster pool of the node.
    pub(crate) cluster: EndpointReason,
    /// Whether it is in the local pool of the node.
    pub(crate) local: EndpointReason,
}

/// Why an endpoint is in a pool, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndpointReason {
    /// In: it is ready.
    Ready,
    /// In: it is ready, and has a hint for this node.
    NodeHint,
    /// In: it is ready, and has a hint for this zone.
    ZoneHint(Arc<str>),
    /// In: no endpoint is ready, and it is terminating and still serving.
    Fallback,
    /// Out: it is not ready.
    NotReady,
    /// Out: it is terminating and no longer serving.
    NotServing,
    /// Out: it is terminating, and others are ready.
    OthersReady,
    /// Out: others have a hint for this node, and this one for these nodes.
    OtherNodes(Vec<Arc<str>>),
    /// Out: others have a hint for this zone, and this one for these zones.
    OtherZones(Vec<Arc<str>>),
    /// Out: it is on this other node, or its node is unknown.
    NotOnNode(Option<Arc<str>>),
    /// Out: its node has no Node object, like too many others of the Service.
    MissingNode,
    /// Out: no traffic uses policy Cluster.
    PolicyLocal,
    /// Out: the Service has no cluster IP of its IP family.
    NoClusterIp(IpFamily),
    /// Out: the entry with the same address and port in this slice is used.
    Duplicate(ObjectName),
    /// Out: its slice has no port of the name and protocol of the service port; and which ports it has instead.
    NoSuchPort { wanted: Arc<str>, instead: Arc<str> },
}

/// Explains what a node in a zone gets of a service port. `port` and `of_service` are those of [`view`](super::view).
pub(crate) fn explain(
    service: &ServiceObject,
    mut port: ServicePort,
    of_service: &ServiceEndpoints<'_>,
    node: &str,
    zone: &str,
) -> ServicePortExplanation {
    let merged = merge(&port.key, of_service);
    let decisions = EndpointDecisions::of(service, &port, of_service, &merged);
    port.any_endpoints = decisions.any_endpoints;

    let mut endpoints = decisions.explain_entries(service, &port.key, of_service, node, zone);
    let left = MAX_EXPLAINED.saturating_sub(endpoints.len());
    let mut without_port = endpoints_without_port(&port.key, of_service);
    endpoints.extend(without_port.by_ref().take(left).map(|(slice, endpoint, reason)| EndpointExplanation {
        slice: slice.name.clone(),
        endpoint: endpoint.clone(),
        port: None,
        cluster: reason.clone(),
        local: reason,
    }));
    let omitted = without_port.count();
    endpoints.sort_by_key(|explained| explained.endpoint.address);

    let mut notes = Vec::new();
    notes.extend(of_service.describe_subset());
    if omitted > 0 {
        notes.push(format!("not listed: {omitted} more endpoints of slices without this port"));
    }
    notes.extend(decisions.hint_notes(node, zone));
    ServicePortExplanation { port, endpoints, notes }
}

/// The endpoints of slices that have no port of the name and protocol, each with the reason. None if only a subset of
/// the endpoints is used, because that is the reason for most of them.
fn endpoints_without_port<'a>(
    key: &ServicePortKey,
    of_service: &ServiceEndpoints<'a>,
) -> impl Iterator<Item = (&'a SliceObject, &'a SliceEndpoint, EndpointReason)> {
    let named = (&*key.port_name, key.protocol);
    let mut slices: Vec<&SliceObject> = if of_service.is_subset() { Vec::new() } else { of_service.slices().collect() };
    slices.retain(|slice| slice.ports.binary_search_by(|port| (&*port.name, port.protocol).cmp(&named)).is_err());
    slices.into_iter().flat_map(move |slice| {
        let reason = no_such_port(named, slice);
        slice.endpoints.iter().map(move |endpoint| (slice, endpoint, reason.clone()))
    })
}

/// Why endpoints of a slice without a port of this name and protocol are not used. Names the ports that the slice has,
/// the first ones of many, because the explanation of each endpoint repeats them.
fn no_such_port((name, protocol): (&str, Protocol), slice: &SliceObject) -> EndpointReason {
    let describe = |name: &str, protocol| match name {
        "" => format!("without a name ({protocol})"),
        name => format!("{name:?} ({protocol})"),
    };
    let named = slice.ports.iter().take(NAMED_PORTS).map(|port| describe(&port.name, port.protocol));
    let named = named.collect::<Vec<_>>().join(", ");
    let instead = match slice.ports.len() {
        0 => "nor any other".to_owned(),
        count if count <= NAMED_PORTS => format!("only {named}"),
        count => format!("only {named} and {} more", count - NAMED_PORTS),
    };
    EndpointReason::NoSuchPort { wanted: describe(name, protocol).into(), instead: instead.into() }
}

impl EndpointDecisions<'_> {
    /// The endpoints of the slices that have the port, each with its reasons.
    fn explain_entries(
        &self,
        service: &ServiceObject,
        key: &ServicePortKey,
        of_service: &ServiceEndpoints<'_>,
        node: &str,
        zone: &str,
    ) -> Vec<EndpointExplanation> {
        let mut explanations = Vec::new();
        let mut last_used: Option<MergedEndpoint<'_>> = None;
        for entry in entries(key, of_service) {
            let (cluster, local) = match last_used {
                Some(used) if used.identity() == entry.identity() => {
                    let duplicate = EndpointReason::Duplicate(used.slice.name.clone());
                    (duplicate.clone(), duplicate)
                }
                _ => {
                    last_used = Some(entry);
                    self.explain(service, &entry, node, zone)
                }
            };
            explanations.push(EndpointExplanation {
                slice: entry.slice.name.clone(),
                endpoint: entry.endpoint.clone(),
                port: Some(entry.port),
                cluster,
                local,
            });
        }
        explanations
    }

    /// Which hints narrow the endpoints for a node, and which are ignored.
    fn hint_notes(&self, node: &str, zone: &str) -> Vec<String> {
        let mut notes = Vec::new();
        for (family, selection) in self.cluster.iter() {
            let Some(selection) = selection else { continue };
            let scope = selection.scope(node, zone);
            let of_nodes = hint_note("node", &selection.node_hints, scope == HintScope::Node, node);
            let of_zones = hint_note("zone", &selection.zone_hints, scope == HintScope::Zone, zone);
            notes.extend(of_nodes.into_iter().chain(of_zones).map(|note| format!("{family}: {note}")));
        }
        notes
    }

    /// The reasons for the cluster pool and for the local pool, for an endpoint that is no duplicate.
    fn explain(
        &self,
        service: &ServiceObject,
        merged: &MergedEndpoint<'_>,
        node: &str,
        zone: &str,
    ) -> (EndpointReason, EndpointReason) {
        let family = merged.family();
        if service.cluster_ips[family].is_none() {
            return (EndpointReason::NoClusterIp(family), EndpointReason::NoClusterIp(family));
        }
        let cluster = match &self.cluster[family] {
            None => EndpointReason::PolicyLocal,
            Some(selection) => selection.explain(merged, node, zone),
        };
        let local = match &merged.endpoint.node {
            Some(its) if **its == *node => match self.local[family].get(node) {
                Some(used) => used.explain(merged),
                None if merged.usability() != Usability::Unused => EndpointReason::MissingNode,
                None if merged.endpoint.terminating => EndpointReason::NotServing,
                None => EndpointReason::NotReady,
            },
            other => EndpointReason::NotOnNode(other.clone()),
        };
        (cluster, local)
    }
}

impl ClusterSelection<'_> {
    fn explain(&self, merged: &MergedEndpoint<'_>, node: &str, zone: &str) -> EndpointReason {
        let state = self.used.explain(merged);
        let has = |hints: &[Arc<str>], name: &str| hints.iter().any(|hint| **hint == *name);
        let SliceEndpoint { node_hints, zone_hints, .. } = merged.endpoint;
        match (state, self.scope(node, zone)) {
            (EndpointReason::Ready, HintScope::Node) if has(node_hints, node) => EndpointReason::NodeHint,
            (EndpointReason::Ready, HintScope::Node) => EndpointReason::OtherNodes(node_hints.clone()),
            (EndpointReason::Ready, HintScope::Zone) if has(zone_hints, zone) => EndpointReason::ZoneHint(zone.into()),
            (EndpointReason::Ready, HintScope::Zone) => EndpointReason::OtherZones(zone_hints.clone()),
            (state, _) => state,
        }
    }
}

impl UsedEndpoints<'_> {
    /// By its own conditions and those of the others.
    fn explain(&self, merged: &MergedEndpoint<'_>) -> EndpointReason {
        match merged.usability() {
            Usability::Ready => EndpointReason::Ready,
            Usability::Fallback if self.basis == Usability::Ready => EndpointReason::OthersReady,
            Usability::Fallback => EndpointReason::Fallback,
            Usability::Unused if merged.endpoint.terminating => EndpointReason::NotServing,
            Usability::Unused => EndpointReason::NotReady,
        }
    }
}

/// Whether hints of a kind narrow the endpoints of a node; `name` is that of the node or of its zone.
fn hint_note(kind: &str, hints: &Hints<'_>, applies: bool, name: &str) -> Option<String> {
    match hints {
        Hints::Absent => None,
        Hints::Incomplete(without) => {
            let address = SocketAddr::new(without.endpoint.address, without.port.get());
            Some(format!("{kind} hints are ignored: the ready endpoint {address} has none"))
        }
        Hints::Active(_) if applies => {
            Some(format!("{kind} hints apply: only endpoints with a hint for {name} are used"))
        }
        Hints::Active(_) if name.is_empty() => {
            Some(format!("{kind} hints are ignored: the {kind} of the node is unknown"))
        }
        Hints::Active(_) => {
            Some(format!("{kind} hints are ignored: no endpoint has one for {name}, or node hints take precedence"))
        }
    }
}

impl EndpointReason {
    /// Whether it is in the pool.
    pub(crate) const fn is_in(&self) -> bool {
        matches!(self, Self::Ready | Self::NodeHint | Self::ZoneHint(_) | Self::Fallback)
    }

    /// A stable code, for scripts, and a text for people.
    pub(crate) fn describe(&self) -> (&'static str, String) {
        let (code, text) = match self {
            Self::Ready => ("ready", "ready"),
            Self::NodeHint => ("node-hint", "ready, hint for this node"),
            Self::ZoneHint(zone) => return ("zone-hint", format!("ready, hint for zone {zone}")),
            Self::Fallback => ("terminating-fallback", "terminating but serving, and no endpoint is ready"),
            Self::NotReady => ("not-ready", "not ready"),
            Self::NotServing => ("not-serving", "terminating and not serving"),
            Self::OthersReady => ("terminating-others-ready", "terminating, and other endpoints are ready"),
            Self::OtherNodes(nodes) => return ("hint-other-node", format!("hint for node {}", nodes.join(", "))),
            Self::OtherZones(zones) => return ("hint-other-zone", format!("hint for zone {}", zones.join(", "))),
            Self::NotOnNode(Some(node)) => return ("not-on-this-node", format!("on node {node}")),
            Self::NotOnNode(None) => ("not-on-this-node", "has no nodeName"),
            Self::MissingNode => ("missing-node", "its node has no Node object, like too many others of the Service"),
            Self::PolicyLocal => ("policy-local", "no traffic uses policy Cluster"),
            Self::NoClusterIp(family) => {
                return ("no-cluster-ip", format!("the Service has no {family} cluster IP"));
            }
            Self::Duplicate(slice) => {
                return ("duplicate", format!("duplicate of an endpoint in slice {}", slice.name));
            }
            Self::NoSuchPort { wanted, instead } => {
                return ("no-such-port", format!("its slice has no port {wanted}, {instead}"));
            }
        };
        (code, text.to_owned())
    }
}

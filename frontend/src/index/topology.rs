//! What of EndpointSlices depends on the existence of Nodes and zones: whether endpoints that do not serve are gone,
//! and which topology hints count.

use std::{collections::BTreeSet, sync::Arc};

use super::{Index, addresses::SliceIndex};
use crate::{
    object::{ObjectName, ObjectProblem, SliceEndpoint, SliceObject},
    view::KnownTopology,
};

/// The slices whose views depend on a Node or a zone.
#[derive(Debug, Default)]
pub(super) struct TopologyReferences {
    /// By `nodeName` of endpoints that do not serve, and by `hints.forNodes`.
    nodes: SliceIndex<Arc<str>>,
    /// By `hints.forZones`.
    zones: SliceIndex<Arc<str>>,
}

impl TopologyReferences {
    /// Replaces the content of a slice.
    pub(super) fn change_slice(&mut self, name: &ObjectName, old: Option<&SliceObject>, new: Option<&SliceObject>) {
        self.nodes.change_slice(name, &nodes(old), &nodes(new));
        self.zones.change_slice(name, &zones(old), &zones(new));
    }
}

impl Index {
    /// The Nodes and zones that exist.
    pub(super) fn topology(&self) -> KnownTopology<'_> {
        KnownTopology { nodes: &self.nodes, zones: &self.zones }
    }

    /// The slices whose views depend on a Node.
    pub(super) fn slices_of_node(&self, node: &Arc<str>) -> impl Iterator<Item = &SliceObject> {
        self.references.nodes.slices(node.clone()).filter_map(|name| self.slice(name))
    }

    /// The slices whose views depend on a zone.
    pub(super) fn slices_of_zone(&self, zone: &Arc<str>) -> impl Iterator<Item = &SliceObject> {
        self.references.zones.slices(zone.clone()).filter_map(|name| self.slice(name))
    }

    /// The slices whose views depend on any Node or zone; some more than once.
    pub(super) fn slices_of_any_node(&self) -> impl Iterator<Item = &SliceObject> {
        self.references.nodes.all().chain(self.references.zones.all()).filter_map(|name| self.slice(name))
    }
}

/// The node hints of a slice that name no Node. A hint for the node of the endpoint itself is no mistake of the one who
/// wrote it: that Node is gone, or not known yet.
pub(super) fn unknown_hints(slice: &SliceObject, topology: KnownTopology<'_>) -> Option<ObjectProblem> {
    let is_unknown = |endpoint: &SliceEndpoint, hint: &Arc<str>| {
        !topology.has_node(hint) && endpoint.node.as_ref() != Some(hint) && !hint.is_empty()
    };
    let hints = slice.endpoints.iter().enumerate().flat_map(|(at, endpoint)| {
        endpoint.node_hints.iter().filter(|hint| is_unknown(endpoint, hint)).map(move |hint| (at, hint))
    });
    let mut hints = hints.peekable();
    let (at, first) = *hints.peek()?;
    let message = format!(
        "{} hints of this slice name no Node, such as {first}: they are ignored; correct or remove them",
        hints.count()
    );
    Some(ObjectProblem { field: format!("endpoints[{at}].hints.forNodes"), message })
}

fn nodes(slice: Option<&SliceObject>) -> BTreeSet<Arc<str>> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    let names = endpoints.flat_map(|endpoint| {
        let unserving = endpoint.node.as_ref().filter(|_| !endpoint.ready && !endpoint.serving);
        endpoint.node_hints.iter().chain(unserving)
    });
    names.cloned().collect()
}

fn zones(slice: Option<&SliceObject>) -> BTreeSet<Arc<str>> {
    slice.into_iter().flat_map(|slice| &slice.endpoints).flat_map(|endpoint| &endpoint.zone_hints).cloned().collect()
}

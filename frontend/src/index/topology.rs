//! What of EndpointSlices depends on the existence of Nodes and zones: whether endpoints that do not serve are gone,
//! which topology hints count, and which nodes have local pools.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Index;
use crate::{
    object::{ObjectProblem, SliceEndpoint, SliceObject},
    view::KnownTopology,
};

/// What a slice depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    /// Of `nodeName` of endpoints that do not serve, and of `hints.forNodes`.
    Node(Arc<str>),
    /// Of `hints.forZones`.
    Zone(Arc<str>),
}

impl Index {
    /// The Nodes and zones that exist.
    pub(super) fn topology(&self) -> KnownTopology<'_> {
        KnownTopology { nodes: &self.nodes, zones: &self.zones, only_node: None }
    }

    /// The slices whose views depend on a Node or a zone.
    pub(super) fn slices_with(&self, reference: Reference) -> impl Iterator<Item = &SliceObject> {
        self.references.slices(reference).filter_map(|name| self.slice(name))
    }

    /// The slices of Services with endpoints on so many nodes that local pools depend on whether these exist.
    pub(super) fn slices_on_many_nodes(&self) -> impl Iterator<Item = &SliceObject> {
        self.limited.iter().filter_map(|service| self.slices.get(service)).flat_map(BTreeMap::values)
    }

    /// Those of them with an endpoint on one of these nodes, each with what is kept for it.
    pub(super) fn slices_on<'s, T>(
        &'s self,
        nodes: &'s BTreeMap<Arc<str>, T>,
    ) -> impl Iterator<Item = (&'s SliceObject, &'s T)> {
        let slices = (!nodes.is_empty()).then(|| self.slices_on_many_nodes()).into_iter().flatten();
        slices.filter_map(|slice| {
            let of_node = slice.endpoints.iter().find_map(|endpoint| nodes.get(endpoint.node.as_ref()?))?;
            Some((slice, of_node))
        })
    }

    /// The slices whose views depend on any Node or zone by a [`Reference`].
    pub(super) fn slices_with_references(&self) -> impl Iterator<Item = &SliceObject> {
        self.references.all().filter_map(|name| self.slice(name))
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

pub(super) fn references(slice: Option<&SliceObject>) -> BTreeSet<Reference> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    let references = endpoints.flat_map(|endpoint| {
        let unserving = endpoint.node.as_ref().filter(|_| !endpoint.ready && !endpoint.serving);
        let nodes = endpoint.node_hints.iter().chain(unserving).cloned().map(Reference::Node);
        nodes.chain(endpoint.zone_hints.iter().cloned().map(Reference::Zone))
    });
    references.collect()
}

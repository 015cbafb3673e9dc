//! Which EndpointSlices have endpoints that do not serve, by node: when a Node object comes or goes, it changes whether
//! these endpoints are gone.

use std::{collections::BTreeSet, sync::Arc};

use super::{Index, keys::sibling};
use crate::object::{ObjectName, SliceObject};

/// The slices with endpoints that do not serve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnservingEndpoints {
    /// `endpoints[].nodeName`, and the slice.
    entries: BTreeSet<(Arc<str>, ObjectName)>,
}

impl UnservingEndpoints {
    /// Replaces the content of a slice.
    pub(super) fn change_slice(&mut self, name: &ObjectName, old: Option<&SliceObject>, new: Option<&SliceObject>) {
        let (old, new) = (nodes(old), nodes(new));
        for node in old.difference(&new) {
            self.entries.remove(&((*node).clone(), name.clone()));
        }
        self.entries.extend(new.difference(&old).map(|node| ((*node).clone(), name.clone())));
    }
}

impl Index {
    /// Whether there may be a Node of this name. Without any Node object nothing is known about nodes: a directory of
    /// manifests may have none, and an API server may serve a list that is older than they are.
    pub(super) fn may_exist(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.contains_key(node)
    }

    /// The slices with endpoints on a node that do not serve.
    pub(super) fn unserving_on(&self, node: &Arc<str>) -> impl Iterator<Item = &SliceObject> {
        let entries = self.unserving.entries.range((node.clone(), ObjectName::default())..);
        entries.take_while(move |(of, _)| of == node).filter_map(|(_, name)| self.slice(name))
    }

    /// The slices with endpoints that do not serve; one with several nodes more than once.
    pub(super) fn all_unserving(&self) -> impl Iterator<Item = &SliceObject> {
        self.unserving.entries.iter().filter_map(|(_, name)| self.slice(name))
    }

    fn slice(&self, name: &ObjectName) -> Option<&SliceObject> {
        let service = sibling(name, self.slice_services.get(name)?);
        self.slices.get(&service)?.get(&name.name)
    }
}

fn nodes(slice: Option<&SliceObject>) -> BTreeSet<&Arc<str>> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    endpoints
        .filter(|endpoint| !endpoint.ready && !endpoint.serving)
        .filter_map(|endpoint| endpoint.node.as_ref())
        .collect()
}

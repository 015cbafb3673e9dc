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
    /// The slices with endpoints on a node that do not serve.
    pub(super) fn unserving_on(&self, node: &Arc<str>) -> impl Iterator<Item = &SliceObject> {
        let entries = self.unserving.entries.range((node.clone(), ObjectName::default())..);
        entries.take_while(move |(of, _)| of == node).filter_map(|(_, name)| {
            let service = sibling(name, self.slice_services.get(name)?);
            self.slices.get(&service)?.get(&name.name)
        })
    }
}

fn nodes(slice: Option<&SliceObject>) -> BTreeSet<&Arc<str>> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    endpoints
        .filter(|endpoint| !endpoint.ready && !endpoint.serving)
        .filter_map(|endpoint| endpoint.node.as_ref())
        .collect()
}

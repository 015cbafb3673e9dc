//! A value that is the same nearly everywhere, and differs in some zones and on some nodes.

use std::{collections::BTreeMap, sync::Arc};

/// One `T` for every place: `nodes[node]`, else `zones[zone]`, else `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scoped<T> {
    /// Where nothing more special applies.
    pub default: T,
    /// By zone, where it differs from the default.
    pub zones: BTreeMap<Arc<str>, T>,
    /// By node, where it follows from the node itself.
    pub nodes: BTreeMap<Arc<str>, T>,
}

impl<T> Scoped<T> {
    /// The same value everywhere.
    #[must_use]
    pub fn everywhere(default: T) -> Self {
        Self { default, zones: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// The value for a node in a zone.
    #[must_use]
    pub fn resolve(&self, node: &str, zone: &str) -> &T {
        self.nodes.get(node).unwrap_or_else(|| self.in_zone(zone))
    }

    /// The value for nodes of a zone that are not special.
    #[must_use]
    pub fn in_zone(&self, zone: &str) -> &T {
        self.zones.get(zone).unwrap_or(&self.default)
    }
}

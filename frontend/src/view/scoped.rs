//! A value that is the same on most nodes, and differs in some zones and on some nodes.

use std::{collections::BTreeMap, sync::Arc};

/// One `T` for each node: `nodes[node]`, else `zones[zone]`, else `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scoped<T> {
    /// For all other nodes.
    pub default: T,
    /// By zone.
    pub zones: BTreeMap<Arc<str>, T>,
    /// By node.
    pub nodes: BTreeMap<Arc<str>, T>,
}

impl<T> Scoped<T> {
    /// The same value on all nodes.
    #[must_use]
    pub fn everywhere(default: T) -> Self {
        Self { default, zones: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// The value for a node in a zone.
    #[must_use]
    pub fn resolve(&self, node: &str, zone: &str) -> &T {
        self.nodes.get(node).unwrap_or_else(|| self.in_zone(zone))
    }

    /// The value for nodes of a zone that have none of their own.
    #[must_use]
    pub fn in_zone(&self, zone: &str) -> &T {
        self.zones.get(zone).unwrap_or(&self.default)
    }
}

//! The operations that a commit leads to, by the nodes that receive them.
//!
//! ```text
//!   views before and after ──▶ all:    the service port, and pools that no zone or node has of its own
//!                              scoped: a pool that zones or nodes have of their own: one entry for each, and a default
//!                              own:    what a node receives in addition: its facts and its local pools
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
};

use proto::model::{Operation, Pool, PoolClass, PoolId, ServicePortKey};

use crate::view::{Scoped, ServicePortView};

use super::chunk::{self, Chunks, EncodedChunk};

#[derive(Debug, Default)]
pub(super) struct CommitOperations {
    /// For all nodes.
    pub(super) all: Vec<Operation>,
    /// For each pool that zones or nodes have of their own, before or after: what each node receives.
    pub(super) scoped: Vec<Scoped<Chunks>>,
    /// For one node, in addition.
    pub(super) own: BTreeMap<Arc<str>, Vec<Operation>>,
}

/// The nodes that are sent something for the change of one service port.
#[derive(Debug, Default)]
pub(crate) struct Recipients {
    all: bool,
    /// For each pool that zones or nodes have of their own. Empty if all nodes are sent something.
    scoped: Vec<Scoped<bool>>,
    own: BTreeSet<Arc<str>>,
}

impl Recipients {
    pub(super) fn contains(&self, node: &str, zone: &str) -> bool {
        self.all || self.scoped.iter().any(|pools| *pools.resolve(node, zone)) || self.own.contains(node)
    }

    /// About its memory in bytes.
    pub(super) fn size(&self) -> usize {
        /// A name and its entry in a map.
        const ENTRY: usize = 64;
        let of_scopes = self.scoped.iter().map(|pools| 1 + pools.zones.len() + pools.nodes.len());
        ENTRY * (of_scopes.sum::<usize>() + self.own.len())
    }
}

impl CommitOperations {
    /// Adds the operations of another service port.
    pub(super) fn append(&mut self, other: Self) {
        let Self { all, scoped, own } = other;
        self.all.extend(all);
        self.scoped.extend(scoped);
        for (node, operations) in own {
            self.own.entry(node).or_default().extend(operations);
        }
    }

    pub(super) fn recipients(&self) -> Recipients {
        if !self.all.is_empty() {
            return Recipients { all: true, ..Recipients::default() };
        }
        let own = self.own.iter().filter(|(_, operations)| !operations.is_empty());
        Recipients {
            all: false,
            scoped: self.scoped.iter().map(has_operations).collect(),
            own: own.map(|(node, _)| node.clone()).collect(),
        }
    }

    /// Adds the change of a service port from one view to another. `zone_of` returns the zone of a node.
    pub(super) fn change<'a>(
        &mut self,
        key: &ServicePortKey,
        before: Option<&ServicePortView>,
        after: Option<&ServicePortView>,
        zone_of: impl Fn(&str) -> &'a str,
    ) {
        let Some(after) = after else {
            self.all.push(Operation::RemoveServicePort(key.clone()));
            return;
        };
        if before.is_none_or(|before| before.port != after.port) {
            self.all.push(Operation::PutServicePort(after.port.clone()));
        }

        let new = ServicePortView::without_endpoints(after.port.clone());
        let before = before.unwrap_or(&new);
        for ((class, family, before), (.., after)) in iter::zip(before.pools(), after.pools()) {
            if before == after {
                continue;
            }

            let id = PoolId { key: key.clone(), class, family };
            if class == PoolClass::Local {
                self.change_local(&id, before, after);
            } else if before.is_everywhere() && after.is_everywhere() {
                change_pool(id, &before.default, &after.default, &mut self.all);
            } else {
                self.scoped.push(change_scoped(&id, before, after, &zone_of));
            }
        }
    }

    /// Adds the changes of local pools. Nodes whose pool stays as it is, perhaps thousands, need no entry.
    fn change_local(&mut self, id: &PoolId, before: &Scoped<Pool>, after: &Scoped<Pool>) {
        for (node, (own_before, own_after)) in pairs(&before.nodes, &after.nodes) {
            if own_before != own_after {
                let before = own_before.unwrap_or(&before.default);
                let after = own_after.unwrap_or(&after.default);
                change_pool(id.clone(), before, after, self.own.entry(node.clone()).or_default());
            }
        }
    }
}

/// Whether nodes of each scope are sent something.
fn has_operations(pools: &Scoped<Chunks>) -> Scoped<bool> {
    let each = |chunks: &BTreeMap<Arc<str>, Chunks>| -> BTreeMap<_, _> {
        chunks.iter().map(|(name, chunks)| (name.clone(), !chunks.is_empty())).collect()
    };
    Scoped { default: !pools.default.is_empty(), zones: each(&pools.zones), nodes: each(&pools.nodes) }
}

/// The nodes whose own pools differ between two views, or whose zones have other ones: their digests are relative to
/// these.
pub(super) fn changed_nodes(before: Option<&ServicePortView>, after: Option<&ServicePortView>) -> BTreeSet<Arc<str>> {
    let (Some(before), Some(after)) = (before, after) else {
        return before.or(after).into_iter().flat_map(ServicePortView::nodes).cloned().collect();
    };

    let mut nodes = BTreeSet::new();
    for ((.., before), (.., after)) in iter::zip(before.pools(), after.pools()) {
        let is_moved = before.default != after.default || before.zones != after.zones;
        for (node, (before, after)) in pairs(&before.nodes, &after.nodes) {
            if is_moved || before != after {
                nodes.insert(node.clone());
            }
        }
    }
    nodes
}

/// Appends the operations that create a service port with the pools that nodes of a zone share.
pub(super) fn put_for_zone(view: &ServicePortView, zone: &str, operations: &mut Vec<Operation>) {
    operations.push(Operation::PutServicePort(view.port.clone()));
    for (class, family, pools) in view.pools() {
        let id = PoolId { key: view.port.key.clone(), class, family };
        change_pool(id, &Pool::default(), pools.in_zone(zone), operations);
    }
}

/// Appends what a node needs in addition to [`put_for_zone`]: the pools that are specific to it.
pub(super) fn put_for_node(view: &ServicePortView, node: &str, operations: &mut Vec<Operation>) {
    for (class, family, pools) in view.pools() {
        if let Some(pool) = pools.nodes.get(node) {
            chunk::replace(PoolId { key: view.port.key.clone(), class, family }, pool, operations);
        }
    }
}

/// The change of a pool that zones or nodes have of their own.
struct ScopedChange<'s, 'z> {
    id: &'s PoolId,
    after: &'s Scoped<Pool>,
    /// The pool of each zone, for nodes that lose their own and share one message. The empty name stands for zones
    /// without a pool of their own.
    of_zones: BTreeMap<&'z str, Chunks>,
}

/// What each node receives when a pool changes that zones or nodes have of their own.
fn change_scoped<'z>(
    id: &PoolId,
    before: &Scoped<Pool>,
    after: &Scoped<Pool>,
    zone_of: impl Fn(&str) -> &'z str,
) -> Scoped<Chunks> {
    let mut change = ScopedChange { id, after, of_zones: BTreeMap::new() };
    // A zone or node without a change is listed too: otherwise the change of the wider scope would apply to it.
    let zones = pairs(&before.zones, &after.zones);
    let zones = zones.map(|(zone, pools)| (zone.clone(), change.chunks(pools, ""))).collect();
    let nodes = pairs(&before.nodes, &after.nodes);
    let nodes = nodes.map(|(node, pools)| (node.clone(), change.chunks(pools, zone_of(node)))).collect();
    Scoped { default: changed_pool(id, &before.default, &after.default), zones, nodes }
}

impl<'z> ScopedChange<'_, 'z> {
    /// What nodes receive whose own pool changes. A node that gains or loses its own pool is sent the pool that it has
    /// now.
    fn chunks(&mut self, own: Pair<'_, Pool>, zone: &'z str) -> Chunks {
        match own {
            (Some(before), Some(after)) => changed_pool(self.id, before, after),
            (None, Some(gained)) => replaced_pool(self.id, gained),
            (_, None) => self.pool_of_zone(zone),
        }
    }

    fn pool_of_zone(&mut self, zone: &'z str) -> Chunks {
        let zone = if self.after.zones.contains_key(zone) { zone } else { "" };
        let chunks = self.of_zones.entry(zone);
        chunks.or_insert_with(|| replaced_pool(self.id, self.after.in_zone(zone))).clone()
    }
}

fn changed_pool(id: &PoolId, before: &Pool, after: &Pool) -> Chunks {
    let mut operations = Vec::new();
    change_pool(id.clone(), before, after, &mut operations);
    EncodedChunk::pack(operations)
}

fn replaced_pool(id: &PoolId, pool: &Pool) -> Chunks {
    let mut operations = Vec::new();
    chunk::replace(id.clone(), pool, &mut operations);
    EncodedChunk::pack(operations)
}

/// Appends the operations that change a pool; none if it stays as it is.
fn change_pool(id: PoolId, before: &Pool, after: &Pool, operations: &mut Vec<Operation>) {
    let (add, remove) = before.diff(after);
    match add.len() + remove.len() {
        0 => {}
        changes if changes >= after.len() => chunk::replace(id, after, operations),
        _ => chunk::change(id, add, remove, operations),
    }
}

/// A value before and after; `None` where there is none.
type Pair<'a, T> = (Option<&'a T>, Option<&'a T>);

/// The values of two maps by their keys.
fn pairs<'a, T>(
    before: &'a BTreeMap<Arc<str>, T>,
    after: &'a BTreeMap<Arc<str>, T>,
) -> impl Iterator<Item = (&'a Arc<str>, Pair<'a, T>)> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    keys.into_iter().map(|key| (key, (before.get(key), after.get(key))))
}

//! The change of one service port in one commit, and the net change over several commits.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::{
    digest::Digest,
    model::{IpFamily, Operation, PerFamily, Pool, PoolClass, PoolId, ServicePortKey},
};

use crate::{
    change_history::ChangeKind,
    view::{Scoped, ServicePortView},
};

use super::{chunk, pool_delta::PoolDelta};

/// The change of one service port in one commit.
#[derive(Debug)]
pub(super) enum PortChange {
    /// It is new. Its content is in the current view.
    Created,
    /// It was removed.
    Removed,
    /// It existed before and after.
    Changed(Box<ServicePortDelta>),
}

#[derive(Debug)]
pub(super) struct ServicePortDelta {
    /// The digests of the service port before and after, if it differs.
    port: Option<(Digest, Digest)>,
    cluster: PerFamily<Scoped<PoolDelta>>,
    established: PerFamily<Scoped<PoolDelta>>,
    gone: PerFamily<Scoped<PoolDelta>>,
    local: BTreeMap<Arc<str>, PerFamily<PoolDelta>>,
}

/// The net effect of a sequence of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetChange {
    /// It existed neither before nor after.
    Nothing,
    /// It existed before, and not after.
    Removed,
    /// It exists after, and was created or re-created.
    Created { existed: bool },
    /// It existed all the time.
    Modified,
}

impl PortChange {
    /// The difference between two views. `zone_of` returns the zone of a node.
    pub(super) fn between<'a>(
        old: Option<&ServicePortView>,
        new: Option<&ServicePortView>,
        zone_of: impl Fn(&str) -> &'a str,
    ) -> Self {
        match (old, new) {
            (_, None) => Self::Removed,
            (None, Some(_)) => Self::Created,
            (Some(old), Some(new)) => Self::Changed(Box::new(ServicePortDelta {
                port: (old.port != new.port)
                    .then(|| (Digest::of_service_port(&old.port), Digest::of_service_port(&new.port))),
                cluster: PerFamily::from_fn(|family| {
                    scoped_deltas(&old.cluster[family], &new.cluster[family], &zone_of)
                }),
                established: PerFamily::from_fn(|family| {
                    scoped_deltas(&old.established[family], &new.established[family], &zone_of)
                }),
                gone: PerFamily::from_fn(|family| scoped_deltas(&old.gone[family], &new.gone[family], &zone_of)),
                local: local_deltas(&old.local, &new.local),
            })),
        }
    }

    pub(super) fn kind(&self) -> ChangeKind {
        match self {
            Self::Created => ChangeKind::Added,
            Self::Removed => ChangeKind::Removed,
            Self::Changed(changed) if changed.port.is_some() => ChangeKind::Changed,
            Self::Changed(_) => ChangeKind::Endpoints,
        }
    }

    /// The nodes for which the change differs from that for their zone.
    pub(super) fn nodes<'a>(&'a self, new: Option<&'a ServicePortView>) -> BTreeSet<&'a Arc<str>> {
        match self {
            Self::Removed => BTreeSet::new(),
            Self::Created => new.into_iter().flat_map(nodes_of_view).collect(),
            Self::Changed(changed) => {
                let overridden = changed.shared().flat_map(|deltas| deltas.nodes.keys());
                overridden.chain(changed.local.keys()).collect()
            }
        }
    }

    /// The zones for which the change differs from that for all nodes.
    pub(super) fn zones<'a>(&'a self, new: Option<&'a ServicePortView>) -> BTreeSet<&'a Arc<str>> {
        match (self, new) {
            (Self::Created, Some(view)) => zones_of_view(view).collect(),
            (Self::Changed(changed), _) => changed.shared().flat_map(|deltas| deltas.zones.keys()).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Its approximate size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        /// The overhead of a map entry.
        const MAP_ENTRY: usize = 64;
        let Self::Changed(changed) = self else { return size_of::<Self>() };
        let shared = changed.shared().map(|deltas| {
            let overrides = deltas.zones.values().chain(deltas.nodes.values());
            deltas.default.size() + overrides.map(|delta| MAP_ENTRY + delta.size()).sum::<usize>()
        });
        let local = changed.local.values().map(|deltas| MAP_ENTRY + deltas.v4.size() + deltas.v6.size());
        size_of::<ServicePortDelta>() + shared.sum::<usize>() + local.sum::<usize>()
    }

    fn as_changed(&self) -> Option<&ServicePortDelta> {
        match self {
            Self::Changed(changed) => Some(changed),
            Self::Created | Self::Removed => None,
        }
    }
}

impl ServicePortDelta {
    /// The changes of the pools that most nodes share.
    fn shared(&self) -> impl Iterator<Item = &Scoped<PoolDelta>> {
        self.cluster.iter().chain(self.established.iter()).chain(self.gone.iter()).map(|(_, deltas)| deltas)
    }

    /// The changes of one of them.
    fn of(&self, class: PoolClass, family: IpFamily) -> Option<&Scoped<PoolDelta>> {
        match class {
            PoolClass::Cluster => Some(&self.cluster[family]),
            PoolClass::Established => Some(&self.established[family]),
            PoolClass::Gone => Some(&self.gone[family]),
            PoolClass::Local => None,
        }
    }
}

impl NetChange {
    /// The net effect of the changes of one service port, given in order.
    fn of(changes: &[&PortChange]) -> Self {
        let existed = !matches!(changes.first(), Some(PortChange::Created));
        let exists = !matches!(changes.last(), Some(PortChange::Removed));
        let existed_throughout = changes.iter().all(|change| matches!(change, PortChange::Changed(_)));
        match (existed, exists) {
            (false, false) => Self::Nothing,
            (true, false) => Self::Removed,
            (true, true) if existed_throughout => Self::Modified,
            (existed, true) => Self::Created { existed },
        }
    }
}

/// Appends the operations for one service port on nodes of a zone. `current` is its view after the last change.
pub(super) fn net_for_zone(
    key: &ServicePortKey,
    changes: &[&PortChange],
    current: Option<&ServicePortView>,
    zone: &str,
    operations: &mut Vec<Operation>,
) {
    let net = NetChange::of(changes);
    if matches!(net, NetChange::Removed | NetChange::Created { existed: true }) {
        operations.push(Operation::RemoveServicePort(key.clone()));
    }
    let Some(view) = current else { return };
    match net {
        NetChange::Nothing | NetChange::Removed => {}
        NetChange::Created { .. } => put_for_zone(view, zone, operations),
        NetChange::Modified => {
            let puts: Vec<_> = changes.iter().filter_map(|change| change.as_changed()?.port).collect();
            if let (Some((before, _)), Some((_, after))) = (puts.first(), puts.last())
                && before != after
            {
                operations.push(Operation::PutServicePort(view.port.clone()));
            }
            for (class, family, pools) in view.shared() {
                let deltas = changes.iter().filter_map(|change| change.as_changed()?.of(class, family));
                let deltas = deltas.map(|deltas| deltas.in_zone(zone));
                PoolDelta::net(deltas, pool_id(key, class, family), pools.in_zone(zone), operations);
            }
        }
    }
}

/// The pools of a node whose changes differ from those for its zone.
#[derive(Debug, Default)]
pub(super) struct OverriddenPools {
    /// All of them: the operations of the zone for these pools must not be sent.
    pub(super) all: BTreeSet<PoolId>,
    /// Those that are replaced by the pool of the zone. The operations for that are the same for every node.
    pub(super) replaced: Vec<PoolId>,
}

/// Appends the operations for one service port that are specific to a node, and the pools that they override.
pub(super) fn net_for_node(
    key: &ServicePortKey,
    changes: &[&PortChange],
    current: Option<&ServicePortView>,
    node: &str,
    zone: &str,
    operations: &mut Vec<Operation>,
    overridden: &mut OverriddenPools,
) {
    let Some(view) = current else { return };
    match NetChange::of(changes) {
        NetChange::Nothing | NetChange::Removed => {}
        NetChange::Created { .. } => put_for_node(view, node, operations),
        NetChange::Modified => {
            let changed: Vec<_> = changes.iter().filter_map(|change| change.as_changed()).collect();
            for (class, family, pools) in view.shared() {
                let of_pool = || changed.iter().filter_map(|changed| changed.of(class, family));
                if of_pool().any(|deltas| deltas.nodes.contains_key(node)) {
                    let pool = pool_id(key, class, family);
                    let deltas = of_pool().map(|deltas| deltas.resolve(node, zone));
                    if !pools.nodes.contains_key(node) && deltas.clone().any(PoolDelta::is_replaced) {
                        overridden.replaced.push(pool.clone());
                    } else {
                        PoolDelta::net(deltas, pool.clone(), pools.resolve(node, zone), operations);
                    }
                    overridden.all.insert(pool);
                }
            }
            for family in IpFamily::ALL {
                let deltas = changed.iter().filter_map(|changed| Some(&changed.local.get(node)?[family]));
                let target = view.local.get(node).map(|pools| &pools[family]);
                let pool = pool_id(key, PoolClass::Local, family);
                PoolDelta::net(deltas, pool, target.unwrap_or(&Pool::default()), operations);
            }
        }
    }
}

/// The operations that replace a pool of a service port by that of a zone.
pub(super) fn replace_in_zone(view: &ServicePortView, pool: &PoolId, zone: &str) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (_, _, pools) in view.shared().filter(|(class, family, _)| (*class, *family) == (pool.class, pool.family)) {
        chunk::replace(pool.clone(), pools.in_zone(zone), &mut operations);
    }
    operations
}

/// Appends the operations that create a service port with the pools that nodes of a zone share.
pub(super) fn put_for_zone(view: &ServicePortView, zone: &str, operations: &mut Vec<Operation>) {
    operations.push(Operation::PutServicePort(view.port.clone()));
    for (class, family, pools) in view.shared() {
        let pool = pools.in_zone(zone);
        if !pool.is_empty() {
            chunk::replace(pool_id(&view.port.key, class, family), pool, operations);
        }
    }
}

/// Appends what a node needs in addition to [`put_for_zone`]: its local pools, and others that are specific to it.
pub(super) fn put_for_node(view: &ServicePortView, node: &str, operations: &mut Vec<Operation>) {
    for (class, family, pools) in view.shared() {
        if let Some(pool) = pools.nodes.get(node) {
            chunk::replace(pool_id(&view.port.key, class, family), pool, operations);
        }
    }
    for family in IpFamily::ALL {
        if let Some(pool) = view.local_pool(family, node) {
            chunk::replace(pool_id(&view.port.key, PoolClass::Local, family), pool, operations);
        }
    }
}

/// The nodes for which a view differs from that of their zone.
pub(super) fn nodes_of_view(view: &ServicePortView) -> impl Iterator<Item = &Arc<str>> {
    view.shared().flat_map(|(.., pools)| pools.nodes.keys()).chain(view.local.keys())
}

/// The zones for which a view differs from that for all nodes.
pub(super) fn zones_of_view(view: &ServicePortView) -> impl Iterator<Item = &Arc<str>> {
    view.shared().flat_map(|(.., pools)| pools.zones.keys())
}

/// The pools of one zone or node before and after a commit; `None` where the wider one applies.
#[derive(Clone, Copy, Debug)]
struct NarrowPools<'a> {
    before: Option<&'a Pool>,
    after: Option<&'a Pool>,
}

impl NarrowPools<'_> {
    /// The change of the zone or node, with the wider pools before and after.
    fn delta(self, wide_before: &Pool, wide_after: &Pool) -> PoolDelta {
        match (self.before, self.after) {
            (Some(before), Some(after)) => PoolDelta::between(before, after),
            (Some(before), None) => PoolDelta::between_scopes(before, wide_after, before),
            (None, Some(after)) => PoolDelta::between_scopes(wide_before, after, after),
            (None, None) => PoolDelta::between(wide_before, wide_after),
        }
    }
}

fn scoped_deltas<'a>(old: &Scoped<Pool>, new: &Scoped<Pool>, zone_of: impl Fn(&str) -> &'a str) -> Scoped<PoolDelta> {
    let zones: BTreeSet<_> = old.zones.keys().chain(new.zones.keys()).collect();
    let nodes: BTreeSet<_> = old.nodes.keys().chain(new.nodes.keys()).collect();
    // A zone or node without a change is listed too: otherwise the delta of the wider scope would apply to it.
    Scoped {
        default: PoolDelta::between(&old.default, &new.default),
        zones: zones
            .into_iter()
            .map(|zone| {
                let pools = NarrowPools { before: old.zones.get(zone), after: new.zones.get(zone) };
                (zone.clone(), pools.delta(&old.default, &new.default))
            })
            .collect(),
        nodes: nodes
            .into_iter()
            .map(|node| {
                let zone = zone_of(node);
                let pools = NarrowPools { before: old.nodes.get(node), after: new.nodes.get(node) };
                (node.clone(), pools.delta(old.in_zone(zone), new.in_zone(zone)))
            })
            .collect(),
    }
}

fn local_deltas(
    old: &BTreeMap<Arc<str>, PerFamily<Pool>>,
    new: &BTreeMap<Arc<str>, PerFamily<Pool>>,
) -> BTreeMap<Arc<str>, PerFamily<PoolDelta>> {
    let empty = PerFamily::<Pool>::default();
    let nodes: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let deltas = nodes.into_iter().map(|node| {
        let (old, new) = (old.get(node).unwrap_or(&empty), new.get(node).unwrap_or(&empty));
        (node.clone(), PerFamily::from_fn(|family| PoolDelta::between(&old[family], &new[family])))
    });
    deltas.filter(|(_, deltas)| !deltas.v4.is_empty() || !deltas.v6.is_empty()).collect()
}

fn pool_id(key: &ServicePortKey, class: PoolClass, family: IpFamily) -> PoolId {
    PoolId { key: key.clone(), class, family }
}

//! What one commit did to one service port, and what several commits did to it altogether.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proto::{
    digest::Digest,
    model::{IpFamily, Operation, PerFamily, Pool, PoolClass, PoolId, ServicePortKey},
};

use crate::view::{Scoped, ServicePortView};

use super::{chunk, pool_delta::PoolDelta};

/// What one commit did to one service port.
#[derive(Debug)]
pub(super) enum PortChange {
    /// It is new. What it is like is in the current view.
    Created,
    /// It is gone.
    Removed,
    /// It was there and still is.
    Changed(Box<ServicePortDelta>),
}

#[derive(Debug)]
pub(super) struct ServicePortDelta {
    /// The digests of the service port before and after, when it is not the same.
    port: Option<(Digest, Digest)>,
    cluster: PerFamily<Scoped<PoolDelta>>,
    local: BTreeMap<Arc<str>, PerFamily<PoolDelta>>,
}

/// What a sequence of changes amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetChange {
    /// It was not there before and is not there now.
    Nothing,
    /// It was there and is gone.
    Removed,
    /// It is there and has nothing to do with what was there before, if anything was.
    Fresh { existed: bool },
    /// It was there all the time.
    Edited,
}

impl ServicePortDelta {
    /// Whether more than endpoints is different.
    pub(super) fn is_port_changed(&self) -> bool {
        self.port.is_some()
    }
}

impl PortChange {
    /// What differs between two views. `zone_of` says in which zone a node is.
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
                local: local_deltas(&old.local, &new.local),
            })),
        }
    }

    /// The nodes for which it is something else than for their zone.
    pub(super) fn nodes<'a>(&'a self, new: Option<&'a ServicePortView>) -> BTreeSet<&'a Arc<str>> {
        match self {
            Self::Removed => BTreeSet::new(),
            Self::Created => new.into_iter().flat_map(nodes_of_view).collect(),
            Self::Changed(changed) => {
                let overridden = changed.cluster.iter().flat_map(|(_, deltas)| deltas.nodes.keys());
                overridden.chain(changed.local.keys()).collect()
            }
        }
    }

    /// The zones for which it is something else than for everyone.
    pub(super) fn zones<'a>(&'a self, new: Option<&'a ServicePortView>) -> BTreeSet<&'a Arc<str>> {
        match (self, new) {
            (Self::Created, Some(view)) => view.cluster.iter().flat_map(|(_, pools)| pools.zones.keys()).collect(),
            (Self::Changed(changed), _) => changed.cluster.iter().flat_map(|(_, deltas)| deltas.zones.keys()).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// About how many bytes of memory it takes.
    pub(super) fn size(&self) -> usize {
        /// What a map needs around a value.
        const NODE: usize = 64;
        let Self::Changed(changed) = self else { return size_of::<Self>() };
        let scoped = changed.cluster.iter().map(|(_, deltas)| {
            let special = deltas.zones.values().chain(deltas.nodes.values());
            deltas.default.size() + special.map(|delta| NODE + delta.size()).sum::<usize>()
        });
        let local = changed.local.values().map(|deltas| NODE + deltas.v4.size() + deltas.v6.size());
        size_of::<ServicePortDelta>() + scoped.sum::<usize>() + local.sum::<usize>()
    }

    fn as_changed(&self) -> Option<&ServicePortDelta> {
        match self {
            Self::Changed(changed) => Some(changed),
            Self::Created | Self::Removed => None,
        }
    }
}

impl NetChange {
    /// Of the changes of one service port, in order.
    pub(super) fn of(changes: &[&PortChange]) -> Self {
        let existed = !matches!(changes.first(), Some(PortChange::Created));
        let exists = !matches!(changes.last(), Some(PortChange::Removed));
        let all_the_time = changes.iter().all(|change| matches!(change, PortChange::Changed(_)));
        match (existed, exists) {
            (false, false) => Self::Nothing,
            (true, false) => Self::Removed,
            (true, true) if all_the_time => Self::Edited,
            (existed, true) => Self::Fresh { existed },
        }
    }
}

/// Appends what nodes of a zone must do about one service port, as far as they are not special. `current` is its view
/// after the last of the changes.
pub(super) fn net_for_zone(
    key: &ServicePortKey,
    changes: &[&PortChange],
    current: Option<&ServicePortView>,
    zone: &str,
    operations: &mut Vec<Operation>,
) {
    let net = NetChange::of(changes);
    if matches!(net, NetChange::Removed | NetChange::Fresh { existed: true }) {
        operations.push(Operation::RemoveServicePort(key.clone()));
    }
    let Some(view) = current else { return };
    match net {
        NetChange::Nothing | NetChange::Removed => {}
        NetChange::Fresh { .. } => put_for_zone(view, zone, operations),
        NetChange::Edited => {
            let puts: Vec<_> = changes.iter().filter_map(|change| change.as_changed()?.port).collect();
            if let (Some((before, _)), Some((_, after))) = (puts.first(), puts.last())
                && before != after
            {
                operations.push(Operation::PutServicePort(view.port.clone()));
            }
            for (family, pools) in view.cluster.iter() {
                let deltas = changes.iter().filter_map(|change| change.as_changed());
                let deltas = deltas.map(|changed| changed.cluster[family].in_zone(zone));
                let pool = pool_id(key, PoolClass::Cluster, family);
                PoolDelta::net(deltas, pool, pools.in_zone(zone), operations);
            }
        }
    }
}

/// Appends what one node must do about one service port besides what its zone does. Gives back the pools in whose place
/// that is: for these the operations of the zone do not apply.
pub(super) fn net_for_node(
    key: &ServicePortKey,
    changes: &[&PortChange],
    current: Option<&ServicePortView>,
    (node, zone): (&str, &str),
    operations: &mut Vec<Operation>,
) -> Vec<PoolId> {
    let mut instead = Vec::new();
    let Some(view) = current else { return instead };
    match NetChange::of(changes) {
        NetChange::Nothing | NetChange::Removed => {}
        NetChange::Fresh { .. } => put_for_node(view, node, operations),
        NetChange::Edited => {
            let changed: Vec<_> = changes.iter().filter_map(|change| change.as_changed()).collect();
            for family in IpFamily::ALL {
                if changed.iter().any(|changed| changed.cluster[family].nodes.contains_key(node)) {
                    let deltas = changed.iter().map(|changed| changed.cluster[family].resolve(node, zone));
                    let pool = pool_id(key, PoolClass::Cluster, family);
                    let target = view.cluster_pool(family, node, zone);
                    PoolDelta::net(deltas, pool.clone(), target, operations);
                    instead.push(pool);
                }
                let deltas = changed.iter().filter_map(|changed| Some(&changed.local.get(node)?[family]));
                let target = view.local.get(node).map(|pools| &pools[family]);
                let pool = pool_id(key, PoolClass::Local, family);
                PoolDelta::net(deltas, pool, target.unwrap_or(&Pool::default()), operations);
            }
        }
    }
    instead
}

/// Appends a service port that the receiver does not have, with its cluster pools in a zone.
pub(super) fn put_for_zone(view: &ServicePortView, zone: &str, operations: &mut Vec<Operation>) {
    operations.push(Operation::PutServicePort(view.port.clone()));
    for (family, pools) in view.cluster.iter() {
        let pool = pools.in_zone(zone);
        if !pool.is_empty() {
            chunk::replace(pool_id(&view.port.key, PoolClass::Cluster, family), pool, operations);
        }
    }
}

/// Appends what one node has besides [`put_for_zone`]: its local pools, and its cluster pools where they are special.
pub(super) fn put_for_node(view: &ServicePortView, node: &str, operations: &mut Vec<Operation>) {
    for family in IpFamily::ALL {
        if let Some(pool) = view.cluster[family].nodes.get(node) {
            chunk::replace(pool_id(&view.port.key, PoolClass::Cluster, family), pool, operations);
        }
        if let Some(pool) = view.local_pool(family, node) {
            chunk::replace(pool_id(&view.port.key, PoolClass::Local, family), pool, operations);
        }
    }
}

/// The nodes for which a view is something else than for their zone.
pub(super) fn nodes_of_view(view: &ServicePortView) -> impl Iterator<Item = &Arc<str>> {
    view.cluster.iter().flat_map(|(_, pools)| pools.nodes.keys()).chain(view.local.keys())
}

fn scoped_deltas<'a>(old: &Scoped<Pool>, new: &Scoped<Pool>, zone_of: impl Fn(&str) -> &'a str) -> Scoped<PoolDelta> {
    let zones: BTreeSet<_> = old.zones.keys().chain(new.zones.keys()).collect();
    let nodes: BTreeSet<_> = old.nodes.keys().chain(new.nodes.keys()).collect();
    // A place without a change is listed too: otherwise the delta of the wider scope would be taken for its own.
    Scoped {
        default: PoolDelta::between(&old.default, &new.default),
        zones: zones
            .into_iter()
            .map(|zone| (zone.clone(), PoolDelta::between(old.in_zone(zone), new.in_zone(zone))))
            .collect(),
        nodes: nodes
            .into_iter()
            .map(|node| {
                let zone = zone_of(node);
                (node.clone(), PoolDelta::between(old.resolve(node, zone), new.resolve(node, zone)))
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

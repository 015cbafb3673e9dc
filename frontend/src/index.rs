//! The objects of the cluster, one copy of each, and the service ports that a change affects.
//!
//! ```text
//!   SourceUpdate ──▶ apply ──▶ objects, VIP claims ──▶ dirty keys ──take_changes──▶ views of these keys, problems
//! ```
//!
//! The result depends on the current objects only, not on the order in which they arrived: an index after any history
//! equals one that was filled from scratch.

mod problems;
#[cfg(test)]
mod tests;
mod versions;
mod vip_conflicts;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
    time::SystemTime,
};

use ipnet::IpNet;
use proto::model::{ClusterInfo, KindVersions, NodeInfo, ServicePortKey, SourceVersion};

use crate::{
    object::{
        ClusterObject, ObjectKind, ObjectName, ObjectProblem, ParsedObject, ServiceObject, ServiceObjectPort,
        SliceObject, SourceUpdate,
    },
    view::{ServicePortExplanation, ServicePortView, explain, view},
};

use self::{
    problems::ProblemLog,
    versions::SourceVersions,
    vip_conflicts::{ClaimChange, VipClaims},
};

/// All objects of the cluster that a source delivers.
#[derive(Debug, Default)]
pub struct Index {
    /// Trigger times before this are ignored: they would measure how long this process did not run.
    started: Option<SystemTime>,
    services: HashMap<ObjectName, ServiceObject>,
    /// By their Service, then by their own name.
    slices: HashMap<ObjectName, BTreeMap<Arc<str>, SliceObject>>,
    /// The Service of each slice: a slice can change it, and a deletion does not name it.
    slice_services: HashMap<ObjectName, Arc<str>>,
    nodes: HashMap<Arc<str>, Arc<NodeInfo>>,
    /// From the configuration, without any object.
    configured: ClusterInfo,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    claims: VipClaims,
    problems: ProblemLog,
    versions: SourceVersions,
    /// The kinds of which a list has been delivered.
    complete: BTreeSet<ObjectKind>,
    /// The service ports that may have changed since the last `take_changes`, and the oldest trigger time of the
    /// changes.
    dirty: BTreeMap<ServicePortKey, Option<SystemTime>>,
    dirty_nodes: BTreeSet<Arc<str>>,
    /// Whether the `ClusterInfo` may have changed.
    dirty_cluster: bool,
}

/// What may have changed since the last [`Index::take_changes`], with its new value.
#[derive(Debug, Default)]
pub struct IndexChanges {
    /// Service ports; `None` for those that no longer exist.
    pub ports: Vec<(ServicePortKey, Option<ServicePortView>)>,
    /// Nodes.
    pub nodes: NodeChanges,
    /// The facts about the cluster.
    pub cluster: Option<ClusterInfo>,
    /// The oldest trigger time of the changes, if any has one.
    pub oldest_trigger: Option<SystemTime>,
    /// The version that the objects reflect at least, and that of each kind.
    pub reflected: (SourceVersion, KindVersions),
    /// The version up to which the source has delivered all changes, and that of each kind.
    pub confirmed: (SourceVersion, KindVersions),
}

/// Nodes by name; `None` for those that no longer exist.
pub type NodeChanges = Vec<(Arc<str>, Option<Arc<NodeInfo>>)>;

impl Index {
    /// An empty cluster. Trigger times before `started` are ignored; `configured` is added to the facts from objects.
    #[must_use]
    pub fn new(started: SystemTime, configured: ClusterInfo) -> Self {
        Self { started: Some(started), configured, dirty_cluster: true, ..Self::default() }
    }

    /// Applies an update of a source.
    pub fn apply(&mut self, update: SourceUpdate) {
        match update {
            SourceUpdate::Apply(parsed) => self.apply_one(parsed),
            SourceUpdate::Delete(kind, name) => self.delete(kind, name),
            SourceUpdate::Replace(kind, all) => {
                let mut removed = self.names(kind);
                for parsed in all {
                    removed.remove(&parsed.name);
                    self.apply_one(parsed);
                }
                for name in removed {
                    self.delete(kind, name);
                }
                self.complete.insert(kind);
            }
            SourceUpdate::Progress(kind, progress) => self.versions.record(kind, progress),
        }
    }

    /// Whether a list of each kind has been delivered. Before that no backend may be served.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    /// The kinds of which no list has been delivered yet.
    pub fn missing(&self) -> impl Iterator<Item = ObjectKind> {
        ObjectKind::ALL.into_iter().filter(|kind| !self.complete.contains(kind))
    }

    /// Whether anything may have changed since the last [`Self::take_changes`].
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.dirty_nodes.is_empty() || self.dirty_cluster
    }

    /// Computes what may have changed since the last call.
    pub fn take_changes(&mut self) -> IndexChanges {
        let dirty = mem::take(&mut self.dirty);
        let node = |name: Arc<str>| (name.clone(), self.nodes.get(&name).cloned());
        IndexChanges {
            nodes: mem::take(&mut self.dirty_nodes).into_iter().map(node).collect(),
            cluster: mem::take(&mut self.dirty_cluster).then(|| self.cluster()),
            oldest_trigger: dirty.values().flatten().min().copied(),
            ports: dirty.into_keys().map(|key| (key.clone(), self.resolve(&key))).collect(),
            reflected: (self.versions.reflected(), self.versions.reflected_kinds()),
            confirmed: (self.versions.confirmed(), self.versions.confirmed_kinds()),
        }
    }

    /// The current facts about the cluster.
    fn cluster(&self) -> ClusterInfo {
        let cidrs = self.configured.service_cidrs.iter().chain(self.service_cidrs.values().flatten());
        let cidrs: BTreeSet<IpNet> = cidrs.copied().collect();
        ClusterInfo { service_cidrs: cidrs.into_iter().collect() }
    }

    /// The number of usable objects of a kind.
    #[must_use]
    pub fn count(&self, kind: ObjectKind) -> usize {
        match kind {
            ObjectKind::Service => self.services.len(),
            ObjectKind::EndpointSlice => self.slice_services.len(),
            ObjectKind::Node => self.nodes.len(),
            ObjectKind::ServiceCidr => self.service_cidrs.len(),
        }
    }

    /// All problems of objects, by object. Up to date after [`Self::take_changes`].
    pub fn problems(&self) -> impl Iterator<Item = (ObjectKind, &ObjectName, Vec<&ObjectProblem>)> {
        self.problems.iter()
    }

    /// Why each endpoint of a Service is in the pools of a node or not, for those of its ports that `wanted` selects.
    /// `None` if there is no such Service.
    pub fn explain(
        &self,
        name: &ObjectName,
        node: &str,
        wanted: impl Fn(&ServiceObjectPort) -> bool,
    ) -> Option<Vec<ServicePortExplanation>> {
        let service = self.services.get(name)?;
        let zone = self.nodes.get(node).map_or("", |node| &node.zone);
        let slices = || self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        // The problems of its claims were reported when it was committed.
        let resolve = |port| self.claims.resolve(service, port, &mut Vec::new());
        let explanation = |port| explain(service, resolve(port), slices(), node, zone);
        Some(service.ports.iter().filter(|port| wanted(port)).map(explanation).collect())
    }

    /// A node of the cluster.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).map(Arc::as_ref)
    }

    /// The problems of a Service and of its slices.
    pub fn problems_of(&self, name: &ObjectName) -> impl Iterator<Item = (ObjectKind, &ObjectName, &ObjectProblem)> {
        let is_related = move |kind, object: &ObjectName| match kind {
            ObjectKind::Service => object == name,
            ObjectKind::EndpointSlice => {
                self.slice_services.get(object).is_some_and(|service| sibling(object, service) == *name)
            }
            ObjectKind::Node | ObjectKind::ServiceCidr => false,
        };
        let related = self.problems().filter(move |(kind, object, _)| is_related(*kind, object));
        related.flat_map(|(kind, object, problems)| problems.into_iter().map(move |problem| (kind, object, problem)))
    }

    /// The current view of a service port. Records the problems of its claims.
    fn resolve(&mut self, key: &ServicePortKey) -> Option<ServicePortView> {
        let name = ObjectName::new(key.namespace.clone(), key.name.clone());
        let mut problems = Vec::new();
        let view = self.services.get(&name).and_then(|service| {
            // The first, should there be two of one name.
            let mut ports = service.ports.iter();
            let port = ports.find(|port| port.name == key.port_name && port.protocol == key.protocol)?;
            let port = self.claims.resolve(service, port, &mut problems);
            let slices = self.slices.get(&name).into_iter().flat_map(BTreeMap::values);
            Some(view(service, port, slices))
        });
        self.problems.set_claims(&name, key, problems);
        view
    }

    fn apply_one(&mut self, parsed: ParsedObject) {
        let ParsedObject { kind, name, object, problems } = parsed;
        self.problems.set_source(kind, &name, problems);
        match (kind, object) {
            (_, Some(ClusterObject::Service(service))) => self.put_service(name, Some(service)),
            (_, Some(ClusterObject::EndpointSlice(slice))) => self.put_slice(&name, Some(slice)),
            (_, Some(ClusterObject::Node(node))) => self.put_node(name.name, Some(node)),
            (_, Some(ClusterObject::ServiceCidr(object))) => self.put_service_cidrs(name.name, object.cidrs),
            (ObjectKind::Service, None) => self.put_service(name, None),
            (ObjectKind::EndpointSlice, None) => self.put_slice(&name, None),
            (ObjectKind::Node, None) => self.put_node(name.name, None),
            (ObjectKind::ServiceCidr, None) => self.put_service_cidrs(name.name, Vec::new()),
        }
    }

    fn delete(&mut self, kind: ObjectKind, name: ObjectName) {
        self.apply_one(ParsedObject { kind, name, object: None, problems: Vec::new() });
    }

    /// The names of all objects of a kind that are usable or have problems.
    fn names(&self, kind: ObjectKind) -> BTreeSet<ObjectName> {
        let mut names: BTreeSet<_> = self.problems.names(kind).cloned().collect();
        let cluster_scoped = |name: &Arc<str>| ObjectName::new("", name.clone());
        match kind {
            ObjectKind::Service => names.extend(self.services.keys().cloned()),
            ObjectKind::EndpointSlice => names.extend(self.slice_services.keys().cloned()),
            ObjectKind::Node => names.extend(self.nodes.keys().map(cluster_scoped)),
            ObjectKind::ServiceCidr => names.extend(self.service_cidrs.keys().map(cluster_scoped)),
        }
        names
    }

    fn put_service(&mut self, name: ObjectName, new: Option<ServiceObject>) {
        if self.services.get(&name) == new.as_ref() {
            return;
        }
        let old = match &new {
            Some(service) => self.services.insert(name, service.clone()),
            None => self.services.remove(&name),
        };
        for service in old.iter().chain(&new) {
            self.mark_dirty(service.ports.iter().map(|port| key_of(service, port)));
        }
        let mut affected = BTreeSet::new();
        if let Some(old) = &old {
            self.claims.change_service(old, ClaimChange::Remove, &mut affected);
        }
        if let Some(new) = &new {
            self.claims.change_service(new, ClaimChange::Add, &mut affected);
        }
        self.mark_dirty(affected);
    }

    fn put_slice(&mut self, name: &ObjectName, new: Option<SliceObject>) {
        let old_service = self.slice_services.get(name).map(|service| sibling(name, service));
        let old = old_service.as_ref().and_then(|service| self.slices.get(service)?.get(&name.name));
        if same_content(old, new.as_ref()) {
            // At most the trigger time differs, and that belongs to an earlier change.
            return;
        }
        let trigger = self.new_trigger(old, new.as_ref());
        let keys: BTreeSet<_> = old.into_iter().chain(&new).flat_map(slice_keys).collect();
        if let Some(service) = old_service
            && let Some(slices) = self.slices.get_mut(&service)
        {
            slices.remove(&name.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.slice_services.remove(name);
        if let Some(slice) = new {
            self.slice_services.insert(name.clone(), slice.service.clone());
            let slices = self.slices.entry(sibling(name, &slice.service)).or_default();
            slices.insert(name.name.clone(), slice);
        }
        for key in keys {
            let oldest = self.dirty.entry(key).or_default();
            *oldest = [*oldest, trigger].into_iter().flatten().min();
        }
    }

    /// The trigger time of a change of a slice: it counts only if it has changed as well.
    fn new_trigger(&self, old: Option<&SliceObject>, new: Option<&SliceObject>) -> Option<SystemTime> {
        let trigger = new?.trigger;
        let old = old.and_then(|old| old.trigger);
        trigger.filter(|_| trigger > self.started && trigger != old)
    }

    fn put_node(&mut self, name: Arc<str>, new: Option<NodeInfo>) {
        if self.nodes.get(&name).map(Arc::as_ref) == new.as_ref() {
            return;
        }
        let mut affected = BTreeSet::new();
        if let Some(old) = self.nodes.remove(&name) {
            self.claims.change_node(&old, ClaimChange::Remove, &mut affected);
        }
        if let Some(node) = new {
            self.claims.change_node(&node, ClaimChange::Add, &mut affected);
            self.nodes.insert(name.clone(), Arc::new(node));
        }
        self.dirty_nodes.insert(name);
        self.mark_dirty(affected);
    }

    fn put_service_cidrs(&mut self, name: Arc<str>, cidrs: Vec<IpNet>) {
        let old = if cidrs.is_empty() {
            self.service_cidrs.remove(&name)
        } else {
            self.service_cidrs.insert(name.clone(), cidrs)
        };
        self.dirty_cluster |= old.as_ref() != self.service_cidrs.get(&name);
    }

    fn mark_dirty(&mut self, keys: impl IntoIterator<Item = ServicePortKey>) {
        for key in keys {
            self.dirty.entry(key).or_default();
        }
    }
}

/// The key of a port of a service.
fn key_of(service: &ServiceObject, port: &ServiceObjectPort) -> ServicePortKey {
    let ObjectName { namespace, name } = &service.name;
    ServicePortKey::new(namespace.clone(), name.clone(), port.name.clone(), port.protocol)
}

/// An object in the same namespace.
fn sibling(name: &ObjectName, other: &Arc<str>) -> ObjectName {
    ObjectName::new(name.namespace.clone(), other.clone())
}

/// The service ports that a slice has endpoints for.
fn slice_keys(slice: &SliceObject) -> impl Iterator<Item = ServicePortKey> {
    slice.ports.iter().map(|port| {
        let namespace = slice.name.namespace.clone();
        ServicePortKey::new(namespace, slice.service.clone(), port.name.clone(), port.protocol)
    })
}

/// Whether two versions of a slice differ in their trigger time at most.
fn same_content(old: Option<&SliceObject>, new: Option<&SliceObject>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            let SliceObject { name: _, service, family, ports, endpoints, trigger: _ } = old;
            (service, family, ports, endpoints) == (&new.service, &new.family, &new.ports, &new.endpoints)
        }
        _ => false,
    }
}

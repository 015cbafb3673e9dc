//! The objects of the cluster, one copy of each, and the service ports that a change affects.
//!
//! ```text
//!   SourceUpdate ──▶ apply ──▶ objects, VIP claims ──▶ dirty keys ──take_changes──▶ views of these keys, problems
//! ```
//!
//! The result depends on the current objects only, not on the order in which they arrived: an index after any history
//! equals one that was filled from scratch.

mod addresses;
mod age;
mod completion;
mod groups;
mod keys;
mod pending;
mod plan;
mod policy;
mod problems;
mod protected;
mod refusals;
mod service_cidrs;
#[cfg(test)]
mod tests;
mod topology;
mod versions;
mod vip_conflicts;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::SystemTime,
};

use ipnet::IpNet;
use proto::model::{ClusterInfo, KindVersions, NodeInfo, PerFamily, Protocol, ServicePortKey, TrafficPolicy};

use crate::{
    object::{
        Cause, ClusterObject, NodeChanges, NodeObject, ObjectKind, ObjectName, ObjectProblem, Origin, ParsedObject,
        ServiceObject, ServiceObjectPort, SliceObject, SourceUpdate,
    },
    view::{
        KnownTopology, MAX_EXPLAINED, NAMED_PORTS, NotExplained, ServiceEndpoints, ServicePortExplanation,
        ServicePortView, explain, view,
    },
};

pub use self::policy::{AllowedIps, ServicePolicy};
pub(crate) use self::{
    addresses::{ChangedEntries, PodEntry},
    problems::{ObjectNotice, ProblemCounts},
};
use self::{
    addresses::{SliceIndex, addresses, nodes},
    groups::{GroupChange, Groups, change_group},
    keys::{key_of, port_of, same_service, service_of, sibling, slice_keys},
    pending::{Dirty, PendingChanges},
    problems::{ProblemLog, ProblemSource},
    refusals::RefusalPass,
    topology::{Reference, references, unknown_hints},
    versions::SourceVersions,
    vip_conflicts::{NodePortOwners, RefusedClaims, VipClaims, external_ips},
};

/// The namespace and name of the Service of the API servers.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// How many pairs of an address and a port of API servers are protected. The slices of the Service list the sum of
/// addresses and ports, not the product.
const MAX_API_SERVERS: usize = 1024;

/// All objects of the cluster that a source delivers.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Trigger times before this are ignored: they would measure how long this process did not run.
    started: Option<SystemTime>,
    services: HashMap<ObjectName, ServiceObject>,
    foreign_services: HashMap<ObjectName, PerFamily<Option<IpAddr>>>,
    /// By their Service, then by their own name.
    slices: HashMap<ObjectName, BTreeMap<Arc<str>, SliceObject>>,
    /// The Service of each slice: a slice can change it, and a deletion does not name it.
    slice_services: HashMap<ObjectName, Arc<str>>,
    addresses: SliceIndex<IpAddr>,
    /// The nodes that their endpoints name.
    located: SliceIndex<Arc<str>>,
    references: SliceIndex<Reference>,
    nodes: HashMap<Arc<str>, Arc<NodeInfo>>,
    /// With the nodes in each.
    zones: Groups<Arc<str>, Arc<str>>,
    /// The nodes with the taint [`STARTUP_TAINT`](crate::object::STARTUP_TAINT).
    starting: BTreeSet<Arc<str>>,
    /// From the configuration, without any object.
    configured: ClusterInfo,
    /// See [`Config::only_node`](crate::Config::only_node).
    only_node: Option<Arc<str>>,
    policy: ServicePolicy,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    claims: VipClaims,
    /// Up to date after [`Self::take_changes`].
    pub(crate) problems: ProblemLog,
    /// Services of which a subset of the endpoints is used, or with endpoints on many nodes
    /// ([`ServiceEndpoints::ports_depend_on_each_other`]): each of their ports depends on all of their slices.
    limited: BTreeSet<ObjectName>,
    versions: SourceVersions,
    /// The kinds of which a list has been delivered.
    complete: BTreeSet<ObjectKind>,
    pending: PendingChanges,
    refusals: RefusalPass,
}

/// What may have changed since the last [`Index::take_changes`], with its new value.
#[derive(Debug, Default)]
pub(crate) struct IndexChanges {
    /// Service ports; `None` for those that no longer exist.
    pub(crate) ports: Vec<(ServicePortKey, Option<ServicePortView>)>,
    /// The objects that have changed them last.
    pub(crate) causes: BTreeMap<ServicePortKey, Cause>,
    pub(crate) nodes: NodeChanges,
    pub(crate) cluster: Option<ClusterInfo>,
    /// The oldest trigger time of the changes, if any has one.
    pub(crate) oldest_trigger: Option<SystemTime>,
    /// The version of each kind that the objects reflect at least.
    pub(crate) reflected: KindVersions,
    /// The version of each kind up to which the source has delivered all changes.
    pub(crate) confirmed: KindVersions,
}

impl Index {
    /// An empty cluster. Trigger times before `started` are ignored; `configured` is added to the facts from objects.
    pub(crate) fn new(started: SystemTime, configured: ClusterInfo, policy: ServicePolicy) -> Self {
        let mut claims = VipClaims::new(&policy);
        claims.protected.set_service_cidrs(configured.service_cidrs.iter().copied().collect());
        let pending = PendingChanges { cluster: true, ..PendingChanges::default() };
        Self { started: Some(started), configured, policy, claims, pending, ..Self::default() }
    }

    /// Views have no pools that only other nodes get; `None`: they have all.
    pub(crate) fn limit_to_node(&mut self, only_node: Option<Arc<str>>) {
        self.only_node = only_node;
    }

    pub(crate) fn apply(&mut self, update: SourceUpdate) {
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
    pub(crate) fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    /// The kinds of which no list has been delivered yet.
    pub(crate) fn missing(&self) -> impl Iterator<Item = ObjectKind> {
        ObjectKind::ALL.into_iter().filter(|kind| !self.complete.contains(kind))
    }

    /// Whether anything may have changed since the last [`Self::take_changes`].
    #[cfg(test)]
    pub(crate) fn is_dirty(&self) -> bool {
        !self.pending.ports.is_empty() || !self.pending.nodes.is_empty() || self.pending.cluster
    }

    /// Computes what may have changed since the last call.
    pub(crate) fn take_changes(&mut self) -> IndexChanges {
        self.mark_ports_on_changed_nodes();
        let dirty = mem::take(&mut self.pending.ports);
        let nodes = mem::take(&mut self.pending.nodes);
        let is_cluster_dirty = mem::take(&mut self.pending.cluster);

        let keys: Vec<_> = dirty.keys().cloned().collect();
        let mut ports = Vec::with_capacity(keys.len());
        // Keys are ordered by Service.
        for keys in keys.chunk_by(same_service) {
            self.resolve(keys, &mut ports);
        }

        let current = |name: Arc<str>| (name.clone(), self.nodes.get(&name).cloned());
        IndexChanges {
            nodes: nodes.into_iter().map(current).collect(),
            cluster: if is_cluster_dirty { Some(self.cluster()) } else { None },
            oldest_trigger: dirty.values().filter_map(|dirty| dirty.trigger).min(),
            causes: dirty.into_iter().filter_map(|(key, dirty)| Some((key, dirty.cause?))).collect(),
            ports,
            reflected: self.versions.reflected,
            confirmed: self.versions.confirmed,
        }
    }

    /// Marks the service ports whose local pools depend on whether Nodes exist that have come or gone.
    fn mark_ports_on_changed_nodes(&mut self) {
        let came_or_went = mem::take(&mut self.pending.came_or_went);
        let slices = self.slices_on(&came_or_went);
        let ports = slices.flat_map(|(slice, cause)| slice_keys(slice).map(move |key| (key, cause.clone())));

        for (key, cause) in ports.collect::<Vec<_>>() {
            self.pending.ports.entry(key).or_insert(Dirty { trigger: None, cause });
        }
    }

    /// The number of usable objects of a kind.
    pub(crate) fn count(&self, kind: ObjectKind) -> usize {
        match kind {
            ObjectKind::Service => self.services.len(),
            ObjectKind::EndpointSlice => self.slice_services.len(),
            ObjectKind::Node => self.nodes.len(),
            ObjectKind::ServiceCidr => self.service_cidrs.len(),
        }
    }

    /// Why each endpoint of a Service is in the pools of a node or not, for those of its ports that `wanted` selects.
    pub(crate) fn explain(
        &self,
        name: &ObjectName,
        node: &str,
        wanted: impl Fn(&ServiceObjectPort) -> bool,
    ) -> Result<Vec<ServicePortExplanation>, NotExplained> {
        let service = self.services.get(name).ok_or(NotExplained::NoService)?;
        let ports: Vec<_> = service.ports.iter().filter(|port| wanted(port)).collect();
        if ports.is_empty() {
            let valid = service.ports.iter().take(NAMED_PORTS);
            return Err(NotExplained::NoPort(valid.map(|port| format!("{} ({:?})", port.port, port.name)).collect()));
        }

        let slices = || self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        let explained = ports.len() * slices().map(|slice| slice.endpoints.len()).sum::<usize>();
        if ports.len() > 1 && explained > MAX_EXPLAINED {
            return Err(NotExplained::TooMany(explained));
        }

        let zone = self.nodes.get(node).map_or("", |node| &node.zone);
        let endpoints = ServiceEndpoints::limited(service, slices(), &self.policy.limits).located_in(self.topology());

        // The problems of its claims were reported when it was committed.
        let mut node_ports = NodePortOwners::new();
        let explanation = |port| {
            let (resolved, _) = self.claims.resolve(service, port, &mut node_ports);
            explain(service, resolved, &endpoints, node, zone)
        };
        Ok(ports.into_iter().map(explanation).collect())
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.nodes.get(name).map(Arc::as_ref)
    }

    /// The nodes with the taint [`STARTUP_TAINT`](crate::object::STARTUP_TAINT), by name.
    pub(crate) fn starting_nodes(&self) -> Vec<Arc<str>> {
        self.starting.iter().cloned().collect()
    }

    /// The problems of a Service and of its slices.
    pub(crate) fn problems_of(
        &self,
        name: &ObjectName,
    ) -> impl Iterator<Item = (ObjectKind, &ObjectName, ObjectProblem)> {
        let slices = self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        let of_slices = slices.flat_map(move |slice| self.problems.of(ObjectKind::EndpointSlice, &slice.name));
        self.problems.of(ObjectKind::Service, name).chain(of_slices)
    }

    /// Computes the current views of service ports of one Service. Records the problems of their claims and endpoints.
    fn resolve(&mut self, keys: &[ServicePortKey], views: &mut Vec<(ServicePortKey, Option<ServicePortView>)>) {
        let Some(first) = keys.first() else { return };
        let name = service_of(first);
        let service = self.services.get(&name);
        let only_node = self.only_node.as_deref();
        let topology = KnownTopology { nodes: &self.nodes, zones: &self.zones, only_node };
        let slices = || self.slices.get(&name).into_iter().flat_map(BTreeMap::values);

        for slice in slices() {
            let problem = if service.is_some() { unknown_hints(slice, topology) } else { None };
            self.problems.set(ObjectKind::EndpointSlice, &slice.name, ProblemSource::Hints, problem);
        }

        let limits = &self.policy.limits;
        let served = service.map(|service| {
            let endpoints = ServiceEndpoints::limited(service, slices(), limits).located_in(topology);
            (service, endpoints)
        });
        let is_limited = served.as_ref().is_some_and(|(_, endpoints)| endpoints.ports_depend_on_each_other());

        let mut keys: BTreeSet<_> = keys.iter().cloned().collect();
        if is_limited || self.limited.contains(&name) {
            keys.extend(self.keys_of(&name));
        }

        let mut node_ports = NodePortOwners::new();
        for key in keys {
            if let Some((service, endpoints)) = &served
                && let Some(port) = port_of(service, &key)
            {
                let (port, refused) = self.claims.resolve(service, port, &mut node_ports);
                self.problems.set_claims(&name, &key, refused);
                views.push((key, Some(view(service, port, endpoints))));
            } else {
                self.problems.set_claims(&name, &key, RefusedClaims::default());
                views.push((key, None));
            }
        }

        let problems = served.map(|(service, endpoints)| endpoint_problems(service, &endpoints)).unwrap_or_default();
        self.problems.set(ObjectKind::Service, &name, ProblemSource::Endpoints, problems);
        if is_limited {
            self.limited.insert(name);
        } else {
            self.limited.remove(&name);
        }
    }

    fn apply_one(&mut self, parsed: ParsedObject) {
        let ParsedObject { kind, name, object, problems, origin } = parsed;
        self.pending.cause = Some(Cause { kind, name: name.clone(), origin });
        self.problems.set(kind, &name, ProblemSource::Fields, problems);
        self.put(kind, name, object);
    }

    /// Replaces what is used of an object.
    fn put(&mut self, kind: ObjectKind, name: ObjectName, object: Option<ClusterObject>) {
        match (kind, object) {
            (_, Some(ClusterObject::Service(service))) => self.put_service(name, Some(service), None),
            (_, Some(ClusterObject::ForeignService(cluster_ips))) => self.put_service(name, None, Some(cluster_ips)),
            (_, Some(ClusterObject::EndpointSlice(slice))) => self.put_slice(&name, Some(slice)),
            (_, Some(ClusterObject::Node(node))) => self.put_node(name.name, Some(node)),
            (_, Some(ClusterObject::ServiceCidr(object))) => self.put_service_cidrs(name.name, object.cidrs),
            (ObjectKind::Service, None) => self.put_service(name, None, None),
            (ObjectKind::EndpointSlice, None) => self.put_slice(&name, None),
            (ObjectKind::Node, None) => self.put_node(name.name, None),
            (ObjectKind::ServiceCidr, None) => self.put_service_cidrs(name.name, Vec::new()),
        }
    }

    fn delete(&mut self, kind: ObjectKind, name: ObjectName) {
        self.apply_one(ParsedObject { kind, name, object: None, problems: Vec::new(), origin: Origin::default() });
    }

    /// The names of all objects of a kind that are usable or have problems.
    fn names(&self, kind: ObjectKind) -> BTreeSet<ObjectName> {
        let mut names: BTreeSet<_> = self.problems.names(kind).cloned().collect();
        let cluster_scoped = |name: &Arc<str>| ObjectName::new("", name.clone());
        match kind {
            ObjectKind::Service => names.extend(self.services.keys().chain(self.foreign_services.keys()).cloned()),
            ObjectKind::EndpointSlice => names.extend(self.slice_services.keys().cloned()),
            ObjectKind::Node => names.extend(self.nodes.keys().map(cluster_scoped)),
            ObjectKind::ServiceCidr => names.extend(self.service_cidrs.keys().map(cluster_scoped)),
        }
        names
    }

    /// At most one of the two is there.
    fn put_service(
        &mut self,
        name: ObjectName,
        new: Option<ServiceObject>,
        foreign: Option<PerFamily<Option<IpAddr>>>,
    ) {
        self.put_foreign_service(&name, foreign);
        let (new, problems) = new.map(|service| self.policy.apply(service)).unzip();
        self.problems.set(ObjectKind::Service, &name, ProblemSource::Policy, problems.unwrap_or_default());
        if self.services.get(&name) == new.as_ref() {
            return;
        }

        let old = match &new {
            Some(service) => self.services.insert(name.clone(), service.clone()),
            None => self.services.remove(&name),
        };
        for service in old.iter().chain(&new) {
            self.pending.mark_ports(service.ports.iter().map(|port| key_of(service, port)));
        }

        let mut affected = BTreeSet::new();
        if let Some(old) = &old {
            self.claims.change_service(old, GroupChange::Remove, &mut affected);
        }
        if let Some(new) = &new {
            self.claims.change_service(new, GroupChange::Add, &mut affected);
        }
        self.refusals.is_outdated |= affected.iter().any(|key| service_of(key) != name);
        self.pending.mark_ports(affected);

        let claimed: BTreeSet<_> = old.iter().chain(&new).flat_map(external_ips).map(|(ip, _)| ip).collect();
        self.compare_endpoints(claimed);
    }

    /// Finds the slices that have newly claimed addresses as endpoints, and forgets addresses that are not claimed any
    /// more.
    fn compare_endpoints(&mut self, addresses: BTreeSet<IpAddr>) {
        let mut slices = BTreeSet::new();
        for ip in addresses {
            let is_claimed = self.claims.is_claimed(&ip);
            if self.claims.protected.compare_endpoints(ip, is_claimed) && is_claimed {
                slices.extend(self.addresses.slices(ip));
            }
        }

        let mut changed = Vec::new();
        for name in slices {
            let service = self.slice_services.get(name).map(|service| sibling(name, service));
            if let Some(slice) = service.and_then(|service| self.slices.get(&service)?.get(&name.name)) {
                changed.extend(self.claims.protected.change_slice(None, Some(slice)));
            }
        }
        self.mark_claimants_dirty(&changed);
    }

    fn put_slice(&mut self, name: &ObjectName, new: Option<SliceObject>) {
        let old = self.slice(name);
        if same_content(old, new.as_ref()) {
            // At most the trigger time differs, and that belongs to an earlier change.
            return;
        }
        let trigger = self.new_trigger(old, new.as_ref());
        let keys: BTreeSet<_> = old.into_iter().chain(&new).flat_map(slice_keys).collect();
        self.pending.mark_ports_of_slice(keys, trigger);

        let removed = self.remove_slice(name);
        if new.as_ref().map(|slice| &slice.service) != removed.as_ref().map(|slice| &slice.service) {
            self.problems.set(ObjectKind::EndpointSlice, name, ProblemSource::Hints, None);
        }
        if self.is_complete() {
            self.note_changed_entries(removed.as_ref(), new.as_ref());
        }

        self.addresses.change_slice(name, &addresses(removed.as_ref()), &addresses(new.as_ref()));
        self.located.change_slice(name, &nodes(removed.as_ref()), &nodes(new.as_ref()));
        self.references.change_slice(name, &references(removed.as_ref()), &references(new.as_ref()));
        let mut changed = self.claims.protected.change_slice(removed.as_ref(), new.as_ref());

        let concerns_api_servers = removed.iter().chain(&new).any(lists_api_servers);
        if let Some(slice) = new {
            self.slice_services.insert(name.clone(), slice.service.clone());
            let slices = self.slices.entry(sibling(name, &slice.service)).or_default();
            slices.insert(name.name.clone(), slice);
        }
        if concerns_api_servers {
            changed.extend(self.claims.protected.set_api_servers(self.api_servers()));
        }
        self.mark_claimants_dirty(&changed);
    }

    /// Removes a slice from its Service.
    fn remove_slice(&mut self, name: &ObjectName) -> Option<SliceObject> {
        let service = sibling(name, &self.slice_services.remove(name)?);
        let slices = self.slices.get_mut(&service)?;
        let removed = slices.remove(&name.name);
        if slices.is_empty() {
            self.slices.remove(&service);
        }
        removed
    }

    fn slice(&self, name: &ObjectName) -> Option<&SliceObject> {
        let service = sibling(name, self.slice_services.get(name)?);
        self.slices.get(&service)?.get(&name.name)
    }

    /// The addresses and ports of the API servers.
    fn api_servers(&self) -> BTreeSet<(IpAddr, NonZeroU16)> {
        let (namespace, name) = API_SERVICE;
        let slices = self.slices.get(&ObjectName::new(namespace, name)).into_iter().flat_map(BTreeMap::values);
        let pairs = slices.flat_map(|slice| {
            let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
            ports.flat_map(move |port| slice.endpoints.iter().map(move |endpoint| (endpoint.address, port.port)))
        });
        pairs.take(MAX_API_SERVERS).collect()
    }

    /// The trigger time of a change of a slice: it counts only if it has changed as well.
    fn new_trigger(&self, old: Option<&SliceObject>, new: Option<&SliceObject>) -> Option<SystemTime> {
        let trigger = new?.trigger;
        let is_new = trigger != old.and_then(|old| old.trigger);
        if is_new && trigger > self.started { trigger } else { None }
    }

    fn put_node(&mut self, name: Arc<str>, new: Option<NodeObject>) {
        if new.as_ref().is_some_and(|node| node.is_starting) {
            self.starting.insert(name.clone());
        } else {
            self.starting.remove(&name);
        }

        let new = new.map(|node| node.info);
        let old = self.nodes.get(&name).cloned();
        if old.as_deref() == new.as_ref() {
            return;
        }

        if old.is_none() || new.is_none() {
            let keys: BTreeSet<_> = self.slices_with(Reference::Node(name.clone())).flat_map(slice_keys).collect();
            self.pending.mark_ports(keys);
            self.pending.came_or_went.insert(name.clone(), self.pending.cause.clone());
        }
        self.change_zone(&name, old.as_ref().map(|node| &node.zone), new.as_ref().map(|node| &node.zone));

        let had_nodes = !self.nodes.is_empty();
        let mut changed = Vec::new();
        if let Some(old) = old {
            self.nodes.remove(&name);
            changed.extend(self.claims.protected.change_node(&old, GroupChange::Remove));
        }
        if let Some(node) = new {
            changed.extend(self.claims.protected.change_node(&node, GroupChange::Add));
            self.nodes.insert(name.clone(), Arc::new(node));
        }

        if had_nodes == self.nodes.is_empty() {
            let slices = self.slices_with_references().chain(self.slices_on_many_nodes());
            let keys: BTreeSet<_> = slices.flat_map(slice_keys).collect();
            self.pending.mark_ports(keys);
        }
        self.pending.nodes.insert(name);
        self.mark_claimants_dirty(&changed);
    }

    /// Replaces the zone of a node. What hints to a zone that comes or goes is dirty.
    fn change_zone(&mut self, node: &Arc<str>, old: Option<&Arc<str>>, new: Option<&Arc<str>>) {
        if old == new {
            return;
        }

        let mut keys = BTreeSet::new();
        for (zone, change) in [(old, GroupChange::Remove), (new, GroupChange::Add)] {
            let Some(zone) = zone else { continue };
            let existed = self.zones.contains_key(zone);
            change_group(&mut self.zones, change, zone.clone(), node);
            if existed != self.zones.contains_key(zone) {
                keys.extend(self.slices_with(Reference::Zone(zone.clone())).flat_map(slice_keys));
            }
        }
        self.pending.mark_ports(keys);
    }

    /// Marks the service ports that claim an address in these networks as an external or load-balancer IP.
    fn mark_claimants_dirty(&mut self, networks: &[IpNet]) {
        let claimants = self.claims.claimants_in(networks);
        self.refusals.is_outdated |= !claimants.is_empty();
        self.pending.mark_ports(claimants);
    }
}

/// Whether a slice belongs to the Service of the API servers.
fn lists_api_servers(slice: &SliceObject) -> bool {
    (&*slice.name.namespace, &*slice.service) == API_SERVICE
}

/// Why a Service does not use all of its endpoints.
fn endpoint_problems(service: &ServiceObject, endpoints: &ServiceEndpoints<'_>) -> Vec<ObjectProblem> {
    let mut messages = Vec::new();
    messages.extend(endpoints.describe_subset());
    if [service.internal_policy, service.external_policy].contains(&TrafficPolicy::Local) {
        messages.extend(endpoints.describe_missing_nodes());
    }
    messages.into_iter().map(|message| ObjectProblem { field: "endpoints".to_owned(), message }).collect()
}

/// Whether two versions of a slice differ in their trigger time at most.
fn same_content(old: Option<&SliceObject>, new: Option<&SliceObject>) -> bool {
    match (old, new) {
        (None, None) => true,
        (Some(old), Some(new)) => {
            let SliceObject { name: _, created, service, family, ports, endpoints, trigger: _ } = old;
            (created, service, family, ports, endpoints)
                == (&new.created, &new.service, &new.family, &new.ports, &new.endpoints)
        }
        _ => false,
    }
}

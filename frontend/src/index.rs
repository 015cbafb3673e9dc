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
mod groups;
mod keys;
mod plan;
mod policy;
mod problems;
mod protected;
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
    problems::{ProblemLog, ProblemSource},
    topology::{Reference, references, unknown_hints},
    versions::SourceVersions,
    vip_conflicts::{NodePortOwners, VipClaims, external_ips},
};

/// The namespace and name of the Service of the API servers.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");
/// How many service ports' refusals are described again at once: thousands may be told about one change, and commits
/// wait meanwhile.
const DESCRIBED_AT_ONCE: usize = 64;
/// How many VIPs these may claim before the others wait for the next time.
const DESCRIBED_CLAIMS: usize = 4_096;
/// How many pairs of an address and a port of it are protected: its slices list the sum of them, not the product.
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
    /// The service ports that may have changed since the last `take_changes`.
    dirty: BTreeMap<ServicePortKey, Dirty>,
    /// The entries of slices that have changed since they were last taken; nothing before all objects are listed.
    changed_entries: ChangedEntries,
    /// The object that is applied, or was the last one.
    cause: Option<Cause>,
    dirty_nodes: BTreeSet<Arc<str>>,
    /// Nodes whose object was created or deleted since the last `take_changes`, with that change.
    came_or_went: BTreeMap<Arc<str>, Option<Cause>>,
    /// Whether the `ClusterInfo` may have changed.
    dirty_cluster: bool,
    /// Whether refusals may name service ports that no longer get the claims: the next pass over all describes them
    /// again.
    are_refusals_outdated: bool,
    /// The last service port of a pass that is under way.
    described: Option<ServicePortKey>,
}

/// Why a service port may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Dirty {
    /// The oldest trigger time of the changes.
    trigger: Option<SystemTime>,
    /// The object of the last one.
    cause: Option<Cause>,
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
        Self { started: Some(started), configured, policy, claims, dirty_cluster: true, ..Self::default() }
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
        !self.dirty.is_empty() || !self.dirty_nodes.is_empty() || self.dirty_cluster
    }

    /// Whether [`Self::describe_refusals`] has more to do.
    pub(crate) fn has_outdated_refusals(&self) -> bool {
        self.are_refusals_outdated || self.described.is_some()
    }

    /// Computes what may have changed since the last call.
    pub(crate) fn take_changes(&mut self) -> IndexChanges {
        let came_or_went = mem::take(&mut self.came_or_went);
        let ports = self.slices_on(&came_or_went);
        let ports = ports.flat_map(|(slice, cause)| slice_keys(slice).map(move |key| (key, cause.clone())));
        for (key, cause) in ports.collect::<Vec<_>>() {
            self.dirty.entry(key).or_insert(Dirty { trigger: None, cause });
        }
        let dirty = mem::take(&mut self.dirty);
        let oldest_trigger = dirty.values().filter_map(|dirty| dirty.trigger).min();
        let keys: Vec<_> = dirty.keys().cloned().collect();
        let mut ports = Vec::with_capacity(keys.len());
        // Ordered by Service.
        for keys in keys.chunk_by(same_service) {
            self.resolve(keys, &mut ports);
        }
        let node = |name: Arc<str>| (name.clone(), self.nodes.get(&name).cloned());
        IndexChanges {
            nodes: mem::take(&mut self.dirty_nodes).into_iter().map(node).collect(),
            cluster: mem::take(&mut self.dirty_cluster).then(|| self.cluster()),
            oldest_trigger,
            causes: dirty.into_iter().filter_map(|(key, dirty)| Some((key, dirty.cause?))).collect(),
            ports,
            reflected: self.versions.reflected,
            confirmed: self.versions.confirmed,
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
            let problem = service.and_then(|_| unknown_hints(slice, topology));
            self.problems.set(ObjectKind::EndpointSlice, &slice.name, ProblemSource::Hints, problem);
        }
        let limits = &self.policy.limits;
        let served = service.map(|service| {
            let endpoints = ServiceEndpoints::limited(service, slices(), limits).located_in(topology);
            (service, endpoints)
        });
        let is_limited = served.as_ref().is_some_and(|(_, endpoints)| endpoints.ports_depend_on_each_other());
        let endpoints = served.iter().map(|(_, endpoints)| endpoints);
        let uses_local = service
            .is_some_and(|service| [service.internal_policy, service.external_policy].contains(&TrafficPolicy::Local));
        let missing = |endpoints: &ServiceEndpoints<'_>| endpoints.describe_missing_nodes().filter(|_| uses_local);
        let exceeded = endpoints.flat_map(|endpoints| [endpoints.describe_subset(), missing(endpoints)]);
        let problem = |message| ObjectProblem { field: "endpoints".to_owned(), message };
        let problems: Vec<_> = exceeded.flatten().map(problem).collect();
        let mut keys: BTreeSet<_> = keys.iter().cloned().collect();
        if is_limited || self.limited.contains(&name) {
            keys.extend(self.keys_of(&name));
        }
        let mut node_ports = NodePortOwners::new();
        for key in keys {
            let resolved = served.as_ref().and_then(|(service, endpoints)| {
                let port = port_of(service, &key)?;
                let (port, refused) = self.claims.resolve(service, port, &mut node_ports);
                Some((view(service, port, endpoints), refused))
            });
            let (view, refused) = resolved.unzip();
            self.problems.set_claims(&name, &key, refused.unwrap_or_default());
            views.push((key, view));
        }
        if is_limited {
            self.limited.insert(name.clone());
        } else {
            self.limited.remove(&name);
        }
        self.problems.set(ObjectKind::Service, &name, ProblemSource::Endpoints, problems);
    }

    fn apply_one(&mut self, parsed: ParsedObject) {
        let ParsedObject { kind, name, object, problems, origin } = parsed;
        self.cause = Some(Cause { kind, name: name.clone(), origin });
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
        let (problems, origin) = (Vec::new(), Origin::default());
        self.apply_one(ParsedObject { kind, name, object: None, problems, origin });
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
            Some(service) => self.services.insert(name, service.clone()),
            None => self.services.remove(&name),
        };
        for service in old.iter().chain(&new) {
            self.mark_dirty(service.ports.iter().map(|port| key_of(service, port)));
        }
        let mut affected = BTreeSet::new();
        if let Some(old) = &old {
            self.claims.change_service(old, GroupChange::Remove, &mut affected);
        }
        if let Some(new) = &new {
            self.claims.change_service(new, GroupChange::Add, &mut affected);
        }
        let own = old.as_ref().or(new.as_ref()).map(|service| &service.name);
        self.are_refusals_outdated |= affected.iter().any(|key| Some(&service_of(key)) != own);
        self.mark_dirty(affected);
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
        let mut removed = None;
        if let Some(service) = self.slice_services.remove(name).map(|service| sibling(name, &service))
            && let Some(slices) = self.slices.get_mut(&service)
        {
            removed = slices.remove(&name.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        if new.as_ref().map(|slice| &slice.service) != removed.as_ref().map(|slice| &slice.service) {
            self.problems.set(ObjectKind::EndpointSlice, name, ProblemSource::Hints, None);
        }
        let is_api = |slice: &SliceObject| (&*slice.name.namespace, &*slice.service) == API_SERVICE;
        let of_api = removed.iter().chain(&new).any(is_api);
        if self.is_complete() {
            self.note_changed_entries(removed.as_ref(), new.as_ref());
        }
        self.addresses.change_slice(name, &addresses(removed.as_ref()), &addresses(new.as_ref()));
        self.located.change_slice(name, &nodes(removed.as_ref()), &nodes(new.as_ref()));
        self.references.change_slice(name, &references(removed.as_ref()), &references(new.as_ref()));
        let mut changed = self.claims.protected.change_slice(removed.as_ref(), new.as_ref());
        if let Some(slice) = new {
            self.slice_services.insert(name.clone(), slice.service.clone());
            let slices = self.slices.entry(sibling(name, &slice.service)).or_default();
            slices.insert(name.name.clone(), slice);
        }
        for key in keys {
            let dirty = self.dirty.entry(key).or_default();
            dirty.trigger = [dirty.trigger, trigger].into_iter().flatten().min();
            dirty.cause.clone_from(&self.cause);
        }
        if of_api {
            changed.extend(self.claims.protected.set_api_servers(self.api_servers()));
        }
        self.mark_claimants_dirty(&changed);
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
        let old = old.and_then(|old| old.trigger);
        trigger.filter(|_| trigger > self.started && trigger != old)
    }

    fn put_node(&mut self, name: Arc<str>, new: Option<NodeObject>) {
        let is_starting = new.as_ref().is_some_and(|node| node.is_starting);
        let _ = if is_starting { self.starting.insert(name.clone()) } else { self.starting.remove(&name) };
        let new = new.map(|node| node.info);
        if self.nodes.get(&name).map(Arc::as_ref) == new.as_ref() {
            return;
        }
        let had_nodes = !self.nodes.is_empty();
        if new.is_none() || !self.nodes.contains_key(&name) {
            let keys: BTreeSet<_> = self.slices_with(Reference::Node(name.clone())).flat_map(slice_keys).collect();
            self.mark_dirty(keys);
            self.came_or_went.insert(name.clone(), self.cause.clone());
        }
        let old_zone = self.nodes.get(&name).map(|node| node.zone.clone());
        self.change_zone(&name, old_zone.as_ref(), new.as_ref().map(|node| &node.zone));
        let mut changed = Vec::new();
        if let Some(old) = self.nodes.remove(&name) {
            changed.extend(self.claims.protected.change_node(&old, GroupChange::Remove));
        }
        if let Some(node) = new {
            changed.extend(self.claims.protected.change_node(&node, GroupChange::Add));
            self.nodes.insert(name.clone(), Arc::new(node));
        }
        if had_nodes == self.nodes.is_empty() {
            let slices = self.slices_with_references().chain(self.slices_on_many_nodes());
            let keys: BTreeSet<_> = slices.flat_map(slice_keys).collect();
            self.mark_dirty(keys);
        }
        self.dirty_nodes.insert(name);
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
        self.mark_dirty(keys);
    }

    /// Marks the service ports that claim an address in these networks as an external or load-balancer IP.
    fn mark_claimants_dirty(&mut self, networks: &[IpNet]) {
        let claimants = self.claims.claimants_in(networks);
        self.are_refusals_outdated |= !claimants.is_empty();
        self.mark_dirty(claimants);
    }

    /// Describes again why some service ports do not get their claims: who gets them may have changed.
    pub(crate) fn describe_refusals(&mut self) {
        if self.described.is_none() && !mem::take(&mut self.are_refusals_outdated) {
            return;
        }
        let keys = self.problems.refused_after(self.described.as_ref(), DESCRIBED_AT_ONCE);
        self.described = keys.get(DESCRIBED_AT_ONCE - 1).cloned();
        let (mut node_ports, mut claims) = (NodePortOwners::new(), 0);
        for key in keys {
            let name = service_of(&key);
            if let Some(service) = self.services.get(&name)
                && let Some(port) = port_of(service, &key)
            {
                let (_, refused) = self.claims.resolve(service, port, &mut node_ports);
                claims += 1 + external_ips(service).count();
                self.problems.set_claims(&name, &key, refused);
            }
            if claims >= DESCRIBED_CLAIMS {
                self.described = Some(key);
                return;
            }
        }
    }

    fn mark_dirty(&mut self, keys: impl IntoIterator<Item = ServicePortKey>) {
        for key in keys {
            self.dirty.entry(key).or_default().cause.clone_from(&self.cause);
        }
    }
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

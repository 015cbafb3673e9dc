//! The applied state: the objects in the kernel, the desired objects, and the service ports that need them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use anyhow::{Context as _, Result};
use backend::{ServiceName, dataplane::Vip, driver::Applied};
use iptables::ChainSpec;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily, Protocol, ServicePortFailure, ServicePortKey};

use crate::{
    desired::{Desired, Excess},
    ids::{self, Ids},
    kernel::Rejected,
    mark::Mark,
    object::{Object, Value, Weight},
    plan::{Objects, Operation},
};

/// Our objects in the kernel, and the service ports that need them.
#[derive(Clone, Debug, Default)]
pub struct AppliedState {
    /// Our objects in the kernel.
    pub(crate) observed: Objects,
    pub(crate) rules: PerFamily<Vec<ChainSpec>>,
    /// The addresses of other devices.
    pub(crate) foreign_addresses: HashSet<IpAddr>,
    pub(crate) ids: Ids,
    service_ports: BTreeMap<ServicePortKey, Desired>,
    /// Objects that no service port needs any more, except for those in `draining`.
    pub(crate) leftovers: BTreeSet<Object>,
    /// Destinations that no service port needs any more, and that stay until their connections have ended. They are
    /// apart because there may be many, and a transaction has to visit none of them.
    pub(crate) draining: BTreeSet<Object>,
    /// The destinations in `draining` that can be deleted.
    pub(crate) idle: HashSet<Object>,
    /// Whether the last transaction has left deletions of unneeded objects to the next one.
    pub(crate) has_leftovers: bool,
    /// The desired value of each object, and how many service ports need it.
    desired: HashMap<Object, (Value, u32)>,
    /// The service ports with an object that the kernel rejects, and the reason.
    rejections: BTreeMap<ServicePortKey, String>,
    /// Whether the kernel may contain unneeded objects that are neither in `leftovers` nor in `draining`.
    pub(crate) is_reconciling: bool,
    /// Why a service port has other objects than desired. The desired ones are tried again when it changes.
    degraded: BTreeMap<ServicePortKey, String>,
    /// The VIPs of service ports that are in excluded ranges.
    excluded: BTreeMap<ServicePortKey, Vec<IpAddr>>,
    /// The Services that exceed limits.
    pub(crate) excess: BTreeMap<ServiceName, Excess>,
}

// === impl AppliedState ===

impl AppliedState {
    /// The state after the kernel was read, without service ports.
    pub(crate) fn new(observed: Objects, rules: PerFamily<Vec<ChainSpec>>, foreign_addresses: HashSet<IpAddr>) -> Self {
        Self { observed, rules, foreign_addresses, is_reconciling: true, ..Self::default() }
    }

    /// The desired value of an object; `None`: no service port needs it.
    pub(crate) fn desired(&self, object: &Object) -> Option<&Value> {
        self.desired.get(object).map(|(value, _)| value)
    }

    /// Whether a service port has a VIP at this address.
    pub(crate) fn has_vip_at(&self, address: IpAddr) -> bool {
        let is_there =
            |(_, vip): &(IpFamily, Vip)| matches!(vip, Vip::AddressPort { address: of, .. } if *of == address);
        self.service_ports.values().any(|desired| desired.vips.iter().any(is_there))
    }

    /// Removes a service port. Returns the objects that it needed.
    pub(crate) fn remove(&mut self, key: &ServicePortKey) -> BTreeSet<Object> {
        self.rejections.remove(key);
        self.degraded.remove(key);
        self.excluded.remove(key);
        let Some(removed) = self.service_ports.remove(key) else { return BTreeSet::new() };

        for (object, value) in &removed.objects {
            if let Some((desired, count)) = self.desired.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    self.desired.remove(object);
                } else if desired == value && ids::id(value).is_some() {
                    // Only the owner of the VIP had this mark.
                    *desired = Value::Mark(Mark::HEALTH_CHECK);
                }
            }
        }
        removed.objects.into_iter().map(|(object, _)| object).collect()
    }

    /// Adds a service port that was removed before. Returns the objects that it needs.
    pub(crate) fn add(&mut self, key: &ServicePortKey, mut added: Desired) -> BTreeSet<Object> {
        // Two VIPs may need one object.
        added.objects.sort_by_key(|(object, _)| *object);
        added.objects.dedup_by_key(|(object, _)| *object);
        for (object, value) in &added.objects {
            let (desired, count) = self.desired.entry(*object).or_insert_with(|| (value.clone(), 0));
            // A VIP of another service port precedes a health-check node port.
            if *value != Value::Mark(Mark::HEALTH_CHECK) {
                desired.clone_from(value);
            }
            *count += 1;
        }

        let touched = added.objects.iter().map(|(object, _)| *object).collect();
        if !added.excluded.is_empty() {
            self.excluded.insert(key.clone(), std::mem::take(&mut added.excluded));
        }
        if let Some(reason) = added.degraded.take() {
            self.degraded.insert(key.clone(), reason);
        }
        if !added.vips.is_empty() {
            self.service_ports.insert(key.clone(), added);
        }
        touched
    }

    /// Whether a UDP service port loses an external VIP or node port that leads to its marks, and has others, in these
    /// entries. IPVS would let the flows to it go on to endpoints that stay, so the other VIPs get marks of a new id,
    /// and all flows with the old marks end. Other protocols keep their id, because connections to VIPs that stay would
    /// be cut.
    pub(crate) fn withdraws(&self, key: &ServicePortKey, vip_entries: &[Object]) -> bool {
        if key.protocol != Protocol::Udp {
            return false;
        }
        let Some(id) = self.ids.get(key) else { return false };
        let Some(old) = self.service_ports.get(key) else { return false };

        let kept: HashSet<&Object> = vip_entries.iter().collect();
        let leads_to_its_marks = |object: &Object| self.observed.get(object).and_then(ids::id) == Some(id);
        old.objects.iter().any(|(object, _)| !kept.contains(object) && leads_to_its_marks(object))
    }

    /// The number of objects that change when a service port gets these.
    pub(crate) fn differing(&self, key: &ServicePortKey, desired: &Desired) -> usize {
        let differs = |(object, value): &&(Object, Value)| match self.observed.get(object) {
            Some(observed) => observed != value,
            None => !value.is_established(),
        };
        let changed = desired.objects.iter().filter(differs).count();

        let Some(old) = self.service_ports.get(key) else { return changed };
        let new: HashSet<&Object> = desired.objects.iter().map(|(object, _)| object).collect();
        let is_gone = |object: &Object| !new.contains(object) && self.observed.contains_key(object);
        changed + old.objects.iter().filter(|(object, _)| is_gone(object)).count()
    }

    /// From now on, objects that no service port needs are leftovers.
    pub(crate) fn complete(&mut self) {
        let unneeded = self.observed.keys().filter(|object| !self.desired.contains_key(object));
        self.leftovers.extend(unneeded);
        self.is_reconciling = false;
    }

    /// The service ports that need each of these objects.
    pub(crate) fn owners(&self, objects: &HashSet<Object>) -> HashMap<Object, Vec<ServicePortKey>> {
        let mut owners: HashMap<Object, Vec<ServicePortKey>> = HashMap::new();
        if objects.is_empty() {
            return owners;
        }
        for (key, desired) in &self.service_ports {
            for (object, _) in desired.objects.iter().filter(|(object, _)| objects.contains(object)) {
                owners.entry(*object).or_default().push(key.clone());
            }
        }
        owners
    }

    /// Records that operations were executed, except for rejected ones.
    pub(crate) fn commit(&mut self, operations: &[Operation], rejected: &HashMap<usize, Rejected>) -> Result<()> {
        let objects = rejected.keys().filter_map(|index| Some(*operations.get(*index)?.object())).collect();
        let owners = self.owners(&objects);

        for (index, operation) in operations.iter().enumerate() {
            let object = *operation.object();
            let Some(Rejected { reason, instead }) = rejected.get(&index) else {
                match operation.value() {
                    Some(value) => drop(self.observed.insert(object, value.clone())),
                    None => drop(self.observed.remove(&object)),
                }
                continue;
            };

            for owner in owners.get(&object).with_context(|| reason.clone())? {
                match instead {
                    Some(_) => drop(self.degraded.entry(owner.clone()).or_insert_with(|| reason.clone())),
                    None => drop(self.rejections.entry(owner.clone()).or_insert_with(|| reason.clone())),
                }
            }
            if let Some(value) = instead {
                self.observed.insert(object, value.clone());
            }
        }
        Ok(())
    }

    /// Records which of these objects, after a commit, still wait for their deletion.
    pub(crate) fn commit_leftovers(&mut self, touched: BTreeSet<Object>) {
        for object in touched {
            let is_needed = self.desired.contains_key(&object);
            let unneeded = if is_needed { None } else { self.observed.get(&object) };
            if let Some(Value::Weight(Weight::Draining(_))) = unneeded {
                self.draining.insert(object);
                self.leftovers.remove(&object);
                continue;
            }

            self.draining.remove(&object);
            self.idle.remove(&object);
            if unneeded.is_some() {
                self.leftovers.insert(object);
            } else {
                self.leftovers.remove(&object);
            }
        }
    }

    /// The virtual servers with destinations that drain.
    pub(crate) fn draining_servers(&self) -> HashSet<VirtualServerKey> {
        let mut servers = HashSet::new();
        for object in &self.draining {
            if let Object::Destination(server, _) = object {
                servers.insert(*server);
            }
        }
        servers
    }

    /// The virtual servers that no service port needs any more, and that stay until their connections have ended.
    pub(crate) fn unneeded_servers(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.leftovers.iter().filter_map(Object::server)
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.service_ports.get(key).map(|desired| desired.vips.clone()).unwrap_or_default()
    }

    fn has_unneeded(&self) -> bool {
        self.has_leftovers || self.is_reconciling
    }

    fn failures(&self) -> Vec<ServicePortFailure> {
        let mut failures = Vec::new();
        for (key, addresses) in &self.excluded {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let reason = format!("{} is excluded by --ipvs-exclude-cidrs", addresses.join(", "));
            failures.push(ServicePortFailure::rejected(key.clone(), reason).permanent());
        }
        for (key, reason) in &self.degraded {
            failures.push(ServicePortFailure::rejected(key.clone(), reason.clone()).permanent());
        }
        for (key, reason) in &self.rejections {
            failures.push(ServicePortFailure::rejected(key.clone(), reason.clone()));
        }
        failures
    }
}

//! What the kernel holds, as far as we know, what it should hold, and who wants that.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use backend::dataplane::Vip;
use netlink::ipvs::VirtualServerKey;
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Desired, Rules},
    ids::Ids,
    object::{Object, Value, Weight},
    plan::{Objects, Operation},
};

/// What the kernel holds.
#[derive(Clone, Debug)]
pub(super) struct Programmed {
    pub(super) observed: Objects,
    pub(super) rules: PerFamily<Rules>,
    /// The node's own addresses.
    pub(super) node: Vec<IpAddr>,
    /// The addresses of other devices.
    pub(super) elsewhere: HashSet<IpAddr>,
    services: BTreeMap<ServicePortKey, Desired>,
    /// What is there though nobody wants it, until something has drained.
    leftovers: BTreeSet<Object>,
    /// What should be there, and how many service ports want it.
    wanted: HashMap<Object, (Value, u32)>,
    ids: Ids,
}

// === impl Programmed ===

impl Programmed {
    pub(super) fn new(
        observed: Objects,
        rules: PerFamily<Rules>,
        node: Vec<IpAddr>,
        elsewhere: HashSet<IpAddr>,
    ) -> Self {
        let (services, leftovers) = (BTreeMap::new(), BTreeSet::new());
        let (wanted, ids) = (HashMap::new(), Ids::default());
        Self { observed, rules, node, elsewhere, services, leftovers, wanted, ids }
    }

    /// What should be there of a piece.
    pub(super) fn wanted(&self, object: &Object) -> Option<&Value> {
        self.wanted.get(object).map(|(value, _)| value)
    }

    /// A service port wants nothing any more. Tells what it wanted.
    pub(super) fn forget(&mut self, key: &ServicePortKey) -> BTreeSet<Object> {
        let Some(desired) = self.services.remove(key) else { return BTreeSet::new() };
        for (object, _) in &desired.objects {
            if let Some((_, count)) = self.wanted.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    self.wanted.remove(object);
                }
            }
        }
        desired.objects.into_iter().map(|(object, _)| object).collect()
    }

    /// A service port, forgotten before, wants this. Tells what that is.
    pub(super) fn want(&mut self, key: &ServicePortKey, mut desired: Desired) -> BTreeSet<Object> {
        // Two fronts may want one piece.
        desired.objects.sort_by_key(|(object, _)| *object);
        desired.objects.dedup_by_key(|(object, _)| *object);
        for (object, value) in &desired.objects {
            let (observed, count) = self.wanted.entry(*object).or_insert_with(|| (value.clone(), 0));
            observed.clone_from(value);
            *count += 1;
        }
        let touched = desired.objects.iter().map(|(object, _)| *object).collect();
        if !desired.fronts.is_empty() {
            self.services.insert(key.clone(), desired);
        }
        touched
    }

    /// Who wants each of these pieces.
    pub(super) fn owners(&self, objects: &HashSet<Object>) -> HashMap<Object, Vec<ServicePortKey>> {
        let mut owners: HashMap<Object, Vec<ServicePortKey>> = HashMap::new();
        for (key, desired) in &self.services {
            for (object, _) in desired.objects.iter().filter(|(object, _)| objects.contains(object)) {
                owners.entry(*object).or_default().push(key.clone());
            }
        }
        owners
    }

    pub(super) fn fronts(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.services.get(key).map(|desired| desired.fronts.clone()).unwrap_or_default()
    }

    /// VIPs that are left alone.
    pub(super) fn excluded(&self) -> impl Iterator<Item = (&ServicePortKey, &[IpAddr])> {
        let services = self.services.iter().filter(|(_, desired)| !desired.excluded.is_empty());
        services.map(|(key, desired)| (key, &desired.excluded[..]))
    }

    /// An operation has been executed.
    pub(super) fn settle(&mut self, operation: Operation) {
        match operation {
            Operation::Add(object, value) | Operation::Change(object, value) => {
                self.observed.insert(object, value);
            }
            Operation::Remove(object) => drop(self.observed.remove(&object)),
        }
    }

    /// What is there though nobody wants it.
    pub(super) fn leftovers(&self) -> &BTreeSet<Object> {
        &self.leftovers
    }

    /// These have been dealt with.
    pub(super) fn settle_leftovers(&mut self, touched: BTreeSet<Object>) {
        for object in touched {
            if self.observed.contains_key(&object) && !self.wanted.contains_key(&object) {
                self.leftovers.insert(object);
            } else {
                self.leftovers.remove(&object);
            }
        }
    }

    /// The destinations that are being removed, and until when.
    pub(super) fn draining(&self) -> impl Iterator<Item = (VirtualServerKey, SocketAddr, u32)> {
        self.leftovers.iter().filter_map(|object| match (object, self.observed.get(object)) {
            (Object::Destination(server, address), Some(Value::Weight(Weight::Draining(until)))) => {
                Some((*server, *address, *until))
            }
            _ => None,
        })
    }

    pub(super) fn adopt_id(&mut self, key: &ServicePortKey, fronts: &[Object]) {
        self.ids.adopt(key, &self.observed, fronts.iter());
    }

    pub(super) fn give_id(&mut self, key: &ServicePortKey) -> Option<u32> {
        self.ids.give(key, &self.observed)
    }

    pub(super) fn release_id(&mut self, key: &ServicePortKey) {
        self.ids.release(key);
    }
}

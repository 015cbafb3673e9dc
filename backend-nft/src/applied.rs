//! The content of our tables: enough to know it without reading the kernel again. The elements of programmed service
//! ports are not stored, because they follow from their desired state.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use backend::{
    dataplane::{EffectiveOptions, Vip, VipOwnership},
    driver::{Applied, AppliedServicePorts, Change},
};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    affine_ports::AffinePorts,
    desired::{Base, Desired, Slots, Update, vip_of_key},
    edits::{Edits, PartialServicePort, PlannedUpdate},
    element::{Element, ForgottenClients, PoolChain, SourceGroupId},
    observed::{Observed, ObservedElements, ObservedTable, slots},
    operation::{Operation, Repairs},
    refs::{RefCountChanges, RefCounts, chains},
};

/// The content of our tables.
#[derive(Clone, Debug)]
pub struct AppliedState {
    service_ports: AppliedServicePorts<Box<Desired>>,
    /// The service ports whose last change is programmed in part.
    partial: BTreeMap<ServicePortKey, PerFamily<PartialServicePort>>,
    /// The changes of service ports that are not programmed yet.
    pub(crate) planned: BTreeMap<ServicePortKey, PlannedUpdate>,
    /// The elements that were read and belong to neither `service_ports` nor `partial`: not programmed yet, rejected,
    /// or unneeded.
    observed: PerFamily<ObservedElements>,
    /// The reference counts of shared objects.
    pub(crate) refs: PerFamily<RefCounts>,
    /// The repairs of the base ruleset for the first transaction.
    pub(crate) repairs: PerFamily<Repairs>,
    /// The repairs of the base ruleset for the last transaction of a reconcile.
    last_repairs: PerFamily<Vec<Operation>>,
    /// Chains for the next transaction, while a reconcile fills empty maps.
    pub(crate) prepared: PerFamily<BTreeSet<PoolChain>>,
    /// Whether the tables had no elements of service ports when they were read.
    is_cold: bool,
    /// Whether the next transaction deletes our table and creates it again, with all that it contains.
    pub(crate) rebuilds: bool,
    /// Whether the references of some service ports to shared elements are not counted yet.
    pub(crate) is_reconciling: bool,
    pub(crate) options: EffectiveOptions,
    pub(crate) base: PerFamily<Base>,
    pub(crate) affine_ports: AffinePorts,
}

// === impl AppliedState ===

impl AppliedState {
    /// The state after the kernel was read. `updates`: the desired state of the service ports, in the order of their
    /// keys.
    pub(crate) fn new(
        base: PerFamily<Base>,
        options: EffectiveOptions,
        affine_ports: AffinePorts,
        observed: Observed,
        updates: Vec<Update>,
        ownership: &VipOwnership,
    ) -> Self {
        let Observed { mut tables, mut repairs } = observed;
        let last_repairs = PerFamily::from_fn(|family| mem::take(&mut repairs[family].last));
        let is_cold = tables.iter().all(|(_, table)| table.elements.is_empty());

        let mut programmed = PerFamily::from_fn(|family| vec![false; tables[family].elements.len()]);
        let adopted = updates.into_iter().filter_map(|update| adopt(&mut tables, &mut programmed, update));
        let service_ports = adopted.collect();

        let mut refs = PerFamily::<RefCounts>::default();
        let observed = tables.map(|family, table| {
            refs[family] = table.refs;
            let elements = table.elements.into_iter().zip(&programmed[family]);
            let not_programmed = elements.filter(|(_, is_programmed)| !**is_programmed).map(|(element, _)| element);
            ObservedElements::new(family, not_programmed, ownership)
        });

        Self {
            service_ports,
            partial: BTreeMap::new(),
            planned: BTreeMap::new(),
            observed,
            refs,
            repairs,
            last_repairs,
            prepared: PerFamily::default(),
            is_cold,
            rebuilds: false,
            is_reconciling: true,
            options,
            base,
            affine_ports,
        }
    }

    /// Keeps the planned update of a service port until it is programmed, or changes.
    pub(crate) fn plan(&mut self, planned: PlannedUpdate) {
        self.planned.insert(planned.update.key.clone(), planned);
    }

    /// The repairs of the last transaction of a reconcile: at most `limit` of the elements that belong to no service
    /// port, and, with the last of these elements, the repairs of the base ruleset.
    pub(crate) fn last_repairs(
        &self,
        family: IpFamily,
        change: &Change<'_>,
        limit: usize,
    ) -> (Vec<Element>, &[Operation]) {
        let is_programmed = |key: &_| change.contains(key);
        let (unowned, is_all) = self.observed[family].unneeded(change.ownership, is_programmed, limit);
        // As long as unowned elements remain, they may refer to foreign chains.
        let last_repairs = if is_all { &self.last_repairs[family][..] } else { &[] };
        (unowned, last_repairs)
    }

    /// At most `limit` of the elements of VIPs without a service port that lead to the pool of a service port. They are
    /// removed before that pool changes.
    pub(crate) fn stale_aliases(&self, mut limit: usize) -> PerFamily<Vec<Element>> {
        PerFamily::from_fn(|family| {
            let stale = self.observed[family].stale(limit);
            limit -= stale.len();
            stale
        })
    }

    /// Records that observed elements were removed.
    pub(crate) fn remove_observed(&mut self, removed: &PerFamily<Vec<Element>>, ownership: &VipOwnership) {
        for (family, removed) in removed.iter().filter(|(_, removed)| !removed.is_empty()) {
            self.observed[family].remove_elements(removed, ownership);
        }
    }

    /// Records the chains that a service port needs, if they are to be added before the maps are full.
    pub(crate) fn prepare(&mut self, update: &Update) {
        if !self.is_cold || !self.is_reconciling {
            return;
        }

        let mut elements = Vec::new();
        for (family, desired) in update.desired.iter() {
            let Some(desired) = desired else { continue };
            elements.clear();
            desired.leading_elements(&mut elements);
            self.prepared[family].extend(elements.iter().flat_map(chains));
        }
    }

    /// The repairs that another base ruleset and other options need: other rules in some chains.
    pub(crate) fn rebase(&self, base: &PerFamily<Base>, options: &EffectiveOptions) -> PerFamily<Repairs> {
        PerFamily::from_fn(|family| {
            let mut repairs = Repairs::default();
            if self.options != *options {
                let differs = |pool: &PoolChain| pool.rules(family, &self.options) != pool.rules(family, options);
                repairs.pools = self.refs[family].chains.keys().copied().filter(differs).collect();
            }

            for (old, new) in self.base[family].chains.iter().zip(&base[family].chains) {
                if old.rules != new.rules {
                    repairs.first.push(Operation::FlushChain(new.chain.name.clone()));
                    repairs.rules.extend(new.add_rules());
                }
            }
            repairs
        })
    }

    /// Records that a transaction was committed. `partial`: its changes of the updates of which it contained only a
    /// part. `keeps_plans`: whether the remaining changes of these updates stay as they were computed.
    pub(crate) fn commit(
        &mut self,
        refs: PerFamily<RefCountChanges>,
        updates: Vec<PlannedUpdate>,
        mut partial: BTreeMap<u32, PerFamily<Edits>>,
        keeps_plans: bool,
    ) {
        self.repairs = PerFamily::default();
        self.rebuilds = false;
        self.prepared = PerFamily::default();

        for (index, planned) in (0..).zip(updates) {
            match partial.remove(&index) {
                None => {
                    self.partial.remove(&planned.update.key);
                    self.take_observed(&planned.update);
                    self.service_ports.commit(planned.update);
                }
                Some(edits) => {
                    self.commit_part(&planned.update, &edits);
                    if keeps_plans {
                        self.plan(planned);
                    }
                }
            }
        }

        for (family, changes) in refs {
            self.refs[family].commit(changes);
        }
    }

    /// Records that a part of an update was committed.
    fn commit_part(&mut self, update: &Update, edits: &PerFamily<Edits>) {
        let mut partial = match self.partial.remove(&update.key) {
            Some(partial) => partial,
            None => PerFamily::from_fn(|family| PartialServicePort::of(self, family, update)),
        };
        for family in IpFamily::ALL {
            let desired = update.desired[family].as_deref();
            // The service port may have got VIPs since the last transaction.
            for key in desired.iter().flat_map(|desired| desired.element_keys(family)) {
                partial[family].elements.extend(self.observed[family].get(&key));
            }
            partial[family].group = desired.and_then(Desired::sources).map(|group| group.id);
            partial[family].committed(&edits[family]);
        }
        self.partial.insert(update.key.clone(), partial);

        self.take_observed(update);
        self.service_ports.commit(Update { key: update.key.clone(), desired: PerFamily::default() });
    }

    /// Removes the elements of a service port from `observed`, because `service_ports` or `partial` has them now.
    fn take_observed(&mut self, update: &Update) {
        for (family, desired) in update.desired.iter() {
            for key in desired.iter().flat_map(|desired| desired.element_keys(family)) {
                self.observed[family].take(&key);
            }
        }
    }

    /// Records that the last transaction of a reconcile was committed, which removed these elements.
    pub(crate) fn commit_last(&mut self, removed: &PerFamily<Vec<Element>>, ownership: &VipOwnership) {
        self.remove_observed(removed, ownership);
        let mut is_any_left = false;
        for family in IpFamily::ALL {
            let has_unneeded = self.observed[family].has_unneeded();
            if !has_unneeded {
                self.last_repairs[family].clear();
            }
            is_any_left |= has_unneeded || !self.refs[family].elements.unused().is_empty();
        }
        self.is_reconciling &= is_any_left;
    }

    fn has_unneeded_group(&self, family: IpFamily) -> bool {
        let mut unused = self.refs[family].unused_groups();
        unused.any(|unused| self.needed_groups(family).all(|needed| needed != unused))
    }
}

/// Counts the references of a service port and marks its elements as programmed, if the kernel contains exactly its
/// desired state. `None`: the service port has to be programmed.
fn adopt(
    tables: &mut PerFamily<ObservedTable>,
    programmed: &mut PerFamily<Vec<bool>>,
    mut update: Update,
) -> Option<Update> {
    let mut elements = Vec::new();
    let mut shared = PerFamily::<Vec<Element>>::default();
    for family in IpFamily::ALL {
        let Some(desired) = &mut update.desired[family] else { continue };
        let table = &tables[family];
        if table.elements.is_empty() {
            return None;
        }
        // An earlier key of the pools may be among the VIPs.
        let keys = desired.pool_key().into_iter().chain(desired.element_keys(family));
        desired.keep_slots(&slots(keys, |key| table.of_key(&key).1));

        elements.clear();
        desired.elements(&mut elements);
        desired.shared(&mut shared[family]);
        let observed = desired.element_keys(family).flat_map(|key| table.of_key(&key).1);
        let has_group = desired.sources().is_none_or(|group| table.refs.has_intact_group(group.id));
        let has_shared = shared[family].iter().all(|element| table.refs.elements.contains(element));
        if !has_group || !has_shared || !observed.eq(&elements) {
            return None;
        }
    }

    for family in IpFamily::ALL {
        for element in &shared[family] {
            tables[family].refs.elements.increment(*element);
        }
        for key in update.desired[family].iter().flat_map(|desired| desired.element_keys(family)) {
            let (range, _) = tables[family].of_key(&key);
            programmed[family][range].fill(true);
        }
    }
    Some(update)
}

impl PartialServicePort {
    /// The elements of a service port in a table, and of the VIPs that it should have.
    fn of(current: &AppliedState, family: IpFamily, update: &Update) -> Self {
        let mut elements = Vec::new();
        current.elements(family, update, &mut elements);
        let mut shared = Vec::new();
        current.shared(family, update, &mut shared);
        let group = update.desired[family].as_deref().and_then(Desired::sources).map(|group| group.id);
        Self { elements: elements.into_iter().collect(), shared: shared.into_iter().collect(), group }
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        let mut vips = self.service_ports.vips(key, |desired| desired.vips());
        for (family, partial) in self.partial.get(key).into_iter().flat_map(PerFamily::iter) {
            let of_elements: BTreeSet<Vip> = partial.elements.iter().map(|element| vip_of_key(&element.vip)).collect();
            vips.extend(of_elements.into_iter().map(|vip| (family, vip)));
        }
        vips
    }

    fn has_unneeded(&self) -> bool {
        let has_unneeded = |family| self.observed[family].has_unneeded() || self.has_unneeded_group(family);
        self.is_reconciling || IpFamily::ALL.into_iter().any(has_unneeded)
    }

    /// The last transaction deletes the table of another layout, which serves until then.
    fn is_serving(&self) -> bool {
        let deletes_table = |operation: &Operation| matches!(operation, Operation::DeleteTable(_));
        self.last_repairs.iter().all(|(_, repairs)| !repairs.iter().any(deletes_table))
    }

    /// The VIPs of pools to which aliases of other service ports lead.
    fn used_vips(&self, ownership: &VipOwnership) -> Vec<((IpFamily, Vip), ServicePortKey)> {
        let mut used = Vec::new();
        for (family, observed) in self.observed.iter() {
            let crossing = observed.crossing(ownership);
            used.extend(crossing.map(|(vip, user)| ((family, vip), user.clone())));
        }
        used
    }

    fn is_programmed(&self, key: &ServicePortKey) -> bool {
        self.service_ports.contains(key) && !self.partial.contains_key(key)
    }

    fn invalidate(&mut self, key: &ServicePortKey) {
        self.planned.remove(key);
    }

    fn owners_changed(&mut self, ownership: &VipOwnership, vips: &[(IpFamily, Vip)]) {
        for (family, vip) in vips {
            self.observed[*family].owner_changed(vip, ownership);
        }
    }
}

// === For plans ===

impl AppliedState {
    /// The client buckets that a service port gives up.
    pub(crate) fn forgotten_clients(&self, update: &Update) -> impl Iterator<Item = ForgottenClients> {
        IpFamily::ALL.into_iter().filter_map(|family| {
            let before = self.service_ports.get(&update.key, family)?;
            let pool_key = before.pool_key()?;
            let old = before.affinity()?.buckets.get();
            let after = update.desired[family].as_deref().filter(|desired| desired.pool_key() == Some(pool_key));
            let new = after.and_then(Desired::affinity).map_or(0, |affinity| affinity.buckets.get());
            (new < old).then_some(ForgottenClients { family, pool_key, buckets: new..old })
        })
    }

    /// Leaves the endpoints of an update in the slots that they have.
    pub(crate) fn keep_slots(&self, update: &mut Update) {
        for family in IpFamily::ALL {
            let slots = self.slots(family, update);
            if let Some(desired) = &mut update.desired[family] {
                desired.keep_slots(&slots);
            }
        }
    }

    /// Appends the elements of a service port that are not shared, sorted.
    pub(crate) fn elements(&self, family: IpFamily, update: &Update, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].elements),
            None => {
                if let Some(desired) = self.service_ports.get(&update.key, family) {
                    desired.elements(to);
                }
            }
        }

        let observed = &self.observed[family];
        if observed.is_empty() {
            return;
        }
        let before = to.len();
        for key in update.desired[family].iter().flat_map(|desired| desired.element_keys(family)) {
            to.extend(observed.get(&key));
        }
        if to.len() > before {
            to.sort_unstable();
        }
    }

    /// Appends the shared elements that a service port needs, if known, sorted.
    pub(crate) fn shared(&self, family: IpFamily, update: &Update, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].shared),
            None => {
                if let Some(desired) = self.service_ports.get(&update.key, family) {
                    desired.shared(to);
                }
            }
        }
    }

    /// The groups of source ranges of the service ports that are programmed in part.
    pub(crate) fn needed_groups(&self, family: IpFamily) -> impl Iterator<Item = SourceGroupId> {
        self.partial.values().filter_map(move |partial| partial[family].group)
    }

    /// The slots of the endpoints of a service port, if known.
    fn slots(&self, family: IpFamily, update: &Update) -> Slots {
        if let Some(desired) = self.service_ports.get(&update.key, family) {
            return desired.slots();
        }
        let Some(desired) = &update.desired[family] else { return Slots::default() };
        // An earlier key of the pools may be among the VIPs.
        let keys = desired.pool_key().into_iter().chain(desired.element_keys(family));
        match self.partial.get(&update.key) {
            Some(partial) => slots(keys, |key| partial[family].of_key(key)),
            None => slots(keys, |key| self.observed[family].get(&key)),
        }
    }
}

//! What the kernel contains: enough to know it without reading the kernel again. The elements of service ports that are
//! programmed are not kept, they follow.

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

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    service_ports: AppliedServicePorts<Box<Desired>>,
    /// The service ports whose last change is programmed in part.
    partial: BTreeMap<ServicePortKey, PerFamily<PartialServicePort>>,
    /// What was computed for service ports that are not programmed yet.
    pub(crate) planned: BTreeMap<ServicePortKey, PlannedUpdate>,
    /// What was read and belongs to neither of these: not programmed yet, rejected, or unneeded.
    observed: PerFamily<ObservedElements>,
    /// The reference counts of shared objects.
    pub(crate) refs: PerFamily<RefCounts>,
    /// The repairs of the base ruleset for the first transaction.
    pub(crate) repairs: PerFamily<Repairs>,
    /// Those for the last transaction of a reconcile.
    last_repairs: PerFamily<Vec<Operation>>,
    /// Chains for the next transaction, while a reconcile fills empty maps.
    pub(crate) prepared: PerFamily<BTreeSet<PoolChain>>,
    is_cold: bool,
    /// Whether the next transaction deletes our table and creates it again, with all that it contains.
    pub(crate) rebuilds: bool,
    /// Whether references of shared elements are not counted for all service ports.
    pub(crate) is_reconciling: bool,
    pub(crate) options: EffectiveOptions,
    pub(crate) base: PerFamily<Base>,
    pub(crate) affine_ports: AffinePorts,
}

impl AppliedState {
    /// What was read from the kernel. `updates`: what the service ports should have, in the order of their keys.
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
        let updates = updates.into_iter().filter_map(|update| adopt(&mut tables, &mut programmed, update));
        let service_ports = updates.collect();
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
            is_cold,
            rebuilds: false,
            observed,
            refs,
            repairs,
            last_repairs,
            prepared: PerFamily::default(),
            is_reconciling: true,
            options,
            base,
            affine_ports,
        }
    }

    /// Keeps what is planned for a service port until it is programmed, or changes.
    pub(crate) fn plan(&mut self, planned: PlannedUpdate) {
        self.planned.insert(planned.update.key.clone(), planned);
    }

    /// The repairs of the last transaction of a reconcile: at most `limit` of the elements that belong to no service
    /// port, and, with the last of them, those of the base ruleset.
    pub(crate) fn last_repairs(
        &self,
        family: IpFamily,
        change: &Change<'_>,
        limit: usize,
    ) -> (Vec<Element>, &[Operation]) {
        let is_programmed = |key: &_| change.contains(key);
        let (unowned, is_all) = self.observed[family].unneeded(change.ownership, is_programmed, limit);
        // Before, elements may refer to foreign chains.
        (unowned, if is_all { &self.last_repairs[family][..] } else { &[] })
    }

    /// At most `limit` of the elements of VIPs without a service port that lead to a pool of one. They are removed
    /// before that pool changes.
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
        for family in IpFamily::ALL {
            elements.clear();
            update.desired[family].iter().for_each(|desired| desired.leading_elements(&mut elements));
            self.prepared[family].extend(elements.iter().flat_map(chains));
        }
    }

    /// What has to be written for another base ruleset and other options: other rules in some chains.
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
    /// part. `keeps_plans`: whether the rest of these changes stays as it was computed.
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
            let update = &planned.update;
            let edits = partial.remove(&index);
            if let Some(edits) = &edits {
                let mut partial = match self.partial.remove(&update.key) {
                    Some(partial) => partial,
                    None => PerFamily::from_fn(|family| PartialServicePort::of(self, family, update)),
                };
                for family in IpFamily::ALL {
                    // It may have got VIPs since the last transaction.
                    let keys = update.desired[family].iter().flat_map(|desired| desired.element_keys(family));
                    keys.for_each(|key| partial[family].elements.extend(self.observed[family].get(&key)));
                    let group = update.desired[family].as_deref().and_then(Desired::sources);
                    partial[family].group = group.map(|group| group.id);
                    partial[family].committed(&edits[family]);
                }
                self.partial.insert(update.key.clone(), partial);
            } else {
                self.partial.remove(&update.key);
            }
            for family in IpFamily::ALL {
                let keys = update.desired[family].iter().flat_map(|desired| desired.element_keys(family));
                keys.for_each(|key| drop(self.observed[family].take(&key)));
            }
            match edits {
                None => self.service_ports.commit(planned.update),
                Some(_) => {
                    self.service_ports.commit(Update { key: update.key.clone(), desired: PerFamily::default() });
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

    fn has_unneeded_group(&self, family: IpFamily) -> bool {
        let mut unused = self.refs[family].unused_groups();
        unused.any(|unused| self.needed_groups(family).all(|needed| needed != unused))
    }

    /// Records that the last transaction of a reconcile was committed, which removed these elements.
    pub(crate) fn commit_last(&mut self, removed: &PerFamily<Vec<Element>>, ownership: &VipOwnership) {
        self.remove_observed(removed, ownership);
        for family in IpFamily::ALL {
            if !self.observed[family].has_unneeded() {
                self.last_repairs[family].clear();
            }
        }
        let remain = |family| self.observed[family].has_unneeded() || !self.refs[family].elements.unused().is_empty();
        self.is_reconciling = self.is_reconciling && IpFamily::ALL.into_iter().any(remain);
    }
}

/// Counts the references of a service port if the kernel contains everything that it should have, and marks its
/// elements. `None`: it has to be programmed.
fn adopt(
    tables: &mut PerFamily<ObservedTable>,
    programmed: &mut PerFamily<Vec<bool>>,
    mut update: Update,
) -> Option<Update> {
    let (mut elements, mut shared) = (Vec::new(), PerFamily::<Vec<Element>>::default());
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
        let observed = desired.element_keys(family).flat_map(|key| table.of_key(&key).1);
        desired.shared(&mut shared[family]);
        let has_group = desired.sources().is_none_or(|group| table.refs.has_intact_group(group.id));
        let has_shared = shared[family].iter().all(|element| table.refs.elements.contains(element));
        if !has_group || !has_shared || !observed.eq(&elements) {
            return None;
        }
    }
    for family in IpFamily::ALL {
        shared[family].iter().for_each(|element| tables[family].refs.elements.increment(*element));
        for key in update.desired[family].iter().flat_map(|desired| desired.element_keys(family)) {
            let (range, _) = tables[family].of_key(&key);
            programmed[family][range].fill(true);
        }
    }
    Some(update)
}

impl PartialServicePort {
    /// What a table contains of a service port, and of the VIPs that it should have.
    fn of(current: &AppliedState, family: IpFamily, update: &Update) -> Self {
        let (mut elements, mut shared) = (Vec::new(), Vec::new());
        current.elements(family, update, &mut elements);
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

    /// Those of pools to which aliases of other service ports lead.
    fn used_vips(&self, ownership: &VipOwnership) -> Vec<((IpFamily, Vip), ServicePortKey)> {
        let of_family = |(family, observed): (IpFamily, &'_ ObservedElements)| -> Vec<_> {
            let crossing = observed.crossing(ownership);
            crossing.map(|(vip, user)| ((family, vip), user.clone())).collect()
        };
        self.observed.iter().flat_map(of_family).collect()
    }

    fn is_programmed(&self, key: &ServicePortKey) -> bool {
        self.service_ports.contains(key) && !self.partial.contains_key(key)
    }

    fn invalidate(&mut self, key: &ServicePortKey) {
        self.planned.remove(key);
    }

    fn owners_changed(&mut self, ownership: &VipOwnership, vips: &[(IpFamily, Vip)]) {
        vips.iter().for_each(|(family, vip)| self.observed[*family].owner_changed(vip, ownership));
    }
}

/// What plans start from.
impl AppliedState {
    /// The client buckets that a service port gives up.
    pub(crate) fn forgotten_clients(&self, update: &Update) -> impl Iterator<Item = ForgottenClients> {
        IpFamily::ALL.into_iter().filter_map(|family| {
            let buckets = |desired: &Desired| desired.affinity().map(|affinity| affinity.buckets.get());
            let before = self.service_ports.get(&update.key, family)?;
            let pool_key = before.pool_key()?;
            let after = update.desired[family].as_deref().filter(|desired| desired.pool_key() == Some(pool_key));
            let buckets = after.and_then(buckets).unwrap_or_default()..buckets(before)?;
            (!buckets.is_empty()).then_some(ForgottenClients { family, pool_key, buckets })
        })
    }

    /// Leaves the endpoints of an update in the slots that they have.
    pub(crate) fn keep_slots(&self, update: &mut Update) {
        for family in IpFamily::ALL {
            let slots = self.slots(family, update);
            update.desired[family].iter_mut().for_each(|desired| desired.keep_slots(&slots));
        }
    }

    /// Appends the elements of a service port that are not shared, sorted.
    pub(crate) fn elements(&self, family: IpFamily, update: &Update, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].elements),
            None => {
                self.service_ports.get(&update.key, family).inspect(|desired| desired.elements(to));
            }
        }
        let observed = &self.observed[family];
        if observed.is_empty() {
            return;
        }
        let before = to.len();
        let keys = update.desired[family].iter().flat_map(|desired| desired.element_keys(family));
        keys.for_each(|key| to.extend(observed.get(&key)));
        if to.len() > before {
            to.sort_unstable();
        }
    }

    /// Appends the shared elements that a service port needs, if known, sorted.
    pub(crate) fn shared(&self, family: IpFamily, update: &Update, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].shared),
            None => {
                self.service_ports.get(&update.key, family).inspect(|desired| desired.shared(to));
            }
        }
    }

    /// The groups of source ranges that service ports need which are programmed in part.
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

//! What the kernel contains: enough to know it without reading the kernel again. The elements of service ports that are
//! programmed are not kept, they follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use backend::{
    dataplane::{EffectiveOptions, Vip, VipOwnership},
    driver::{Applied, AppliedServicePorts, Change, ServicePortUpdate},
};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired, PoolChain, Slots, SourceGroupId, vip_of_key},
    element::{Element, ElementData, Verdict},
    observed::ObservedTable,
    plan::{CurrentState, Operation, PartialServicePort, RefCountChanges, RefCounts, Repairs, chains, removal_order},
};

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    service_ports: AppliedServicePorts<Desired>,
    /// The service ports whose last change is programmed in part.
    partial: BTreeMap<ServicePortKey, PerFamily<PartialServicePort>>,
    /// What was read and belongs to neither of these: not programmed yet, rejected, or unneeded.
    observed: PerFamily<ObservedTable>,
    /// The repairs of the base ruleset for the first transaction, and for the last one.
    repairs: (PerFamily<Repairs>, PerFamily<Repairs>),
    /// Chains for the next transaction, while a reconcile fills empty maps.
    prepared: PerFamily<BTreeSet<PoolChain>>,
    is_cold: bool,
    /// Whether references of shared elements are not counted for all service ports.
    is_reconciling: bool,
    pub(crate) options: EffectiveOptions,
    pub(crate) node_addresses: Vec<IpAddr>,
    base: PerFamily<Base>,
}

const FOREIGN: ElementData = ElementData::Verdict(Verdict::Foreign);

impl AppliedState {
    /// What was read from the kernel.
    pub(crate) fn new(
        base: PerFamily<Base>,
        options: EffectiveOptions,
        node_addresses: Vec<IpAddr>,
        (observed, mut repairs): (PerFamily<ObservedTable>, PerFamily<Repairs>),
    ) -> Self {
        let later = PerFamily::from_fn(|family| repairs[family].split_off_later());
        let is_cold = observed.iter().all(|(_, table)| table.elements.is_empty());
        Self {
            service_ports: AppliedServicePorts::default(),
            partial: BTreeMap::new(),
            is_cold,
            observed,
            repairs: (repairs, later),
            prepared: PerFamily::default(),
            is_reconciling: true,
            options,
            node_addresses,
            base,
        }
    }

    /// Whether a table is replaced as a whole. The old one has to stay until the new one is complete, and nf_tables
    /// cannot give a table the name of another one, so this is one transaction.
    pub(crate) fn rebuilds(&self) -> bool {
        self.repairs.0.iter().any(|(_, repairs)| repairs.first.contains(&Operation::DeleteTable))
    }

    /// The repairs that the next transaction contains, and the chains that later ones need.
    pub(crate) fn pending(&self) -> (PerFamily<Repairs>, PerFamily<BTreeSet<PoolChain>>) {
        (self.repairs.0.clone(), self.prepared.clone())
    }

    /// The repairs of the last transaction of a reconcile: at most `limit` of the elements that belong to no service
    /// port.
    pub(crate) fn last_repairs(&self, change: &Change<'_>, mut limit: usize) -> PerFamily<Repairs> {
        let mut repairs = PerFamily::<Repairs>::default();
        for family in IpFamily::ALL {
            let mut unowned: Vec<Element> =
                self.unowned(family, change.ownership, |key| change.contains(key)).copied().collect();
            removal_order(&mut unowned);
            if unowned.len() <= limit {
                // Before, elements may refer to foreign chains.
                repairs[family] = self.repairs.1[family].clone();
            }
            unowned.truncate(limit);
            limit -= unowned.len();
            repairs[family].unowned = unowned;
        }
        repairs
    }

    /// The elements that belong to no service port, and those that another version of Fairlead or another process has
    /// left at a VIP whose service port the kernel rejects.
    fn unowned(
        &self,
        family: IpFamily,
        ownership: &VipOwnership,
        is_programmed: impl Fn(&ServicePortKey) -> bool,
    ) -> impl Iterator<Item = &Element> {
        self.observed[family].elements.iter().flat_map(move |(key, elements)| {
            let owner = ownership.owner(family, &vip_of_key(key));
            let is_rejected = owner.is_some_and(|owner| !is_programmed(owner));
            elements.iter().filter(move |element| owner.is_none() || is_rejected && element.data == FOREIGN)
        })
    }

    /// At most `limit` of the elements of VIPs without a service port that lead to a pool of one. They are removed
    /// before that pool changes.
    pub(crate) fn stale_aliases(&self, ownership: &VipOwnership, mut limit: usize) -> PerFamily<Vec<Element>> {
        PerFamily::from_fn(|family| {
            let owner = |key: &Vip| ownership.owner(family, &vip_of_key(key));
            let is_stale = |element: &Element| match &element.data {
                ElementData::PoolKey(key) => owner(&element.vip).is_none() && owner(key).is_some(),
                _ => false,
            };
            let vips = self.observed[family].elements.values().filter(|elements| elements.iter().any(is_stale));
            let mut stale: Vec<Element> = vips.flatten().copied().collect();
            removal_order(&mut stale);
            stale.truncate(limit);
            limit -= stale.len();
            stale
        })
    }

    /// Records that observed elements were removed.
    pub(crate) fn remove_observed(&mut self, removed: &PerFamily<Vec<Element>>) {
        for (family, removed) in removed.iter().filter(|(_, removed)| !removed.is_empty()) {
            let removed: BTreeSet<&Element> = removed.iter().collect();
            self.observed[family].elements.retain(|_, elements| {
                elements.retain(|element| !removed.contains(element));
                !elements.is_empty()
            });
        }
    }

    /// Records the chains that a service port needs, if they are to be added before the maps are full.
    pub(crate) fn prepare(&mut self, update: &ServicePortUpdate<Desired>) {
        if !self.is_cold || !self.is_reconciling {
            return;
        }
        let mut elements = Vec::new();
        for family in IpFamily::ALL {
            elements.clear();
            update.desired[family].iter().for_each(|desired| desired.elements(&mut elements));
            self.prepared[family].extend(elements.iter().flat_map(chains));
        }
    }

    /// Whether only the references of service ports that are programmed completely count.
    pub(crate) fn is_complete(&self) -> bool {
        !self.is_reconciling
    }

    /// What has to be written for another base ruleset and other options: other rules in some chains.
    pub(crate) fn rebase(&self, base: &PerFamily<Base>, options: &EffectiveOptions) -> PerFamily<Repairs> {
        PerFamily::from_fn(|family| self.base_repairs(family, &base[family], options))
    }

    /// Records that this was written.
    pub(crate) fn rebased(&mut self, base: PerFamily<Base>, options: EffectiveOptions, addresses: Vec<IpAddr>) {
        (self.base, self.options, self.node_addresses) = (base, options, addresses);
    }

    fn base_repairs(&self, family: IpFamily, base: &Base, options: &EffectiveOptions) -> Repairs {
        let mut repairs = Repairs::default();
        if self.options != *options {
            let differs = |pool: &PoolChain| pool.rules(family, &self.options) != pool.rules(family, options);
            repairs.pools = self.observed[family].refs.chains().filter(differs).collect();
        }
        for (old, new) in self.base[family].chains.iter().zip(&base.chains) {
            if old.rules != new.rules {
                repairs.first.push(Operation::FlushChain(new.chain.name.clone()));
                repairs.add_rules(new);
            }
        }
        repairs
    }

    /// Whether the service port has session affinity; `None`: it is not programmed completely.
    pub(crate) fn is_affine(&self, key: &ServicePortKey) -> Option<bool> {
        let mut desired = IpFamily::ALL.into_iter().filter_map(|family| self.service_ports.get(key, family));
        desired.next().map(Desired::is_affine)
    }

    /// Records that a transaction was committed. `partial`: the updates of which it contained only a part.
    pub(crate) fn commit(
        &mut self,
        refs: PerFamily<RefCountChanges>,
        updates: Vec<ServicePortUpdate<Desired>>,
        mut partial: BTreeMap<u32, PerFamily<PartialServicePort>>,
    ) {
        self.repairs.0 = PerFamily::default();
        self.prepared = PerFamily::default();
        let PerFamily { v4, v6 } = refs;
        self.observed.v4.refs.commit(v4);
        self.observed.v6.refs.commit(v6);
        for (index, mut update) in (0..).zip(updates) {
            for family in IpFamily::ALL {
                for key in update.desired[family].iter().flat_map(|desired| desired.element_keys(family)) {
                    self.observed[family].elements.remove(&key);
                }
            }
            self.partial.remove(&update.key);
            if let Some(partial) = partial.remove(&index) {
                self.partial.insert(update.key.clone(), partial);
                update.desired = PerFamily::default();
            }
            self.service_ports.commit(update);
        }
    }

    /// Whether the kernel may contain objects that no service port needs.
    pub(crate) fn has_unneeded(&self, ownership: &VipOwnership) -> bool {
        let has_unneeded =
            |family| self.unowned(family, ownership, |_| false).next().is_some() || self.has_unneeded_group(family);
        self.is_reconciling || IpFamily::ALL.into_iter().any(has_unneeded)
    }

    fn has_unneeded_group(&self, family: IpFamily) -> bool {
        let mut unused = self.observed[family].refs.unused_groups();
        unused.any(|unused| self.needed_groups(family).all(|needed| needed != unused))
    }

    /// Records that these repairs were committed as the last ones.
    pub(crate) fn commit_last(&mut self, repairs: PerFamily<Repairs>, ownership: &VipOwnership) {
        let removed = PerFamily::from_fn(|family| repairs[family].unowned.clone());
        self.remove_observed(&removed);
        for family in IpFamily::ALL {
            if self.unowned(family, ownership, |_| false).next().is_none() {
                self.repairs.1[family] = Repairs::default();
            }
        }
        let remain = |family| {
            self.unowned(family, ownership, |_| false).next().is_some()
                || self.observed[family].refs.unused_elements() > 0
        };
        self.is_reconciling = self.is_reconciling && IpFamily::ALL.into_iter().any(remain);
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        let mut vips = self.service_ports.vips(key, Desired::vips);
        for (family, partial) in self.partial.get(key).into_iter().flat_map(PerFamily::iter) {
            let of_elements: BTreeSet<Vip> = partial.elements.iter().map(|element| vip_of_key(&element.vip)).collect();
            vips.extend(of_elements.into_iter().map(|vip| (family, vip)));
        }
        vips
    }

    /// Those of pools to which aliases of other service ports lead.
    fn used_vips(&self, ownership: &VipOwnership) -> Vec<((IpFamily, Vip), ServicePortKey)> {
        let mut used = Vec::new();
        for family in IpFamily::ALL {
            let owner = |key: &Vip| ownership.owner(family, &vip_of_key(key));
            for element in self.observed[family].elements.values().flatten() {
                if let ElementData::PoolKey(key) = &element.data
                    && let Some(user) = owner(&element.vip)
                    && owner(key).is_some_and(|owner| owner != user)
                {
                    used.push(((family, vip_of_key(key)), user.clone()));
                }
            }
        }
        used
    }
}

impl CurrentState for AppliedState {
    fn elements(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].elements),
            None => {
                self.service_ports.get(&update.key, family).inspect(|desired| desired.elements(to));
            }
        }
        let observed = &self.observed[family].elements;
        if observed.is_empty() {
            return;
        }
        let before = to.len();
        let keys = update.desired[family].iter().flat_map(|desired| desired.element_keys(family));
        keys.filter_map(|key| observed.get(&key)).for_each(|elements| to.extend(elements));
        if to.len() > before {
            to.sort_unstable();
        }
    }

    fn shared(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>) {
        match self.partial.get(&update.key) {
            Some(partial) => to.extend(&partial[family].shared),
            None => {
                self.service_ports.get(&update.key, family).inspect(|desired| desired.shared(to));
            }
        }
    }

    fn refs(&self, family: IpFamily) -> &RefCounts {
        &self.observed[family].refs
    }

    fn needed_groups(&self, family: IpFamily) -> impl Iterator<Item = SourceGroupId> {
        self.partial.values().filter_map(move |partial| partial[family].group)
    }

    fn slots(&self, family: IpFamily, update: &ServicePortUpdate<Desired>) -> Slots {
        if let Some(desired) = self.service_ports.get(&update.key, family) {
            return desired.slots();
        }
        let Some(desired) = &update.desired[family] else { return Slots::default() };
        // An earlier key of the pools may be among the VIPs.
        let keys = desired.pool_key().into_iter().chain(desired.element_keys(family));
        let Some(partial) = self.partial.get(&update.key) else { return self.observed[family].slots(keys) };
        let mut table = ObservedTable::default();
        for element in &partial[family].elements {
            table.elements.entry(element.vip).or_default().push(*element);
        }
        table.slots(keys)
    }
}

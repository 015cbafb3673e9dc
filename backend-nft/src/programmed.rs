//! What has been programmed: enough to know what the kernel holds without asking it. Elements are not kept, they follow.

use std::{collections::BTreeMap, net::IpAddr};

use backend::dataplane::{EffectiveOptions, Vip};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired, Orders, PoolChain},
    element::Element,
    plan::{Before, Delta, Edit, Operation, Refs, Repairs},
};

/// What the kernel holds because of us.
#[derive(Clone, Debug)]
pub(crate) struct Programmed {
    pub(crate) services: BTreeMap<ServicePortKey, PerFamily<Option<Desired>>>,
    pub(crate) base: PerFamily<Base>,
    pub(crate) effective: EffectiveOptions,
    /// The node's own addresses.
    pub(crate) node: Vec<IpAddr>,
    pub(crate) refs: PerFamily<Refs>,
}

impl Programmed {
    fn get(&self, key: &ServicePortKey, family: IpFamily) -> Option<&Desired> {
        self.services.get(key)?[family].as_ref()
    }

    /// The places of a service port's endpoints.
    pub(crate) fn orders(&self, key: &ServicePortKey, family: IpFamily) -> Orders {
        self.get(key, family).map(Desired::orders).unwrap_or_default()
    }

    /// All that leads to a service port.
    pub(crate) fn fronts(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        let of =
            |family| self.get(key, family).into_iter().flat_map(Desired::fronts).map(move |front| (family, *front));
        IpFamily::ALL.into_iter().flat_map(of).collect()
    }

    /// What leads from the present fixed part, and from pool chains for the present traffic, to these: other rules in some chains.
    pub(crate) fn rebase(&self, family: IpFamily, base: &Base, effective: &EffectiveOptions) -> Repairs {
        let mut repairs = Repairs::default();
        if self.effective != *effective {
            let differs = |pool: &PoolChain| pool.rules(family, &self.effective) != pool.rules(family, effective);
            repairs.pools = self.refs[family].chains().filter(differs).collect();
        }
        for (old, new) in self.base[family].chains.iter().zip(&base.chains) {
            if old.rules != new.rules {
                let name = &new.chain.name;
                repairs.first.push(Operation::FlushChain(name.clone()));
                let rules = new.rules.iter().map(|rule| Operation::AddRule(name.clone(), rule.clone()));
                repairs.rules.extend(rules);
            }
        }
        repairs
    }

    /// A transaction with these counts is in force.
    pub(crate) fn settle_refs(&mut self, deltas: PerFamily<Delta>) {
        let PerFamily { v4, v6 } = deltas;
        self.refs.v4.settle(v4);
        self.refs.v6.settle(v6);
    }

    /// The edit is in force.
    pub(crate) fn settle(&mut self, edit: Edit) {
        let Edit { key, desired } = edit;
        if desired.v4.is_none() && desired.v6.is_none() {
            self.services.remove(&key);
        } else {
            self.services.insert(key, desired);
        }
    }
}

impl Before for Programmed {
    fn elements(&self, family: IpFamily, edit: &Edit, to: &mut Vec<Element>) {
        self.get(&edit.key, family).inspect(|desired| desired.elements(to));
    }

    fn shared(&self, family: IpFamily, edit: &Edit, to: &mut Vec<Element>) {
        self.get(&edit.key, family).inspect(|desired| desired.shared(to));
    }

    fn refs(&self, family: IpFamily) -> &Refs {
        &self.refs[family]
    }
}

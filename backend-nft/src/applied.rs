//! What was applied last: enough to know what the kernel contains without reading it. Elements are not kept, they
//! follow.

use std::net::IpAddr;

use backend::{
    dataplane::{EffectiveOptions, Vip},
    driver::{Applied, AppliedServicePorts, Rejections, ServicePortUpdate},
};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired, PoolChain, Slots},
    element::Element,
    plan::{CurrentState, Operation, RefCountChanges, RefCounts, Repairs},
};

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    pub(crate) service_ports: AppliedServicePorts<Desired>,
    pub(crate) rejections: Rejections,
    pub(crate) options: EffectiveOptions,
    pub(crate) node_addresses: Vec<IpAddr>,
    base: PerFamily<Base>,
    refs: PerFamily<RefCounts>,
}

impl AppliedState {
    /// Without service ports.
    pub(crate) fn new(
        base: PerFamily<Base>,
        options: EffectiveOptions,
        node_addresses: Vec<IpAddr>,
        refs: PerFamily<RefCounts>,
    ) -> Self {
        let (service_ports, rejections) = (AppliedServicePorts::default(), Rejections::default());
        Self { service_ports, rejections, options, node_addresses, base, refs }
    }

    /// Replaces the base ruleset and the options. Returns what has to be written for it: other rules in some chains.
    pub(crate) fn rebase(
        &mut self,
        base: PerFamily<Base>,
        options: EffectiveOptions,
        node_addresses: Vec<IpAddr>,
    ) -> PerFamily<Repairs> {
        let repairs = PerFamily::from_fn(|family| self.repairs(family, &base[family], &options));
        (self.base, self.options, self.node_addresses) = (base, options, node_addresses);
        repairs
    }

    fn repairs(&self, family: IpFamily, base: &Base, options: &EffectiveOptions) -> Repairs {
        let mut repairs = Repairs::default();
        if self.options != *options {
            let differs = |pool: &PoolChain| pool.rules(family, &self.options) != pool.rules(family, options);
            repairs.pools = self.refs[family].chains().filter(differs).collect();
        }
        for (old, new) in self.base[family].chains.iter().zip(&base.chains) {
            if old.rules != new.rules {
                repairs.first.push(Operation::FlushChain(new.chain.name.clone()));
                repairs.add_rules(new);
            }
        }
        repairs
    }

    /// Whether the service port has session affinity.
    pub(crate) fn is_affine(&self, key: &ServicePortKey) -> bool {
        let of_family = |family| self.service_ports.get(key, family).is_some_and(Desired::is_affine);
        IpFamily::ALL.into_iter().any(of_family)
    }

    /// Records that a transaction was committed.
    pub(crate) fn commit(&mut self, refs: PerFamily<RefCountChanges>, updates: Vec<ServicePortUpdate<Desired>>) {
        let PerFamily { v4, v6 } = refs;
        self.refs.v4.commit(v4);
        self.refs.v6.commit(v6);
        updates.into_iter().for_each(|update| self.service_ports.commit(update));
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.service_ports.vips(key, Desired::vips)
    }

    fn rejections(&self) -> &Rejections {
        &self.rejections
    }
}

impl CurrentState for AppliedState {
    fn elements(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>) {
        self.service_ports.get(&update.key, family).inspect(|desired| desired.elements(to));
    }

    fn shared(&self, family: IpFamily, update: &ServicePortUpdate<Desired>, to: &mut Vec<Element>) {
        self.service_ports.get(&update.key, family).inspect(|desired| desired.shared(to));
    }

    fn refs(&self, family: IpFamily) -> &RefCounts {
        &self.refs[family]
    }

    fn slots(&self, family: IpFamily, update: &ServicePortUpdate<Desired>) -> Slots {
        self.service_ports.get(&update.key, family).map(Desired::slots).unwrap_or_default()
    }
}

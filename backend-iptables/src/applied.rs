//! What was applied last: enough to know what the kernel contains without reading it. Of each chain only a hash of its
//! rules is kept.

use std::{collections::BTreeMap, net::IpAddr};

use backend::{
    dataplane::{EffectiveOptions, Vip},
    driver::{Applied, AppliedServicePorts, ServicePortUpdate},
};
use iptables::{Hook, Table};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired},
    plan::UserChanges,
    table::{ContentHash, Fingerprint, SharedChain},
};

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    pub(crate) service_ports: AppliedServicePorts<Installed>,
    /// The service ports that were programmed since the kernel was read, while others may be in it that are not known;
    /// `None`: only these are in it.
    pub(crate) reconciled: Option<BTreeMap<ServicePortKey, ServicePortUpdate<Desired>>>,
    /// The families for which iptables is installed.
    pub(crate) families: Vec<IpFamily>,
    /// Whether it contained nothing of ours.
    pub(crate) is_new: bool,
    pub(crate) base: PerFamily<Base>,
    pub(crate) options: EffectiveOptions,
    pub(crate) node_addresses: Vec<IpAddr>,
    /// How many service ports have a line that several may have.
    users: PerFamily<BTreeMap<(SharedChain, String), u32>>,
}

/// What one service port has in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) vips: Box<[Vip]>,
    pub(crate) chains: Box<[(Table, Box<str>, ContentHash)]>,
    pub(crate) lines: Box<[(SharedChain, Box<str>)]>,
}

// === impl AppliedState ===

impl AppliedState {
    /// A kernel that was not changed since it was read.
    pub(crate) fn new(
        base: PerFamily<Base>,
        options: EffectiveOptions,
        node_addresses: Vec<IpAddr>,
        families: Vec<IpFamily>,
    ) -> Self {
        let (service_ports, users) = (AppliedServicePorts::default(), PerFamily::default());
        Self {
            service_ports,
            reconciled: Some(BTreeMap::new()),
            families,
            is_new: false,
            base,
            options,
            node_addresses,
            users,
        }
    }

    /// Everything else of ours was removed: from now on updates need not read the kernel.
    pub(crate) fn complete(&mut self) {
        for (_, update) in self.reconciled.take().unwrap_or_default() {
            self.add(update);
        }
    }

    /// How many service ports have a line.
    pub(crate) fn users(&self, family: IpFamily, shared: SharedChain, line: &str) -> u32 {
        self.users[family].get(&(shared, line.to_owned())).copied().unwrap_or_default()
    }

    /// Records how many more, or fewer, service ports have lines.
    pub(crate) fn commit_users(&mut self, family: IpFamily, changes: UserChanges) {
        let users = &mut self.users[family];
        for (line, change) in changes {
            match users.get(&line).copied().unwrap_or_default().saturating_add_signed(change) {
                0 => users.remove(&line),
                count => users.insert(line, count),
            };
        }
    }

    /// Records a service port that was not there before.
    fn add(&mut self, update: ServicePortUpdate<Desired>) {
        for family in IpFamily::ALL {
            let lines = update.desired[family].iter().flat_map(|desired| &desired.lines);
            for (shared, line) in lines.filter(|(shared, _)| shared.allows_duplicates()) {
                *self.users[family].entry((*shared, line.clone())).or_default() += 1;
            }
        }
        self.service_ports.commit(update);
    }

    /// A hash of everything of ours in a family.
    pub(crate) fn fingerprint(&self, family: IpFamily, hooks: &[Hook]) -> Fingerprint {
        let base = &self.base[family];
        let fixed_rules = |shared: SharedChain| shared.hashes(base.fixed_rules(shared).lines());
        let installed = || self.service_ports.of_family(family);
        let lines = installed().flat_map(|installed| &installed.lines).map(|(shared, line)| (shared, &**line));
        let lines = lines.filter(|(shared, _)| !shared.allows_duplicates());
        let duplicates = self.users[family].keys().map(|(shared, line)| (shared, line.as_str()));
        let chains = base.chains.iter().map(ContentHash::of_chain);
        chains
            .chain(SharedChain::ALL.into_iter().flat_map(fixed_rules))
            .chain(installed().flat_map(|installed| installed.chains.iter().map(|(.., hash)| *hash)))
            .chain(lines.chain(duplicates).map(|(shared, line)| shared.rule_hash(line)))
            .chain(hooks.iter().map(ContentHash::of_hook))
            .collect()
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.service_ports.vips(key, |installed| &installed.vips)
    }
}

impl From<Desired> for Installed {
    fn from(desired: Desired) -> Self {
        let Desired { vips, chains, lines } = desired;
        Self {
            vips: vips.into(),
            chains: chains.iter().map(|it| (it.table, it.name.as_str().into(), ContentHash::of_chain(it))).collect(),
            lines: lines.into_iter().map(|(shared, line)| (shared, line.into())).collect(),
        }
    }
}

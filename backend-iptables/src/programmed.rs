//! What has been programmed: enough to know what the kernel holds without asking it. Of a chain only what stands for its rules is kept.

use std::{collections::BTreeMap, net::IpAddr};

use backend::dataplane::{EffectiveOptions, Vip};
use iptables::{Hook, Table};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired},
    plan::{Deltas, Edit},
    table::{Dispatch, Fingerprint, Mark},
};

/// What the kernel holds because of us.
#[derive(Clone, Debug)]
pub(crate) struct Programmed {
    pub(crate) services: BTreeMap<ServicePortKey, PerFamily<Option<Installed>>>,
    pub(crate) base: PerFamily<Base>,
    pub(crate) effective: EffectiveOptions,
    /// The node's own addresses.
    pub(crate) node: Vec<IpAddr>,
    /// How many service ports have a line that several may have.
    users: PerFamily<BTreeMap<(Dispatch, String), u32>>,
}

/// What is there of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) fronts: Box<[Vip]>,
    pub(crate) chains: Box<[(Table, Box<str>, Mark)]>,
    pub(crate) lines: Box<[(Dispatch, Box<str>)]>,
}

// === impl Programmed ===

impl Programmed {
    /// Nothing but the fixed part.
    pub(crate) fn new(base: PerFamily<Base>, effective: EffectiveOptions, node: Vec<IpAddr>) -> Self {
        Self { services: BTreeMap::new(), base, effective, node, users: PerFamily::default() }
    }

    pub(crate) fn installed(&self, key: &ServicePortKey, family: IpFamily) -> Option<&Installed> {
        self.services.get(key)?[family].as_ref()
    }

    /// All that leads to a service port.
    pub(crate) fn fronts(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        let of = |family| {
            let installed = self.installed(key, family).into_iter();
            installed.flat_map(|installed| &installed.fronts).map(move |front| (family, *front))
        };
        IpFamily::ALL.into_iter().flat_map(of).collect()
    }

    /// How many service ports have a line.
    pub(crate) fn users(&self, family: IpFamily, dispatch: Dispatch, line: &str) -> u32 {
        self.users[family].get(&(dispatch, line.to_owned())).copied().unwrap_or_default()
    }

    /// So many more have those lines.
    pub(crate) fn settle_users(&mut self, family: IpFamily, deltas: Deltas) {
        let users = &mut self.users[family];
        for (line, delta) in deltas {
            match users.get(&line).copied().unwrap_or_default().saturating_add_signed(delta) {
                0 => users.remove(&line),
                count => users.insert(line, count),
            };
        }
    }

    /// What was found, or put, in force.
    pub(crate) fn adopt(&mut self, edit: Edit) {
        for family in IpFamily::ALL {
            let lines = edit.desired[family].iter().flat_map(|desired| &desired.lines);
            for (dispatch, line) in lines.filter(|(dispatch, _)| dispatch.is_shared()) {
                *self.users[family].entry((*dispatch, line.clone())).or_default() += 1;
            }
        }
        self.settle(edit);
    }

    /// The edit is in force; [`Self::settle_users`] comes with it.
    pub(crate) fn settle(&mut self, edit: Edit) {
        let Edit { key, desired } = edit;
        let PerFamily { v4, v6 } = desired;
        if v4.is_none() && v6.is_none() {
            self.services.remove(&key);
        } else {
            let installed = PerFamily { v4: v4.map(Installed::from), v6: v6.map(Installed::from) };
            self.services.insert(key, installed);
        }
    }

    /// What stands for everything of ours in a family.
    pub(crate) fn fingerprint(&self, family: IpFamily, hooks: &[Hook]) -> Fingerprint {
        let base = &self.base[family];
        let fixed = base.chains.iter().map(Mark::of_chain);
        let ends = Dispatch::ALL.into_iter().flat_map(|dispatch| {
            let lines = base.ends(dispatch).lines().map(move |line| dispatch.mark(line));
            lines.chain([Mark::of::<&str>(dispatch.table(), dispatch.chain(), &[])])
        });
        let installed = || self.services.values().filter_map(|service| service[family].as_ref());
        let chains = installed().flat_map(|installed| installed.chains.iter().map(|(_, _, mark)| *mark));
        let lines = installed().flat_map(|installed| &installed.lines);
        let lines = lines.filter(|(dispatch, _)| !dispatch.is_shared());
        let shared = self.users[family].keys();
        let lines = lines.map(|(dispatch, line)| dispatch.mark(line));
        let shared = shared.map(|(dispatch, line)| dispatch.mark(line));
        let hooks = hooks.iter().map(Mark::of_hook);
        fixed.chain(ends).chain(chains).chain(lines).chain(shared).chain(hooks).collect()
    }
}

impl From<Desired> for Installed {
    fn from(desired: Desired) -> Self {
        let Desired { fronts, chains, lines } = desired;
        Self {
            fronts: fronts.into(),
            chains: chains
                .iter()
                .map(|chain| (chain.table, chain.name.as_str().into(), Mark::of_chain(chain)))
                .collect(),
            lines: lines.into_iter().map(|(dispatch, line)| (dispatch, line.into())).collect(),
        }
    }
}

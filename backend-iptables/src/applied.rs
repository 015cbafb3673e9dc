//! What was applied last: enough to know what the kernel contains without reading it. Of each chain only a hash of its
//! rules is kept.

use std::{collections::BTreeMap, iter::repeat_n};

use backend::{
    dataplane::Vip,
    driver::{Applied, AppliedServicePorts, ServicePortUpdate},
};
use iptables::{ChainSpec, Table};
use proto::model::{IpFamily, PerFamily, ServicePortKey};

use crate::{
    desired::{Base, Desired, hooks},
    size::Size,
    table::{ContentHash, Fingerprint, SharedChain},
    unclaimed::Unclaimed,
};

/// What the kernel contains because of us.
#[derive(Clone, Debug)]
pub struct AppliedState {
    pub(crate) service_ports: AppliedServicePorts<Installed>,
    /// What no service port has claimed since the kernel was read.
    pub(crate) unclaimed: PerFamily<Unclaimed>,
    /// Whether service ports have not claimed what they need since the kernel was read.
    pub(crate) is_reconciling: bool,
    /// Empty chains that are not needed, and that rules of other programs jump to.
    pub(crate) emptied: PerFamily<Vec<ContentHash>>,
    pub(crate) base: PerFamily<Base>,
    /// How many service ports have a line that several may have.
    users: PerFamily<BTreeMap<(SharedChain, String), u32>>,
    /// That of what service ports have.
    size: PerFamily<Size>,
}

/// What one service port has in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    pub(crate) vips: Box<[Vip]>,
    pub(crate) chains: Box<[InstalledChain]>,
    pub(crate) lines: Box<[(SharedChain, Box<str>)]>,
}

/// A chain of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledChain {
    pub(crate) table: Table,
    pub(crate) name: Box<str>,
    /// The number of its rules.
    pub(crate) rules: u32,
    pub(crate) hash: ContentHash,
}

/// How many more, or fewer, service ports have a line that several may have.
pub(crate) type UserChanges = BTreeMap<(SharedChain, String), i32>;

// === impl AppliedState ===

impl AppliedState {
    /// A kernel that contains the base ruleset, and what no service port has claimed.
    pub(crate) fn new(base: PerFamily<Base>, unclaimed: PerFamily<Unclaimed>) -> Self {
        Self {
            service_ports: AppliedServicePorts::default(),
            unclaimed,
            is_reconciling: true,
            emptied: PerFamily::default(),
            base,
            users: PerFamily::default(),
            size: PerFamily::default(),
        }
    }

    /// The number of chains and rules in the larger family.
    pub(crate) fn rules(&self) -> usize {
        let rules = |family| self.size[family].rules + self.unclaimed[family].size().rules;
        rules(IpFamily::V4).max(rules(IpFamily::V6))
    }

    /// How many rules of service ports a shared chain has.
    pub(crate) fn shared_rules(&self, family: IpFamily, shared: SharedChain) -> usize {
        self.size[family].shared[shared as usize] + self.unclaimed[family].size().shared[shared as usize]
    }

    /// All rules of service ports in a shared chain.
    pub(crate) fn shared_lines(&self, family: IpFamily, shared: SharedChain) -> Vec<&str> {
        let installed = self.service_ports.of_family(family).flat_map(|installed| &installed.lines);
        let installed = installed.filter(|(of, _)| *of == shared).map(|(_, line)| &**line);
        let users = self.users[family].keys().filter(|(of, _)| *of == shared).map(|(_, line)| line.as_str());
        let mut lines: Vec<&str> = if shared.allows_duplicates() { users.collect() } else { installed.collect() };
        let unclaimed = self.unclaimed[family].lines().filter(|(of, ..)| *of == shared);
        lines.extend(unclaimed.flat_map(|(_, line, count)| repeat_n(line, count as usize)));
        lines
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

    /// Records what a service port has now.
    pub(crate) fn commit(&mut self, update: ServicePortUpdate<Installed>) {
        for family in IpFamily::ALL {
            let size = &mut self.size[family];
            if let Some(old) = self.service_ports.get(&update.key, family) {
                size.rules -= old.rules();
                old.lines.iter().for_each(|(shared, _)| size.remove_lines(*shared, 1));
            }
            if let Some(new) = &update.desired[family] {
                size.rules += new.rules();
                new.lines.iter().for_each(|(shared, _)| size.add_line(*shared));
            }
        }
        self.service_ports.commit(update);
    }

    pub(crate) fn has_unclaimed(&self) -> bool {
        IpFamily::ALL.into_iter().any(|family| !self.unclaimed[family].is_empty())
    }

    /// Forgets what some service ports have, after the kernel was read again.
    pub(crate) fn read_again(&mut self, mut unclaimed: PerFamily<Unclaimed>, unknown: &[ServicePortKey]) {
        for key in unknown {
            for family in IpFamily::ALL {
                let lines = self.service_ports.get(key, family).into_iter().flat_map(|installed| &installed.lines);
                let users = lines.filter(|(shared, _)| shared.allows_duplicates());
                let changes = users.map(|(shared, line)| ((*shared, String::from(&**line)), -1)).collect();
                self.commit_users(family, changes);
            }
            self.commit(ServicePortUpdate { key: key.clone(), desired: PerFamily::default() });
        }
        for family in IpFamily::ALL {
            let unclaimed = &mut unclaimed[family];
            for Installed { chains, lines, .. } in self.service_ports.of_family(family) {
                chains.iter().for_each(|chain| unclaimed.remove_chain(chain.table, &chain.name));
                let own = lines.iter().filter(|(shared, _)| !shared.allows_duplicates());
                own.for_each(|(shared, line)| unclaimed.remove_line(*shared, line, 1));
            }
            let shared = self.users[family].keys();
            shared.for_each(|(shared, line)| unclaimed.remove_line(*shared, line, 1));
        }
        self.unclaimed = unclaimed;
    }

    /// A hash of everything of ours in a family.
    pub(crate) fn fingerprint(&self, family: IpFamily) -> Fingerprint {
        let base = &self.base[family];
        let fixed_rules = |shared: SharedChain| shared.hashes(base.fixed_rules(shared).lines());
        let installed = || self.service_ports.of_family(family);
        let lines = installed().flat_map(|installed| &installed.lines).map(|(shared, line)| (shared, &**line));
        let lines = lines.filter(|(shared, _)| !shared.allows_duplicates());
        let duplicates = self.users[family].keys().map(|(shared, line)| (shared, line.as_str()));
        let chains = base.chains.iter().map(ContentHash::of_chain);
        let unclaimed = &self.unclaimed[family];
        let unclaimed_lines =
            unclaimed.lines().flat_map(|(shared, line, count)| repeat_n(shared.rule_hash(line), count as usize));
        chains
            .chain(SharedChain::ALL.into_iter().flat_map(fixed_rules))
            .chain(installed().flat_map(|installed| installed.chains.iter().map(|chain| chain.hash)))
            .chain(lines.chain(duplicates).map(|(shared, line)| shared.rule_hash(line)))
            .chain(unclaimed.chains().map(|(_, _, chain)| chain.hash))
            .chain(unclaimed_lines)
            .chain(self.emptied[family].iter().copied())
            .chain(hooks().iter().map(ContentHash::of_hook))
            .collect()
    }
}

impl Applied for AppliedState {
    fn vips(&self, key: &ServicePortKey) -> Vec<(IpFamily, Vip)> {
        self.service_ports.vips(key, |installed| &installed.vips)
    }

    fn has_unneeded(&self) -> bool {
        self.is_reconciling || self.has_unclaimed()
    }
}

// === impl Installed ===

impl Installed {
    /// The number of its chains and rules.
    pub(crate) fn rules(&self) -> usize {
        self.chains.iter().map(|chain| 1 + chain.rules as usize).sum::<usize>()
    }
}

impl From<&Desired> for Installed {
    fn from(Desired { vips, chains, lines }: &Desired) -> Self {
        Self {
            vips: vips.as_slice().into(),
            chains: chains.iter().map(InstalledChain::from).collect(),
            lines: lines.iter().map(|(shared, line)| (*shared, line.as_str().into())).collect(),
        }
    }
}

impl From<&ChainSpec> for InstalledChain {
    fn from(chain: &ChainSpec) -> Self {
        Self {
            table: chain.table,
            name: chain.name.as_str().into(),
            rules: chain.rules.len() as u32,
            hash: ContentHash::of_chain(chain),
        }
    }
}

//! The difference between the observed rules and the desired ones of all service ports.

use std::collections::{BTreeMap, BTreeSet};

use backend::driver::{ServicePortUpdate, Unneeded};
use iptables::{ChainSpec, Hook, Table};
use proto::model::IpFamily;

use super::{Owner, Plan};
use crate::{
    desired::{Base, Desired},
    observed::{Observed, SharedRules},
    table::SharedChain,
};

/// With more changes a shared chain is written anew, because the kernel compares a deleted rule with all rules of the
/// chain.
const MAX_EDITS: usize = 16;

/// The input of the comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullComparison<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) base: &'a Base,
    pub(crate) hooks: &'a [Hook],
    pub(crate) updates: &'a [ServicePortUpdate<Desired>],
    /// The updates that are programmed.
    pub(crate) active: &'a BTreeSet<u32>,
    pub(crate) unneeded: Unneeded,
}

impl FullComparison<'_> {
    /// The changes that make the observed rules equal to the desired ones.
    pub(crate) fn plan(&self, family: IpFamily) -> Plan {
        let mut plan = Plan::default();
        let mut wanted = BTreeSet::<(Table, &str)>::new();
        let mut lines = BTreeMap::<SharedChain, BTreeMap<&str, Owner>>::new();
        let fixed = self.base.chains.iter().map(|chain| (None, chain));
        let of_services = self
            .active(family)
            .flat_map(|(owner, desired)| desired.chains.iter().map(move |chain| (Some(owner), chain)));
        for (owner, chain) in fixed.chain(of_services) {
            wanted.insert((chain.table, &chain.name));
            if self.observed.rules(chain.table, &chain.name) != Some(&chain.rules[..]) {
                plan.chains.push((owner, chain.clone()));
            }
        }
        for (owner, desired) in self.active(family) {
            for (shared, line) in &desired.lines {
                lines.entry(*shared).or_default().entry(line).or_insert(Some(owner));
            }
        }
        for shared in SharedChain::ALL {
            wanted.insert((shared.table(), shared.chain()));
            self.shared(&mut plan, shared, &lines.remove(&shared).unwrap_or_default());
        }
        self.hooks(&mut plan);
        if self.unneeded == Unneeded::Delete {
            for (table, name, rules) in
                self.observed.ours().filter(|(table, name, _)| !wanted.contains(&(*table, *name)))
            {
                delete_or_empty(&mut plan, self.observed, self.hooks, (table, name, rules));
            }
        }
        plan
    }

    fn active(&self, family: IpFamily) -> impl Iterator<Item = (u32, &Desired)> {
        let updates = self.active.iter().filter_map(|index| Some((*index, self.updates.get(*index as usize)?)));
        updates.filter_map(move |(index, update)| Some((index, update.desired[family].as_ref()?)))
    }

    fn shared(&self, plan: &mut Plan, shared: SharedChain, lines: &BTreeMap<&str, Owner>) {
        let fixed_rules = self.base.fixed_rules(shared);
        let position = fixed_rules.position();
        if let SharedRules::Lines(shared_rules) = self.observed.shared_rules(shared, fixed_rules) {
            let mut missing = lines.clone();
            let mut surplus = Vec::new();
            for line in shared_rules {
                if missing.remove(&**line).is_none() {
                    surplus.push(line);
                }
            }
            if self.unneeded == Unneeded::Keep {
                surplus.clear();
            }
            // A rule is deleted by its text, and the first one with this text is deleted.
            let is_ambiguous =
                surplus.iter().any(|line| fixed_rules.head.contains(line) || fixed_rules.tail.contains(line));
            let changes = missing.len() + surplus.len();
            if !is_ambiguous && (changes <= MAX_EDITS || changes <= lines.len() / 4 || self.unneeded == Unneeded::Keep)
            {
                let add = missing.into_iter();
                plan.add_rules.extend(add.map(|(line, owner)| (owner, position, shared, line.to_owned())));
                plan.delete_rules.extend(surplus.into_iter().map(|line| (None, shared, line.clone())));
                return;
            }
        }
        let fixed = |lines: &[String]| lines.iter().map(|line| (None, line.clone())).collect::<Vec<_>>();
        let of_services = lines.iter().map(|(line, owner)| (*owner, (*line).to_owned())).collect();
        plan.shared_chains.push((shared, [fixed(&fixed_rules.head), of_services, fixed(&fixed_rules.tail)].concat()));
    }

    fn hooks(&self, plan: &mut Plan) {
        for hook in self.hooks {
            match self.observed.hook_count(hook) {
                0 => plan.add_hooks.push(hook.clone()),
                count => plan.delete_hooks.extend(std::iter::repeat_n(hook.clone(), count - 1)),
            }
        }
    }
}

/// Deletes all chains and hooks of the backend.
pub(crate) fn remove(observed: &Observed, hooks: &[Hook]) -> Plan {
    let mut plan = Plan::default();
    for hook in hooks {
        plan.delete_hooks.extend(std::iter::repeat_n(hook.clone(), observed.hook_count(hook)));
    }
    for chain in observed.ours() {
        delete_or_empty(&mut plan, observed, hooks, chain);
    }
    plan
}

/// Deletes a chain; one that rules of other programs jump to is only emptied.
fn delete_or_empty(
    plan: &mut Plan,
    observed: &Observed,
    hooks: &[Hook],
    (table, name, rules): (Table, &str, &[String]),
) {
    let name = name.to_owned();
    if !observed.is_used(table, &name, hooks) {
        plan.delete_chains.insert((table, name));
    } else if !rules.is_empty() {
        plan.chains.push((None, ChainSpec { table, name, rules: Vec::new() }));
    }
}

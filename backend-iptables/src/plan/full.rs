//! The difference between the observed rules and the desired ones of all service ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::repeat_n,
};

use backend::driver::{ServicePortUpdate, Unneeded};
use iptables::{ChainSpec, Hook, Table};
use proto::model::IpFamily;

use super::{Edit, Owner, Plan, RuleEdit};
use crate::{
    desired::{Base, Desired},
    observed::Observed,
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
    /// The service ports that are programmed.
    pub(crate) updates: &'a [ServicePortUpdate<Desired>],
    pub(crate) unneeded: Unneeded,
}

impl FullComparison<'_> {
    /// The changes that make the observed rules equal to the desired ones.
    pub(crate) fn plan(&self, family: IpFamily) -> Plan {
        let mut plan = Plan::default();
        let mut wanted = BTreeSet::<(Table, &str)>::new();
        let mut lines = BTreeMap::<SharedChain, BTreeMap<&str, Owner>>::new();
        let fixed = self.base.chains.iter().map(|chain| (None, chain));
        let mut chains: Vec<(Owner, &ChainSpec)> = fixed.collect();
        for (owner, update) in (0..).zip(self.updates) {
            let Some(desired) = &update.desired[family] else { continue };
            chains.extend(desired.chains.iter().map(|chain| (Some(owner), chain)));
            for (shared, line) in &desired.lines {
                lines.entry(*shared).or_default().entry(line).or_insert(Some(owner));
            }
        }
        for (owner, chain) in chains {
            wanted.insert((chain.table, &chain.name));
            if self.observed.rules(chain.table, &chain.name) != Some(&chain.rules[..]) {
                plan.chains.push((owner, chain.clone()));
            }
        }
        for shared in SharedChain::ALL {
            wanted.insert((shared.table(), shared.chain()));
            self.shared(&mut plan, shared, &lines.remove(&shared).unwrap_or_default());
        }
        for hook in self.hooks {
            match self.observed.hook_count(hook) {
                0 => plan.additions.push(RuleEdit::of_hook(hook, Edit::Insert)),
                count => plan.deletions.extend(repeat_n(RuleEdit::of_hook(hook, Edit::Delete), count - 1)),
            }
        }
        if self.unneeded == Unneeded::Delete {
            let unneeded = self.observed.ours().filter(|(table, name, _)| !wanted.contains(&(*table, *name)));
            unneeded.for_each(|chain| delete_or_empty(&mut plan, self.observed, self.hooks, chain));
        }
        plan
    }

    fn shared(&self, plan: &mut Plan, shared: SharedChain, lines: &BTreeMap<&str, Owner>) {
        let fixed_rules = self.base.fixed_rules(shared);
        if let Some(shared_rules) = self.observed.shared_rules(shared, fixed_rules) {
            let mut missing = lines.clone();
            let mut surplus: Vec<_> =
                shared_rules.iter().filter(|line| missing.remove(line.as_str()).is_none()).collect();
            if self.unneeded == Unneeded::Keep {
                surplus.clear();
            }
            // A rule is deleted by its text, and the first one with this text is deleted.
            let is_ambiguous = fixed_rules.lines().any(|line| surplus.contains(&line));
            let changes = missing.len() + surplus.len();
            if !is_ambiguous && (changes <= MAX_EDITS || changes <= lines.len() / 4 || self.unneeded == Unneeded::Keep)
            {
                let add = |(line, owner)| RuleEdit::add(owner, shared, fixed_rules, line);
                plan.additions.extend(missing.into_iter().map(add));
                let delete = |line: &String| RuleEdit::of_shared(None, shared, Edit::Delete, line);
                plan.deletions.extend(surplus.into_iter().map(delete));
                return;
            }
        }
        plan.declare_shared.push(shared);
        let head = fixed_rules.head.iter().map(|line| (line.as_str(), None));
        let of_services = lines.iter().map(|(line, owner)| (*line, *owner));
        let tail = fixed_rules.tail.iter().map(|line| (line.as_str(), None));
        let append = |(line, owner)| RuleEdit::of_shared(owner, shared, Edit::Append, line);
        plan.additions.extend(head.chain(of_services).chain(tail).map(append));
    }
}

/// Deletes all chains and hooks of the backend.
pub(crate) fn remove(observed: &Observed, hooks: &[Hook]) -> Plan {
    let mut plan = Plan::default();
    for hook in hooks {
        plan.deletions.extend(repeat_n(RuleEdit::of_hook(hook, Edit::Delete), observed.hook_count(hook)));
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

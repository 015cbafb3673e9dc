//! The changes of the base ruleset: base chains, the fixed rules of shared chains, and hooks.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::repeat_n,
};

use iptables::{ChainSpec, HookRule, Table, target};

use super::{Edit, Plan, RuleEdit};
use crate::{
    desired::{Base, hooks, is_only_our_hook},
    names,
    observed::Observed,
    table::{FixedRules, SharedChain, TABLES},
};

/// The changes that give the observed rules this base ruleset. Rules of service ports, and unneeded chains and rules,
/// are left.
pub(crate) fn complete_base(observed: &Observed, base: &Base) -> Plan {
    let mut plan = Plan::default();
    for chain in &base.chains {
        if observed.rules(chain.table, &chain.name) != Some(&chain.rules[..]) {
            plan.chains.push((None, chain.clone()));
        }
    }

    for shared in SharedChain::ALL {
        complete_shared(&mut plan, observed, shared, base.fixed_rules(shared));
    }

    for hook in &hooks() {
        match observed.hook_count(hook) {
            0 => plan.additions.push(RuleEdit::of_hook(hook, Edit::Insert)),
            count => plan.deletions.extend(repeat_n(RuleEdit::of_hook(hook, Edit::Delete), count - 1)),
        }
    }
    plan
}

/// Creates a shared chain, or moves its fixed rules to its beginning and its end.
fn complete_shared(plan: &mut Plan, observed: &Observed, shared: SharedChain, fixed_rules: &FixedRules) {
    let Some(rules) = observed.rules(shared.table(), shared.chain()) else {
        plan.declare_shared.push(shared);
        plan.additions.extend(edits(shared, Edit::Append, fixed_rules.lines()));
        return;
    };

    let is_fixed = |line: &String| fixed_rules.lines().any(|fixed| fixed == line);
    let between = rules.strip_prefix(&fixed_rules.head[..]).and_then(|rest| rest.strip_suffix(&fixed_rules.tail[..]));
    if between.is_some_and(|between| !between.iter().any(is_fixed)) {
        return;
    }

    plan.deletions.extend(edits(shared, Edit::Delete, rules.iter().filter(|line| is_fixed(line))));
    plan.deletions.extend(edits(shared, Edit::Insert, fixed_rules.head.iter().rev()));
    plan.deletions.extend(edits(shared, Edit::Append, &fixed_rules.tail));
}

/// The same edit of a shared chain for each of these fixed rules.
fn edits<'a>(
    shared: SharedChain,
    edit: Edit,
    lines: impl IntoIterator<Item = &'a String>,
) -> impl Iterator<Item = RuleEdit> {
    lines.into_iter().map(move |line| RuleEdit::of_shared(None, shared, edit, line))
}

/// Adds the difference between two base rulesets to a plan. Returns the chains that are not needed any more; rules of
/// service ports may still jump to them.
pub(super) fn rebase(plan: &mut Plan, old: &Base, new: &Base) -> Vec<ChainSpec> {
    let changed = new.chains.iter().filter(|chain| !old.chains.contains(chain));
    plan.chains.extend(changed.map(|chain| (None, chain.clone())));

    for shared in SharedChain::ALL {
        let old_tail = &old.fixed_rules(shared).tail;
        let new_tail = &new.fixed_rules(shared).tail;
        if old_tail != new_tail {
            // Appended rules come last, also after a fixed rule that does not change: all of them are written anew.
            plan.deletions.extend(edits(shared, Edit::Delete, old_tail));
            plan.deletions.extend(edits(shared, Edit::Append, new_tail));
        }
    }

    let names: BTreeSet<(Table, &str)> = new.chains.iter().map(|chain| (chain.table, &*chain.name)).collect();
    let unneeded = old.chains.iter().filter(|chain| !names.contains(&(chain.table, &*chain.name)));
    unneeded.cloned().collect()
}

/// Deletes the chains that only Fairlead creates and that no chain with a name of kube-proxy leads to, and the hooks
/// that only Fairlead has.
pub(crate) fn remove_unshared(observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    for hook in hooks().iter().filter(|hook| is_only_our_hook(hook)) {
        plan.delete_hook(observed, hook);
    }
    for table in TABLES {
        let of_table = observed.ours().filter(|(of, ..)| *of == table);
        let mut unused: BTreeMap<&str, &[String]> = of_table.map(|(_, name, rules)| (name, rules)).collect();
        let mut used: Vec<_> = unused.keys().copied().filter(|name| !names::is_only_ours(name)).collect();
        while let Some(name) = used.pop() {
            let rules = unused.remove(name).unwrap_or_default();
            used.extend(rules.iter().filter_map(|rule| target(rule)).filter(|name| unused.contains_key(name)));
        }

        let deleted = unused.into_keys().filter(|name| !observed.is_used(table, name));
        plan.delete_chains.extend(deleted.map(|name| (table, name.to_owned())));
    }
    plan
}

/// Deletes all chains and hooks of the backend. A chain that rules of other programs jump to is only emptied.
pub(crate) fn remove(observed: &Observed) -> Plan {
    let mut plan = Plan::default();
    for hook in &hooks() {
        plan.delete_hook(observed, hook);
    }

    for (table, name, rules) in observed.ours() {
        if !observed.is_used(table, name) {
            plan.delete_chains.insert((table, name.to_owned()));
        } else if !rules.is_empty() {
            plan.chains.push((None, ChainSpec { table, name: name.to_owned(), rules: Vec::new() }));
        }
    }
    plan
}

impl Plan {
    /// Deletes all copies of a hook.
    fn delete_hook(&mut self, observed: &Observed, hook: &HookRule) {
        self.deletions.extend(repeat_n(RuleEdit::of_hook(hook, Edit::Delete), observed.hook_count(hook)));
    }
}

//! The difference between two rulesets, as a script for `iptables-restore`.
//!
//! ```text
//!   *filter  additions: rules that reject or drop, before the rules of nat stop translating
//!   *nat     chains, rules, hooks; unneeded chains are deleted in the same transaction
//!   *filter  deletions
//! ```
//!
//! Each table is changed in one transaction. A table without changes is left out, so that the change of an endpoint is
//! one transaction. Where large transactions are slow, nat has several: new chains, the rules that jump to them, and
//! the deletion of unreferenced chains.
//!
//! A change that is too large for one script becomes several scripts. Each executes a part of the `steps`, and the next
//! script is computed from the state that it leaves.

mod base;
mod partial;
mod script;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use iptables::{ChainSpec, HookRule, ScriptLine, Table};

use crate::table::{FixedRules, SharedChain};
pub(crate) use base::{complete_base, remove, remove_unshared};
pub(crate) use partial::{FamilyUpdate, PartialPlan};
pub(crate) use script::Script;

/// The index of the update that a line is for; `None`: several updates, or none.
pub(crate) type Owner = Option<u32>;

/// The changes of a ruleset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Chains to create, or to write anew.
    chains: Vec<(Owner, ChainSpec)>,
    /// Shared chains to create; `additions` contains their rules.
    declare_shared: Vec<SharedChain>,
    /// Shared chains to empty; `deletions` appends all their rules.
    rewritten: Vec<SharedChain>,
    pub(crate) delete_chains: BTreeSet<(Table, String)>,
    /// Rules to add to shared and built-in chains.
    additions: Vec<RuleEdit>,
    /// Rules to delete from shared and built-in chains, and rules to add after that.
    deletions: Vec<RuleEdit>,
}

/// The change of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleEdit {
    owner: Owner,
    table: Table,
    chain: &'static str,
    edit: Edit,
    rule: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Insert,
    Append,
    Delete,
}

// === impl RuleEdit ===

impl RuleEdit {
    fn of_shared(owner: Owner, shared: SharedChain, edit: Edit, rule: &str) -> Self {
        Self { owner, table: shared.table(), chain: shared.chain(), edit, rule: rule.to_owned() }
    }

    /// Adds the rule of a service port to a shared chain: no chain has fixed rules at both ends.
    fn add(owner: Owner, shared: SharedChain, fixed_rules: &FixedRules, rule: &str) -> Self {
        let edit = if fixed_rules.tail.is_empty() { Edit::Append } else { Edit::Insert };
        Self::of_shared(owner, shared, edit, rule)
    }

    fn of_hook(hook: &HookRule, edit: Edit) -> Self {
        Self { owner: None, table: hook.table, chain: hook.chain, edit, rule: hook.rule.clone() }
    }

    fn line(&self) -> ScriptLine<'_> {
        match self.edit {
            Edit::Insert => ScriptLine::Insert(self.chain, &self.rule),
            Edit::Append => ScriptLine::Append(self.chain, &self.rule),
            Edit::Delete => ScriptLine::Delete(self.chain, &self.rule),
        }
    }
}

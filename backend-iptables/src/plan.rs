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

mod full;
mod partial;
mod script;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use iptables::{ChainSpec, Hook, Table};

use crate::table::{Position, SharedChain};
pub(crate) use full::{FullComparison, remove};
pub(crate) use partial::{UserChanges, partial};
pub(crate) use script::Script;

/// The index of the update that something is for; `None`: several, or none.
pub(crate) type Owner = Option<u32>;

/// The changes of a ruleset, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Chains to create, or to write anew.
    chains: Vec<(Owner, ChainSpec)>,
    /// Shared chains to create, or to write anew.
    shared_chains: Vec<(SharedChain, Vec<(Owner, String)>)>,
    delete_chains: BTreeSet<(Table, String)>,
    /// Rules to add to shared chains.
    add_rules: Vec<(Owner, Position, SharedChain, String)>,
    /// Rules to delete from shared chains.
    delete_rules: Vec<(Owner, SharedChain, String)>,
    /// Rules to append to shared chains after all other changes.
    append_last: Vec<(SharedChain, String)>,
    add_hooks: Vec<Hook>,
    delete_hooks: Vec<Hook>,
}

//! kube-proxy's chains in iptables, and the rules that jump to them. Both its iptables and its IPVS mode create such
//! chains.
//!
//! Not removed are kubelet's chains, other rules in built-in chains, and each chain of kube-proxy that a rule of
//! another program jumps to. On a node that Fairlead's iptables backend has programmed, the chains whose names both use
//! belong to Fairlead.

pub(crate) mod canary;
pub(crate) mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use backend::read_rules;
use backend_iptables::{has_programmed, is_own_chain};
use iptables::{Condition, Policy, Program, Rule, Ruleset, SavedRules, Script, Table, Target, save_all, target};

use super::LeftoverObject;

/// The objects to be removed from the rules of one IP family and variant.
#[derive(Debug)]
pub(crate) struct ChainRemoval {
    program: Program,
    tables: Vec<TableRemoval>,
    /// For the operator: which chains are kept and why, and what to check.
    pub(crate) notes: Vec<String>,
}

/// The objects to be removed from one table.
#[derive(Debug, PartialEq, Eq)]
struct TableRemoval {
    table: Table,
    /// Rules in built-in chains: the chain, and the rule.
    jumps: Vec<(String, String)>,
    chains: BTreeSet<String>,
    /// A rule of another program, and the chain of kube-proxy that is kept because of it.
    kept: Vec<(String, String)>,
}

impl ChainRemoval {
    /// Reads the rules of every iptables that is installed.
    pub(crate) async fn find() -> Result<Vec<Self>> {
        save_all().await?.iter().map(Self::of).collect()
    }

    fn of(saved: &SavedRules) -> Result<Self> {
        Ok(Self::new(saved.program, &read_rules(saved, &canary::TABLES, names::is_kube_proxys)?))
    }

    fn new(program: Program, rules: &Ruleset) -> Self {
        let tables: Vec<_> = rules.tables().map(|table| TableRemoval::new(rules, table)).collect();
        let mut notes = Vec::new();
        for table in &tables {
            for (rule, chain) in &table.kept {
                notes.push(format!(
                    "{program}, table {}: {chain} is kept, because this rule refers to it: {rule}",
                    table.table
                ));
            }
        }

        let forward = rules.chain(Table::Filter, "FORWARD");
        let drops_forwarded = forward.is_some_and(|chain| chain.policy == Some(Policy::Drop));
        if drops_forwarded && tables.iter().any(|table| table.chains.contains(names::FORWARD)) {
            notes.push(format!(
                "{program}: the policy of FORWARD is DROP, and KUBE-FORWARD accepted packets for Services; \
                 add rules that accept the traffic of pods in FORWARD first"
            ));
        }
        Self { program, tables, notes }
    }

    /// The objects to be removed; the chains of single service ports are counted by kind.
    pub(crate) fn objects(&self) -> Vec<LeftoverObject> {
        let mut objects = Vec::new();
        for table in &self.tables {
            let subsystem = format!("{} {}", self.program, table.table);
            let object = |kind, count| LeftoverObject::new(&*subsystem, Some(self.program.family), kind, count);
            objects.extend(table.jumps.iter().map(|(chain, rule)| object(format!("rule -A {chain} {rule}"), 1)));

            let mut kinds = BTreeMap::<String, usize>::new();
            for chain in &table.chains {
                let kind = names::kind(chain).map_or_else(|| chain.clone(), |prefix| format!("{prefix}*"));
                *kinds.entry(kind).or_default() += 1;
            }
            objects.extend(kinds.into_iter().map(|(kind, count)| object(format!("chain {kind}"), count)));
        }
        objects
    }

    /// Removes it: each table completely or not at all.
    pub(crate) async fn remove(&self) -> Result<()> {
        let mut script = Script::default();
        self.tables.iter().for_each(|table| table.add_to(&mut script));
        if script.is_empty() {
            return Ok(());
        }
        let removed = self.program.restore(&script).await;
        removed.with_context(|| format!("remove kube-proxy's chains with {}", self.program))
    }
}

impl TableRemoval {
    fn new(rules: &Ruleset, table: Table) -> Self {
        let is_fairleads = has_programmed(rules);
        let is_removed = |name: &&str| names::is_kube_proxys(name) && !(is_fairleads && is_own_chain(name));
        let ours: BTreeSet<&str> = rules.chains_of(table).map(|(name, _)| name).filter(is_removed).collect();

        let mut jumps = Vec::new();
        let mut kept = Vec::new();
        let mut open = Vec::new();
        for (name, chain) in rules.chains_of(table).filter(|(name, _)| !ours.contains(name)) {
            for rule in &chain.rules {
                let Some(target) = target(rule).filter(|target| ours.contains(target)) else { continue };
                if chain.policy.is_some() && is_hook(&rules.parse_rule(table, rule)) {
                    jumps.push((name.to_owned(), rule.clone()));
                } else {
                    kept.push((format!("-A {name} {rule}"), target.to_owned()));
                    open.push(target);
                }
            }
        }

        // A chain that is kept keeps its rules, and the chains that these lead to.
        let mut keep = BTreeSet::new();
        while let Some(chain) = open.pop() {
            if keep.insert(chain) {
                let targets = rules.rules(table, chain).iter().filter_map(|rule| target(rule));
                open.extend(targets.filter(|target| ours.contains(target)));
            }
        }

        let chains = ours.difference(&keep).map(|chain| (*chain).to_owned()).collect();
        Self { table, jumps, chains, kept }
    }

    fn add_to(&self, script: &mut Script) {
        let jumps = self.jumps.iter().map(|(chain, rule)| (chain.as_str(), rule.as_str()));
        script.remove(self.table, jumps, self.chains.iter().map(String::as_str));
    }
}

/// Whether a rule has the form of kube-proxy's jumps from built-in chains: for all packets, or for packets of new
/// connections. The comments of kube-proxy are UTF-8 without line breaks; rules with other comments cannot be written
/// as they were read.
fn is_hook(rule: &Rule) -> bool {
    let is_new = |condition: &Condition| matches!(condition, Condition::State(states) if states == &["NEW"]);
    !rule.text.contains(['\n', char::REPLACEMENT_CHARACTER])
        && rule.matches.iter().all(|one| !one.negated && is_new(&one.condition))
        && matches!(&rule.target, Target::Jump(chain) if names::is_hooked(chain))
}

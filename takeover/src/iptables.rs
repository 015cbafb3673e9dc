//! kube-proxy's chains in iptables, and the rules that lead to them: found in what `iptables-save` prints, removed by what is
//! fed to `iptables-restore`. Both its iptables mode and its IPVS mode make such chains.
//!
//! Whatever is not kube-proxy's stays: kubelet's chains, rules of others in the built-in chains, and each chain of kube-proxy's
//! that a rule of others leads to. Where Fairlead's iptables backend has been, it has made kube-proxy's chains its own.

mod exec;
pub(crate) mod names;
pub(crate) mod saved;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context as _, Result};

use crate::{Family, Item};
pub(crate) use exec::{Program, save_all};
use saved::{Rule, Table};

/// What goes out of one iptables: of a family, and of a variant (through nf_tables, or the older way).
#[derive(Debug)]
pub(crate) struct Removal {
    program: Program,
    tables: Vec<TableRemoval>,
    /// For people: what stays and why, and what to look at.
    pub(crate) notes: Vec<String>,
}

/// Whose the chains are whose names kube-proxy and Fairlead both give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    KubeProxy,
    Fairlead,
}

/// What goes out of one table.
#[derive(Debug, Default, PartialEq, Eq)]
struct TableRemoval {
    table: String,
    /// Rules in built-in chains, as saved.
    jumps: Vec<String>,
    chains: BTreeSet<String>,
    /// A rule of others, and the chain of kube-proxy's that it keeps in place.
    kept: Vec<(String, String)>,
}

// === impl Removal ===

impl Removal {
    /// Looks at every iptables that is installed.
    pub(crate) fn find() -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for (program, saved) in save_all()? {
            found.push(Self::new(program, &saved));
        }
        Ok(found)
    }

    fn new(program: Program, saved: &str) -> Self {
        let saved = saved::parse(saved);
        let tables = saved.iter().map(|table| TableRemoval::new(table, Owner::of(&saved)));
        let tables: Vec<_> = tables.filter(|table| !table.is_empty()).collect();
        let mut notes = Vec::new();
        for table in &tables {
            for (rule, chain) in &table.kept {
                notes.push(format!("{program}, table {}: {chain} stays, for this rule uses it: {rule}", table.table));
            }
        }
        let forwards = |table: &TableRemoval| table.chains.contains(names::FORWARD);
        if tables.iter().any(forwards) && saved.iter().any(Table::drops_forwarded) {
            notes.push(format!(
                "{program}: the policy of FORWARD is DROP, and KUBE-FORWARD let packets for Services pass it; \
                 accept the pods' traffic in FORWARD before"
            ));
        }
        Self { program, tables, notes }
    }

    pub(crate) fn family(&self) -> Family {
        self.program.family
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tables.iter().all(TableRemoval::is_done)
    }

    /// What goes; the chains of single services are counted by their kind.
    pub(crate) fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for table in &self.tables {
            let place = format!("{} {}", self.program, table.table);
            let item = |what, count| Item { place: place.clone(), family: Some(self.family()), what, count };
            items.extend(table.jumps.iter().map(|rule| item(format!("rule {rule}"), 1)));
            let mut kinds = BTreeMap::<String, usize>::new();
            for chain in &table.chains {
                let kind = names::kind(chain).map_or_else(|| chain.clone(), |prefix| format!("{prefix}*"));
                *kinds.entry(kind).or_default() += 1;
            }
            items.extend(kinds.into_iter().map(|(kind, count)| item(format!("chain {kind}"), count)));
        }
        items
    }

    /// Removes it: each table at once or not at all.
    pub(crate) fn remove(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let script: String = self.tables.iter().map(TableRemoval::script).collect();
        self.program.restore(&script).with_context(|| format!("remove kube-proxy's chains with {}", self.program))
    }
}

// === impl Owner ===

impl Owner {
    fn of(saved: &[Table]) -> Self {
        if saved.iter().flat_map(Table::chains).any(names::is_fairleads) { Self::Fairlead } else { Self::KubeProxy }
    }

    fn is_kube_proxys(self, chain: &str) -> bool {
        names::is_kube_proxys(chain) && (self == Self::KubeProxy || !names::is_shared(chain))
    }
}

// === impl TableRemoval ===

impl TableRemoval {
    fn new(table: &Table, owner: Owner) -> Self {
        let ours: BTreeSet<&str> = table.chains().filter(|chain| owner.is_kube_proxys(chain)).collect();
        let is_jump = |rule: &&Rule| table.is_built_in(&rule.chain) && rule.plain_jump().is_some_and(names::is_hooked);
        let mut kept = Vec::new();
        let mut open = Vec::new();
        let others = table.rules.iter().filter(|rule| !ours.contains(&*rule.chain) && !is_jump(rule));
        for rule in others {
            if let Some(target) = rule.target().filter(|target| ours.contains(target)) {
                kept.push((rule.to_string(), target.to_owned()));
                open.push(target);
            }
        }
        // A chain that stays keeps its rules, and what they lead to.
        let mut staying = BTreeSet::new();
        while let Some(chain) = open.pop() {
            if staying.insert(chain) {
                let targets = table.rules.iter().filter(|rule| rule.chain == chain).filter_map(Rule::target);
                open.extend(targets.filter(|target| ours.contains(target)));
            }
        }
        let jumps =
            table.rules.iter().filter(is_jump).filter(|rule| rule.target().is_some_and(|target| ours.contains(target)));
        Self {
            table: table.name.clone(),
            jumps: jumps.map(Rule::to_string).collect(),
            chains: ours.difference(&staying).map(|chain| (*chain).to_owned()).collect(),
            kept,
        }
    }

    /// Nothing is to be done.
    fn is_done(&self) -> bool {
        self.jumps.is_empty() && self.chains.is_empty()
    }

    /// Nor anything to be said.
    fn is_empty(&self) -> bool {
        self.is_done() && self.kept.is_empty()
    }

    /// For `iptables-restore --noflush`: naming a chain with its counters empties it, so that no rule leads to any of them.
    fn script(&self) -> String {
        let mut script = format!("*{}\n", self.table);
        for chain in &self.chains {
            // Writing to a String cannot fail.
            let _ = writeln!(script, ":{chain} - [0:0]");
        }
        for jump in self.jumps.iter().filter_map(|rule| rule.strip_prefix("-A ")) {
            let _ = writeln!(script, "-D {jump}");
        }
        for chain in &self.chains {
            let _ = writeln!(script, "-X {chain}");
        }
        script.push_str("COMMIT\n");
        script
    }
}

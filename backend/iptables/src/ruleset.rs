//! The output of `iptables-save`: tables, chains and rules. Rules stay text, so that two of them can be compared.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt, iter,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    ChainSpec, HookRule, Rule, Script, ScriptLine, Table,
    rule::{ends_in_quotes, words},
};

/// The end of the comment that `iptables-nft-save` prints instead of a table that contains a rule made by `nft`.
const INCOMPATIBLE: &str = "' is incompatible, use 'nft' tool.";

/// All tables of one IP family and variant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    tables: BTreeMap<Table, BTreeMap<String, Chain>>,
    incompatible: BTreeSet<Table>,
}

/// A chain of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// The verdict on packets that no rule decides; `None` for a chain that is not built in.
    pub policy: Option<Policy>,
    /// Each as printed after `-A CHAIN`.
    pub rules: Vec<String>,
}

/// The policy of a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Packets pass.
    Accept,
    /// Packets are dropped.
    Drop,
}

/// `iptables-nft` cannot show a table, because `nft` has added a rule to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("iptables cannot read table {0}: it contains a rule made by nft; delete that rule with nft")]
pub struct HiddenTable(Table);

/// The target of a rule: a chain, or an extension as `ACCEPT`.
#[must_use]
pub fn target(rule: &str) -> Option<&str> {
    let mut words = words(rule);
    words.find(|word| matches!(*word, "-j" | "-g"))?;
    words.next()
}

// === impl Ruleset ===

impl Ruleset {
    /// Reads the output of `iptables-save`.
    ///
    /// # Errors
    /// When it is incomplete, or contains lines that are not printed by `iptables-save`.
    pub fn parse(saved: &str) -> Result<Self> {
        let mut ruleset = Self::default();
        // The table that is open; `Some(None)` for a table that is not supported here.
        let mut open = None;
        for (number, line) in logical_lines(saved) {
            if let Some(name) = line.strip_prefix('*') {
                open = Some(Table::from_name(name));
            } else if line == "COMMIT" {
                open = None;
            } else if let Some(comment) = line.strip_prefix('#') {
                let name = comment.strip_prefix(" Table `").and_then(|rest| rest.strip_suffix(INCOMPATIBLE));
                ruleset.incompatible.extend(name.and_then(Table::from_name));
            } else if let Some(Some(table)) = open {
                let executed = ruleset.execute_line(table, &line);
                executed.with_context(|| format!("unexpected line {number}: {line:?}"))?;
            }
        }

        ensure!(open.is_none(), "the list of rules ends before COMMIT");
        Ok(ruleset)
    }

    /// Executes a script on this ruleset, not in the kernel. Lines that cannot be executed are skipped.
    pub fn execute(&mut self, script: &str) {
        let mut table = None;
        for line in script.split_terminator('\n') {
            match line.strip_prefix('*') {
                Some(name) => table = Table::from_name(name),
                None => drop(table.and_then(|table| self.execute_line(table, line))),
            }
        }
    }

    /// Executes a line of a script, or of the output; `None` if the line has another form, or names a missing object.
    fn execute_line(&mut self, table: Table, line: &str) -> Option<()> {
        let chains = self.tables.entry(table).or_default();
        if let Some(declaration) = line.strip_prefix(':') {
            let (name, head) = declaration.split_once(' ')?;
            let policy = match head.split(' ').next()? {
                "-" => None,
                "DROP" => Some(Policy::Drop),
                _ => Some(Policy::Accept),
            };
            chains.insert(name.to_owned(), Chain { policy, rules: Vec::new() });
            return Some(());
        }

        let (verb, rest) = line.split_once(' ')?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        if verb == "-X" {
            return chains.remove(chain).map(drop);
        }

        let rules = &mut chains.get_mut(chain)?.rules;
        match verb {
            "-A" => rules.push(rule.to_owned()),
            "-I" => rules.insert(0, rule.to_owned()),
            "-D" => drop(rules.remove(rules.iter().position(|text| text == rule)?)),
            _ => return None,
        }
        Some(())
    }

    /// Fails when `iptables-nft` cannot show one of these tables.
    ///
    /// # Errors
    /// Names the table.
    pub fn ensure_readable(&self, tables: &[Table]) -> Result<(), HiddenTable> {
        match tables.iter().find(|table| self.incompatible.contains(table)) {
            Some(table) => Err(HiddenTable(*table)),
            None => Ok(()),
        }
    }

    /// Leaves a table out of this ruleset.
    pub fn forget(&mut self, table: Table) {
        self.tables.remove(&table);
    }

    /// The tables that are in use.
    pub fn tables(&self) -> impl Iterator<Item = Table> {
        self.tables.keys().copied()
    }

    /// The chains of all tables.
    pub fn chains(&self) -> impl Iterator<Item = (Table, &str, &Chain)> {
        self.tables.iter().flat_map(|(table, chains)| chains.iter().map(|(name, chain)| (*table, name.as_str(), chain)))
    }

    /// The chains of a table.
    pub fn chains_of(&self, table: Table) -> impl Iterator<Item = (&str, &Chain)> {
        self.tables.get(&table).into_iter().flatten().map(|(name, chain)| (name.as_str(), chain))
    }

    /// A chain, if it exists.
    #[must_use]
    pub fn chain(&self, table: Table, name: &str) -> Option<&Chain> {
        self.tables.get(&table)?.get(name)
    }

    /// The rules of a chain; none when it does not exist.
    #[must_use]
    pub fn rules(&self, table: Table, chain: &str) -> &[String] {
        self.chain(table, chain).map_or(&[], |chain| &chain.rules)
    }

    /// The rules of a chain as structs.
    pub fn parsed_rules(&self, table: Table, chain: &str) -> impl Iterator<Item = Rule> {
        self.rules(table, chain).iter().map(move |rule| self.parse_rule(table, rule))
    }

    /// Reads a rule of a table, whose chains tell jumps from other targets.
    #[must_use]
    pub fn parse_rule(&self, table: Table, rule: &str) -> Rule {
        Rule::parse(rule, |chain| self.chain(table, chain).is_some())
    }

    /// The script that gives chains exactly these rules, and inserts the missing hooks.
    #[must_use]
    pub fn script_to(&self, chains: &[ChainSpec], hooks: &[HookRule]) -> Script {
        let mut script = Script::default();
        for table in Table::ALL {
            script.begin(table);

            let of_table = chains.iter().filter(|chain| chain.table == table);
            let changed: Vec<_> = of_table.filter(|chain| self.differs(chain)).collect();
            for chain in &changed {
                script.push(ScriptLine::Declare(&chain.name));
            }
            for chain in changed {
                chain.rules.iter().for_each(|rule| script.push(ScriptLine::Append(&chain.name, rule)));
            }

            for HookRule { chain, rule, .. } in hooks.iter().filter(|hook| hook.table == table) {
                if !self.rules(table, chain).contains(rule) {
                    script.push(ScriptLine::Insert(chain, rule));
                }
            }
            script.commit();
        }
        script
    }

    fn differs(&self, desired: &ChainSpec) -> bool {
        self.chain(desired.table, &desired.name).is_none_or(|chain| chain.rules != desired.rules)
    }

    /// The script that deletes chains, and the rules of other chains that jump to them.
    #[must_use]
    pub fn script_without(&self, is_ours: impl Fn(&str) -> bool) -> Script {
        let mut script = Script::default();
        for table in self.tables() {
            let mut ours = Vec::new();
            let mut jumps = Vec::new();
            for (name, chain) in self.chains_of(table) {
                if is_ours(name) {
                    ours.push(name);
                } else {
                    let to_ours = chain.rules.iter().filter(|rule| target(rule).is_some_and(&is_ours));
                    jumps.extend(to_ours.map(|rule| (name, rule.as_str())));
                }
            }
            script.remove(table, jumps, ours);
        }
        script
    }
}

/// The lines of the output with their numbers. A comment may contain line breaks, which belong to its line.
fn logical_lines(saved: &str) -> impl Iterator<Item = (usize, Cow<'_, str>)> {
    // Not `lines`, which removes a carriage return from the end of a rule.
    let mut lines = (1..).zip(saved.split_terminator('\n'));
    iter::from_fn(move || {
        let (number, first) = lines.next()?;
        let mut line = Cow::from(first);
        let mut is_quoted = ends_in_quotes(first, false);
        while is_quoted && let Some((_, next)) = lines.next() {
            line.to_mut().extend(["\n", next]);
            is_quoted = ends_in_quotes(next, true);
        }
        Some((number, line))
    })
}

/// As `iptables-save` prints it, with counters of 0.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, chains) in &self.tables {
            writeln!(f, "*{table}")?;
            for (name, chain) in chains {
                let policy = match chain.policy {
                    None => "-",
                    Some(Policy::Accept) => "ACCEPT",
                    Some(Policy::Drop) => "DROP",
                };
                writeln!(f, ":{name} {policy} [0:0]")?;
            }
            for (name, chain) in chains {
                chain.rules.iter().try_for_each(|rule| writeln!(f, "{}", ScriptLine::Append(name, rule)))?;
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

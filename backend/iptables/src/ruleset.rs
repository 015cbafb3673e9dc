//! The output of `iptables-save`: tables, chains and rules. Rules stay text, so that two of them can be compared.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    ChainSpec, Hook, Rule, Script, ScriptLine, Table,
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
        let mut table = None;
        // Not `lines`, which removes a carriage return from the end of a rule.
        let mut lines = (1..).zip(saved.split_terminator('\n'));
        while let Some((number, line)) = lines.next() {
            let mut line = Cow::from(line);
            // A comment may contain line breaks.
            let mut is_quoted = ends_in_quotes(&line, false);
            while is_quoted && let Some((_, next)) = lines.next() {
                line.to_mut().extend(["\n", next]);
                is_quoted = ends_in_quotes(next, true);
            }
            let line = &*line;
            if let Some(name) = line.strip_prefix('*') {
                table = Some(Table::from_name(name));
            } else if line == "COMMIT" {
                table = None;
            } else if let Some(comment) = line.strip_prefix('#') {
                let name = comment.strip_prefix(" Table `").and_then(|rest| rest.strip_suffix(INCOMPATIBLE));
                ruleset.incompatible.extend(name.and_then(Table::from_name));
            } else if let Some(Some(table)) = table {
                ruleset.line(table, line).with_context(|| format!("unexpected line {number}: {line:?}"))?;
            }
        }
        ensure!(table.is_none(), "the list of rules ends before COMMIT");
        Ok(ruleset)
    }

    /// Executes a script on this copy. Lines that cannot be executed are skipped.
    pub fn execute(&mut self, script: &str) {
        let mut table = None;
        for line in script.split_terminator('\n') {
            match line.strip_prefix('*') {
                Some(name) => table = Table::from_name(name),
                None => drop(table.and_then(|table| self.line(table, line))),
            }
        }
    }

    /// Executes one line; `None` when that is not possible.
    fn line(&mut self, table: Table, line: &str) -> Option<()> {
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
        let hidden = tables.iter().find(|table| self.incompatible.contains(table));
        hidden.map_or(Ok(()), |table| Err(HiddenTable(*table)))
    }

    /// Leaves a table out of this copy.
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

    /// The script that gives chains exactly these rules, and inserts those hooks that are missing.
    #[must_use]
    pub fn script_to(&self, chains: &[ChainSpec], hooks: &[Hook]) -> Script {
        let mut script = Script::default();
        for table in Table::ALL {
            let differs = |chain: &&ChainSpec| {
                let rules = self.chain(table, &chain.name).map(|chain| &chain.rules);
                chain.table == table && rules != Some(&chain.rules)
            };
            let changed: Vec<_> = chains.iter().filter(differs).collect();
            script.begin(table);
            changed.iter().for_each(|chain| script.push(ScriptLine::Declare(&chain.name)));
            for chain in changed {
                chain.rules.iter().for_each(|rule| script.push(ScriptLine::Append(&chain.name, rule)));
            }
            for Hook { chain, rule, .. } in hooks.iter().filter(|hook| hook.table == table) {
                if !self.rules(table, chain).contains(rule) {
                    script.push(ScriptLine::Insert(chain, rule));
                }
            }
            script.commit();
        }
        script
    }

    /// The script that deletes chains, and the rules of other chains that jump to them.
    #[must_use]
    pub fn script_without(&self, is_ours: impl Fn(&str) -> bool) -> Script {
        let mut script = Script::default();
        for table in self.tables() {
            let ours = self.chains_of(table).map(|(name, _)| name).filter(|name| is_ours(name));
            let others = self.chains_of(table).filter(|(name, _)| !is_ours(name));
            let jumps = others.flat_map(|(name, chain)| {
                let jumps = chain.rules.iter().filter(|rule| target(rule).is_some_and(&is_ours));
                jumps.map(move |rule| (name, rule.as_str()))
            });
            script.remove(table, jumps, ours.collect::<Vec<_>>());
        }
        script
    }
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

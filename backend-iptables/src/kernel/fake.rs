//! A kernel of texts that checks what the real one checks, with both tools: chains exist before they are named, a rule
//! that is deleted exists, a chain that is removed is empty and no rule jumps to it. And one that refuses, or breaks
//! off, when a test tells it to.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::{Arc, Mutex},
};

use anyhow::{Result, anyhow};
use backend::{dataplane::DataplaneOptions, driver::Driver};
use iptables::{RestoreError, Table};
use proto::model::{IpFamily, PerFamily};

use super::{Kernel, Suspicion};
use crate::{
    data_plane::IptablesDataPlane,
    plan::Script,
    table::{SharedChain, TABLES},
};

/// Clones share one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    tables: PerFamily<Tables>,
    /// Families without iptables.
    missing: BTreeSet<IpFamily>,
    /// What has one of these words in a rule is refused.
    poison: Vec<String>,
    explains: Explains,
    /// How many parts are executed before the tool dies.
    dies_after: Option<usize>,
    /// How many lines a part may have.
    max_lines: Option<usize>,
    suspicions: VecDeque<Suspicion>,
    asked: Vec<Asked>,
}

/// A script that was to be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) family: IpFamily,
    pub(crate) script: String,
    pub(crate) accepted: bool,
    /// The rules after each part.
    pub(crate) steps: Vec<Tables>,
}

/// Whether the fake names the line that it refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Explains {
    #[default]
    Yes,
    No,
}

/// The chains of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables(BTreeMap<(Table, String), Vec<String>>);

/// A line, from 1, and what is wrong with it.
type Refusal = (usize, String);

const BUILT_IN: [(Table, &str); 7] = [
    (Table::Filter, "INPUT"),
    (Table::Filter, "FORWARD"),
    (Table::Filter, "OUTPUT"),
    (Table::Nat, "PREROUTING"),
    (Table::Nat, "INPUT"),
    (Table::Nat, "OUTPUT"),
    (Table::Nat, "POSTROUTING"),
];

/// What a rule may lead to besides chains.
const TARGETS: [&str; 7] = ["ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "MASQUERADE", "DNAT"];

/// `XT_EXTENSION_MAXNAMELEN` of `linux/netfilter/x_tables.h`, without the zero at the end.
const MAX_NAME: usize = 28;

/// A driver over the fake.
pub(crate) type FakeDriver = Driver<IptablesDataPlane<Fake>>;

// === impl Fake ===

impl Fake {
    /// A driver that has not read the kernel yet.
    pub(crate) fn driver(&self, options: DataplaneOptions) -> FakeDriver {
        Driver::new(IptablesDataPlane::new(self.clone(), options))
    }

    /// The current rules.
    pub(crate) fn tables(&self, family: IpFamily) -> Tables {
        self.0.lock().unwrap().tables[family].clone()
    }

    /// Another program changes rules.
    #[track_caller]
    pub(crate) fn stranger(&self, family: IpFamily, script: &str) {
        for part in parts(script) {
            self.0.lock().unwrap().tables[family].execute(&part, &[]).unwrap();
        }
    }

    /// Makes the kernel reject rules with one of these words.
    pub(crate) fn refuse<'a>(&self, words: impl IntoIterator<Item = &'a str>, explains: Explains) {
        let mut state = self.0.lock().unwrap();
        state.poison = words.into_iter().map(str::to_owned).collect();
        state.explains = explains;
    }

    /// Interrupts the next script after this number of parts.
    pub(crate) fn die_after(&self, parts: usize) {
        self.0.lock().unwrap().dies_after = Some(parts);
    }

    /// Limits parts to this number of lines.
    pub(crate) fn takes(&self, max_lines: usize) {
        self.0.lock().unwrap().max_lines = Some(max_lines);
    }

    /// There is no iptables for a family.
    pub(crate) fn uninstall(&self, family: IpFamily) {
        self.0.lock().unwrap().missing.insert(family);
    }

    /// Suspects this, once.
    pub(crate) fn suspect(&self, suspicion: Suspicion) {
        self.0.lock().unwrap().suspicions.push_back(suspicion);
    }

    /// The scripts since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }
}

impl Kernel for Fake {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        let state = self.0.lock().unwrap();
        Ok((!state.missing.contains(&family)).then(|| state.tables[family].save()))
    }

    fn max_lines(&self) -> usize {
        self.0.lock().unwrap().max_lines.unwrap_or(usize::MAX)
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let mut state = self.0.lock().unwrap();
        let dies_after = state.dies_after.take().unwrap_or(usize::MAX);
        let mut asked = Asked { family, script: script.text().to_owned(), accepted: false, steps: Vec::new() };
        let mut result = Ok(());
        for (number, part) in parts(script.text()).into_iter().enumerate() {
            if number == dies_after {
                result = Err(RestoreError::Failed(anyhow!("a signal has ended it")));
                break;
            }
            let mut tables = state.tables[family].clone();
            if let Err((line, reason)) = tables.execute(&part, &state.poison) {
                let lines = if state.explains == Explains::Yes { vec![line] } else { Vec::new() };
                result = Err(RestoreError::Rejected { program: "fake".to_owned(), lines, reason });
                break;
            }
            state.tables[family] = tables.clone();
            asked.steps.push(tables);
        }
        asked.accepted = result.is_ok();
        state.asked.push(asked);
        result
    }

    async fn program(&mut self, _: IpFamily) -> Result<String> {
        Ok("iptables".to_owned())
    }

    async fn suspect(&mut self) -> Suspicion {
        let suspicion = self.0.lock().unwrap().suspicions.pop_front();
        match suspicion {
            Some(suspicion) => suspicion,
            None => std::future::pending().await,
        }
    }
}

/// The lines of each `*table` to its `COMMIT`, with their numbers.
fn parts(script: &str) -> Vec<Vec<(usize, &str)>> {
    let lines: Vec<_> = (1..).zip(script.lines()).collect();
    let parts = lines.split_inclusive(|(_, line)| *line == "COMMIT").map(<[_]>::to_vec).collect::<Vec<_>>();
    let whole = |part: &Vec<(usize, &str)>| part.last().is_some_and(|(_, line)| *line == "COMMIT");
    assert!(parts.iter().all(whole), "a part without COMMIT: {script}");
    parts
}

// === impl Tables ===

impl Default for Tables {
    fn default() -> Self {
        Self(BTreeMap::from(BUILT_IN.map(|(table, name)| ((table, name.to_owned()), Vec::new()))))
    }
}

impl Tables {
    /// The rules of a chain; none when it is not there.
    pub(crate) fn rules(&self, table: Table, chain: &str) -> &[String] {
        self.0.get(&(table, chain.to_owned())).map_or(&[], |rules| rules)
    }

    /// Every chain with its rules; those that service ports share without the order of their lines.
    pub(crate) fn shape(&self) -> Vec<String> {
        let chains = self.0.iter().map(|((table, name), rules)| {
            let mut rules = rules.clone();
            if SharedChain::of(*table, name).is_some() {
                rules.sort_unstable();
            }
            format!("{table} {name}\n  {}", rules.join("\n  "))
        });
        chains.collect()
    }

    /// As `iptables-save` does.
    pub(crate) fn save(&self) -> String {
        let mut saved = String::new();
        for table in TABLES {
            writeln!(saved, "# Generated by a fake\n*{table}").unwrap();
            let chains = self.0.iter().filter(|((of, _), _)| *of == table);
            for ((_, name), _) in chains.clone() {
                let policy = if BUILT_IN.contains(&(table, name)) { "ACCEPT" } else { "-" };
                writeln!(saved, ":{name} {policy} [0:0]").unwrap();
            }
            for ((_, name), rules) in chains {
                rules.iter().for_each(|rule| writeln!(saved, "-A {name} {rule}").unwrap());
            }
            saved.push_str("COMMIT\n");
        }
        saved
    }

    /// One part, line by line.
    fn execute(&mut self, part: &[(usize, &str)], poison: &[String]) -> Result<(), Refusal> {
        let mut table = None;
        for (number, line) in part {
            let refused = |reason: String| (*number, format!("{line}: {reason}"));
            if let Some(name) = line.strip_prefix('*') {
                table = TABLES.into_iter().find(|table| table.name() == name);
            } else if *line != "COMMIT" {
                let table = table.ok_or_else(|| refused("no such table".to_owned()))?;
                self.line(table, line, poison).map_err(refused)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, table: Table, line: &str, poison: &[String]) -> Result<(), String> {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.strip_suffix(" - [0:0]").ok_or("no head of a chain")?;
            ensure(!BUILT_IN.contains(&(table, name)), "a policy")?;
            ensure((1..=MAX_NAME).contains(&name.len()), "a name of a wrong length")?;
            self.0.insert((table, name.to_owned()), Vec::new());
            return Ok(());
        }
        let (verb, rest) = line.split_once(' ').ok_or("no command")?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        if matches!(verb, "-A" | "-I") {
            if let Some(target) = target(rule).filter(|target| !TARGETS.contains(target)) {
                ensure(self.0.contains_key(&(table, target.to_owned())), "it leads to no chain")?;
            }
            ensure(!poison.iter().any(|word| rule.contains(word)), "poisonous")?;
        }
        if verb == "-X" {
            ensure(self.rules(table, chain).is_empty(), "the chain is not empty")?;
            let of_table = self.0.iter().filter(|((of, _), _)| *of == table);
            // The second look is the honest one, and slow.
            let mut named = of_table.flat_map(|(_, rules)| rules).filter(|rule| rule.contains(chain));
            let is_used = named.any(|rule| target(rule) == Some(chain));
            ensure(!is_used && !BUILT_IN.contains(&(table, chain)), "the chain is busy")?;
            return self.0.remove(&(table, chain.to_owned())).map(drop).ok_or("no such chain".to_owned());
        }
        let rules = self.0.get_mut(&(table, chain.to_owned())).ok_or("no such chain")?;
        match verb {
            "-A" => rules.push(rule.to_owned()),
            "-I" => rules.insert(0, rule.to_owned()),
            "-D" => {
                let at = rules.iter().position(|found| found == rule).ok_or("no such rule")?;
                rules.remove(at);
            }
            _ => return Err("no such command".to_owned()),
        }
        Ok(())
    }
}

fn ensure(condition: bool, reason: &str) -> Result<(), String> {
    condition.then_some(()).ok_or_else(|| reason.to_owned())
}

/// Where a rule leads: the word behind `-j` or `-g`, outside of quotes.
fn target(rule: &str) -> Option<&str> {
    // Between quotes is every second piece; no text of a test has an escaped quote.
    let mut words = rule.split('"').step_by(2).flat_map(str::split_whitespace);
    words.find(|word| matches!(*word, "-j" | "-g"))?;
    words.next()
}

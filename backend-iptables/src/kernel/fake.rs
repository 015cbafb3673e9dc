//! A kernel in memory that makes the checks of the kernel with both variants: chains exist before rules refer to them,
//! a deleted rule exists, and a deleted chain is empty and unreferenced. Tests can make it reject rules, or fail.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use anyhow::{Result, anyhow, ensure};
use backend::testing::ErrorDetail;
use iptables::{Chain, RestoreError, Ruleset, Table, target};
use proto::model::{IpFamily, PerFamily};

use super::{Kernel, Suspicion};
use crate::{
    plan::Script,
    table::{SharedChain, TABLES},
};

/// Clones share one kernel.
#[derive(Clone, Debug)]
pub(crate) struct FakeKernel(Arc<Mutex<FakeState>>);

#[derive(Debug, Default)]
struct FakeState {
    rulesets: PerFamily<Ruleset>,
    /// Families without iptables.
    missing: BTreeSet<IpFamily>,
    /// A family whose rules cannot be read.
    unreadable: Option<IpFamily>,
    /// A family without the table nat.
    unsupported: Option<IpFamily>,
    /// Rules that contain one of these texts are rejected.
    rejected: Vec<String>,
    detail: ErrorDetail,
    /// The number of transactions after which the next restore fails.
    fails_after: Option<usize>,
    max_lines: Option<usize>,
    script_lines: Option<usize>,
    suspicions: VecDeque<Suspicion>,
    restores: Vec<Restore>,
    /// How often the rules of a family were read.
    saves: usize,
    localnet: bool,
    is_sysctl_read_only: bool,
}

/// A script that was to be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restore {
    pub(crate) family: IpFamily,
    pub(crate) script: String,
    pub(crate) accepted: bool,
    /// The rules after each transaction.
    pub(crate) steps: Vec<Ruleset>,
}

/// The built-in chains.
const BUILT_IN: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n\
    *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n";

/// The targets that are not chains.
const TARGETS: [&str; 7] = ["ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "MASQUERADE", "DNAT"];

/// `XT_EXTENSION_MAXNAMELEN` of `linux/netfilter/x_tables.h`, without the zero at the end.
const MAX_NAME: usize = 28;

// === impl FakeKernel ===

impl Default for FakeKernel {
    fn default() -> Self {
        let rulesets = PerFamily::from_fn(|_| Ruleset::parse(BUILT_IN).unwrap());
        Self(Arc::new(Mutex::new(FakeState { rulesets, ..FakeState::default() })))
    }
}

impl FakeKernel {
    /// The current rules.
    pub(crate) fn ruleset(&self, family: IpFamily) -> Ruleset {
        self.0.lock().unwrap().rulesets[family].clone()
    }

    /// Every chain with its rules; the rules of shared chains are sorted, because their order does not matter.
    pub(crate) fn shape(&self, family: IpFamily) -> Vec<String> {
        self.shape_but(family, |_| false)
    }

    /// As [`Self::shape`], but the rules of chains that are `unordered` are sorted, too.
    pub(crate) fn shape_but(&self, family: IpFamily, unordered: fn(&Chain) -> bool) -> Vec<String> {
        let ruleset = self.ruleset(family);
        let chains = ruleset.chains().map(|(table, name, chain)| {
            let mut rules = chain.rules.clone();
            if SharedChain::of(table, name).is_some() || unordered(chain) {
                rules.sort_unstable();
            }
            format!("{table} {name}\n  {}", rules.join("\n  "))
        });
        chains.collect()
    }

    /// Another process changes rules.
    #[track_caller]
    pub(crate) fn change_by_other(&self, family: IpFamily, script: &str) {
        for lines in transactions(script) {
            execute(&mut self.0.lock().unwrap().rulesets[family], &lines, &[]).unwrap();
        }
    }

    /// Deletes everything but the built-in chains.
    pub(crate) fn clear(&self) {
        let Self(state) = Self::default();
        std::mem::swap(&mut *self.0.lock().unwrap(), &mut *state.lock().unwrap());
    }

    /// Removes a rule, as another process would. Whether there is one.
    pub(crate) fn remove_any(&self, number: usize) -> bool {
        let ruleset = self.ruleset(IpFamily::V4);
        let rules: Vec<_> = ruleset
            .chains()
            .flat_map(|(table, name, chain)| chain.rules.iter().map(move |rule| (table, name, rule)))
            .collect();
        let Some((table, name, rule)) = number.checked_rem(rules.len()).map(|index| rules[index]) else { return false };
        self.change_by_other(IpFamily::V4, &format!("*{table}\n-D {name} {rule}\nCOMMIT\n"));
        true
    }

    /// From now on rules that contain one of these texts are rejected.
    pub(crate) fn reject<'a>(&self, texts: impl IntoIterator<Item = &'a str>, detail: ErrorDetail) {
        let mut state = self.0.lock().unwrap();
        state.rejected = texts.into_iter().map(str::to_owned).collect();
        state.detail = detail;
    }

    /// The next restore fails after this number of transactions.
    pub(crate) fn fail_after(&self, transactions: usize) {
        self.0.lock().unwrap().fails_after = Some(transactions);
    }

    /// The most lines of a table that a script should change at once.
    pub(crate) fn set_max_lines(&self, max_lines: usize) {
        self.0.lock().unwrap().max_lines = Some(max_lines);
    }

    /// The most lines of a script.
    pub(crate) fn set_script_lines(&self, lines: usize) {
        self.0.lock().unwrap().script_lines = Some(lines);
    }

    /// There is no iptables for a family.
    pub(crate) fn uninstall(&self, family: IpFamily) {
        self.0.lock().unwrap().missing.insert(family);
    }

    /// The rules of this family cannot be read from now on.
    pub(crate) fn set_unreadable(&self, family: Option<IpFamily>) {
        self.0.lock().unwrap().unreadable = family;
    }

    /// Supports all families but this one from now on.
    pub(crate) fn set_unsupported(&self, family: Option<IpFamily>) {
        self.0.lock().unwrap().unsupported = family;
    }

    /// Whether packets between loopback addresses and other hosts are routed.
    pub(crate) fn routes_localnet(&self) -> bool {
        self.0.lock().unwrap().localnet
    }

    /// Whether sysctls are read-only from now on.
    pub(crate) fn set_sysctl_read_only(&self, is_read_only: bool) {
        self.0.lock().unwrap().is_sysctl_read_only = is_read_only;
    }

    /// Reports this suspicion once.
    pub(crate) fn suspect(&self, suspicion: Suspicion) {
        self.0.lock().unwrap().suspicions.push_back(suspicion);
    }

    /// The restores since the last call.
    pub(crate) fn take_restores(&self) -> Vec<Restore> {
        std::mem::take(&mut self.0.lock().unwrap().restores)
    }

    /// How often the rules of a family were read since the last call.
    pub(crate) fn take_saves(&self) -> usize {
        std::mem::take(&mut self.0.lock().unwrap().saves)
    }
}

impl Kernel for FakeKernel {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        let mut state = self.0.lock().unwrap();
        state.saves += 1;
        ensure!(state.unreadable != Some(family), "cannot allocate memory");
        if state.missing.contains(&family) {
            return Ok(None);
        }
        Ok(Some(state.rulesets[family].to_string()))
    }

    fn max_lines(&self) -> usize {
        self.0.lock().unwrap().max_lines.unwrap_or(usize::MAX)
    }

    fn script_lines(&self, _: usize) -> usize {
        // Less than unlimited, which a preview is.
        self.0.lock().unwrap().script_lines.unwrap_or(usize::MAX - 1)
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        let mut state = self.0.lock().unwrap();
        let fails_after = state.fails_after.take().unwrap_or(usize::MAX);
        let mut restore = Restore { family, script: script.text().to_owned(), accepted: false, steps: Vec::new() };
        let mut result = Ok(());

        for (number, lines) in transactions(script.text()).into_iter().enumerate() {
            if number == fails_after {
                result = Err(RestoreError::Failed(anyhow!("terminated by a signal")));
                break;
            }
            if state.unsupported == Some(family) && lines[0].1 == "*nat" {
                let reason = "unable to initialize table 'nat'".to_owned();
                result = Err(RestoreError::Rejected { program: "fake".to_owned(), lines: vec![lines[0].0], reason });
                break;
            }
            let mut ruleset = state.rulesets[family].clone();
            if let Err((line, reason)) = execute(&mut ruleset, &lines, &state.rejected) {
                let lines = if state.detail == ErrorDetail::Named { vec![line] } else { Vec::new() };
                result = Err(RestoreError::Rejected { program: "fake".to_owned(), lines, reason });
                break;
            }
            state.rulesets[family] = ruleset.clone();
            restore.steps.push(ruleset);
        }

        restore.accepted = result.is_ok();
        state.restores.push(restore);
        result
    }

    fn route_localnet(&mut self, is_routed: bool) -> Result<()> {
        let mut state = self.0.lock().unwrap();
        ensure!(state.localnet == is_routed || !state.is_sysctl_read_only, "read-only file system");
        state.localnet = is_routed;
        Ok(())
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
fn transactions(script: &str) -> Vec<Vec<(usize, &str)>> {
    let lines: Vec<_> = (1..).zip(script.lines()).collect();
    let all: Vec<_> = lines.split_inclusive(|(_, line)| *line == "COMMIT").map(<[_]>::to_vec).collect();
    let is_whole = |lines: &Vec<(usize, &str)>| lines.last().is_some_and(|(_, line)| *line == "COMMIT");
    assert!(all.iter().all(is_whole), "a table without COMMIT: {script}");
    all
}

/// Executes a transaction. An error has the number of the line that is rejected, and the reason.
fn execute(ruleset: &mut Ruleset, lines: &[(usize, &str)], rejected: &[String]) -> Result<(), (usize, String)> {
    let mut table = None;
    for (number, line) in lines {
        if let Some(name) = line.strip_prefix('*') {
            table = TABLES.into_iter().find(|table| table.name() == name);
        } else if *line != "COMMIT" {
            let result = table.ok_or("no such table").and_then(|table| {
                check(ruleset, table, line, rejected)?;
                ruleset.execute(&format!("*{table}\n{line}\n"));
                Ok(())
            });
            result.map_err(|reason| (*number, format!("{line}: {reason}")))?;
        }
    }
    Ok(())
}

/// Checks whether a line can be executed.
fn check(ruleset: &Ruleset, table: Table, line: &str, rejected: &[String]) -> Result<(), &'static str> {
    let ensure = |condition: bool, reason| if condition { Ok(()) } else { Err(reason) };
    let is_built_in = |name: &str| ruleset.chain(table, name).is_some_and(|chain| chain.policy.is_some());
    if let Some(declaration) = line.strip_prefix(':') {
        let name = declaration.strip_suffix(" - [0:0]").ok_or("not the declaration of a chain")?;
        ensure(!is_built_in(name), "a built-in chain has a policy")?;
        return ensure((1..=MAX_NAME).contains(&name.len()), "the name has a wrong length");
    }
    let (verb, rest) = line.split_once(' ').ok_or("not a command")?;
    let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    let rules = ruleset.chain(table, name).map(|chain| &chain.rules).ok_or("no such chain")?;
    match verb {
        "-A" | "-I" => {
            let target = target(rule).filter(|target| !TARGETS.contains(target));
            ensure(target.is_none_or(|target| ruleset.chain(table, target).is_some()), "no such target")?;
            ensure(!rejected.iter().any(|text| rule.contains(text)), "rejected by the test")
        }
        "-D" => ensure(rules.iter().any(|existing| existing == rule), "no such rule"),
        "-X" => {
            ensure(rules.is_empty(), "the chain is not empty")?;
            let mut all = ruleset.chains_of(table).flat_map(|(_, chain)| &chain.rules);
            // Most rules do not contain the name: their targets need not be read.
            let is_used = all.any(|rule| rule.contains(name) && target(rule) == Some(name));
            ensure(!is_used && !is_built_in(name), "the chain is in use")
        }
        _ => Err("no such command"),
    }
}

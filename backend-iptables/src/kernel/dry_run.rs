//! A kernel that is only read: scripts are executed on a copy of what it holds, so that what they would change can be told.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use anyhow::Result;
use proto::model::IpFamily;

use super::{Kernel, Localnet, RestoreError, Suspicion};
use crate::{plan::Script, table::Table};

/// Another kernel, and what it would hold.
#[derive(Debug)]
pub(crate) struct DryRun<K> {
    kernel: K,
    tables: BTreeMap<IpFamily, Copied>,
    localnet: Option<Localnet>,
}

/// The tables of a family, as they are and as they would be.
#[derive(Debug)]
struct Copied {
    before: Chains,
    after: Chains,
}

/// What would be written.
#[derive(Debug, Default)]
pub(crate) struct Dry {
    /// By family: what there is, and what there would be.
    pub(crate) tables: Vec<(IpFamily, Chains, Chains)>,
    /// Whether loopback addresses would be routed, or no more.
    pub(crate) localnet: Option<Localnet>,
}

/// Chains with their rules as texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chains(pub(crate) BTreeMap<(Table, String), Chain>);

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Behind its name in a list: `- [0:0]`.
    head: String,
    pub(crate) rules: Vec<String>,
}

// === impl DryRun ===

impl<K> DryRun<K> {
    pub(crate) fn new(kernel: K) -> Self {
        Self { kernel, tables: BTreeMap::new(), localnet: None }
    }

    /// What was to be written since the last call.
    pub(crate) fn take(&mut self) -> Dry {
        let tables = std::mem::take(&mut self.tables).into_iter();
        let tables = tables.map(|(family, Copied { before, after })| (family, before, after)).collect();
        Dry { tables, localnet: self.localnet.take() }
    }
}

impl DryRun<super::Tools> {
    /// As a person would call it: `iptables-nft`.
    pub(crate) async fn program(&mut self, family: IpFamily) -> Result<String> {
        self.kernel.program(family).await
    }
}

impl<K: Kernel> Kernel for DryRun<K> {
    async fn save(&mut self, family: IpFamily) -> Result<Option<String>> {
        if let Some(copied) = self.tables.get(&family) {
            return Ok(Some(copied.after.save()));
        }
        let saved = self.kernel.save(family).await?;
        if let Some(saved) = &saved {
            let before = Chains::parse(saved);
            self.tables.insert(family, Copied { after: before.clone(), before });
        }
        Ok(saved)
    }

    fn at_once(&self) -> usize {
        self.kernel.at_once()
    }

    async fn restore(&mut self, family: IpFamily, script: &Script) -> Result<(), RestoreError> {
        if let Some(copied) = self.tables.get_mut(&family) {
            copied.after.execute(script.text());
        }
        Ok(())
    }

    fn route_localnet(&mut self, localnet: Localnet) -> Result<()> {
        if super::localnet::get()? != localnet {
            self.localnet = Some(localnet);
        }
        Ok(())
    }

    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }

    async fn suspect(&mut self) -> Suspicion {
        self.kernel.suspect().await
    }
}

// === impl Chains ===

impl Chains {
    fn parse(saved: &str) -> Self {
        let mut chains = Self::default();
        chains.execute(saved);
        chains
    }

    /// What `iptables-save` prints is a script too. The copy refuses nothing: what cannot be done is left out.
    fn execute(&mut self, script: &str) {
        let mut table = None;
        for line in script.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name);
            }
            let Some(table) = table else { continue };
            if let Some((name, head)) = line.strip_prefix(':').and_then(|chain| chain.split_once(' ')) {
                let chain = Chain { head: head.to_owned(), rules: Vec::new() };
                self.0.insert((table, name.to_owned()), chain);
            } else if let Some((verb, rest)) = line.split_once(' ') {
                let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
                self.line(table, verb, chain, rule);
            }
        }
    }

    fn line(&mut self, table: Table, verb: &str, chain: &str, rule: &str) {
        let key = (table, chain.to_owned());
        if verb == "-X" {
            self.0.remove(&key);
            return;
        }
        let Some(Chain { rules, .. }) = self.0.get_mut(&key) else { return };
        match verb {
            "-A" => rules.push(rule.to_owned()),
            "-I" => rules.insert(0, rule.to_owned()),
            "-F" => rules.clear(),
            "-D" => {
                if let Some(at) = rules.iter().position(|found| found == rule) {
                    rules.remove(at);
                }
            }
            _ => {}
        }
    }

    fn save(&self) -> String {
        let mut saved = String::new();
        for table in Table::ALL {
            let chains = || self.0.iter().filter(|((of, _), _)| *of == table);
            // Writing to a String cannot fail.
            let _ = writeln!(saved, "*{table}");
            for ((_, name), Chain { head, .. }) in chains() {
                let _ = writeln!(saved, ":{name} {head}");
            }
            for ((_, name), Chain { rules, .. }) in chains() {
                for rule in rules {
                    let _ = writeln!(saved, "-A {name} {rule}");
                }
            }
            saved.push_str("COMMIT\n");
        }
        saved
    }
}

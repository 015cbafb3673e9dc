//! The rules: compared as text with what `iptables-save` prints, and written by `iptables-restore` where they differ. These are the only
//! programs that are run, at the start and when the node's or the cluster's facts change.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use backend::iptables::Variant;
use proto::model::IpFamily;
use tracing::info;

use super::RulesFound;
use crate::desired::{Rules, Table, is_ours};

/// How long another program that changes rules is waited for, in seconds.
const WAIT: &str = "5";

/// The iptables of a node, found when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Tools {
    wanted: Option<Variant>,
    found: Option<Variant>,
}

/// What is there of ours in a family.
#[derive(Debug, Default, PartialEq, Eq)]
struct Saved {
    /// Chains of ours.
    chains: Vec<(Table, String)>,
    /// The rules in them, and those of others that lead to them: table, chain, rule.
    rules: Vec<(Table, String, String)>,
}

// === impl Tools ===

impl Tools {
    pub(super) fn new(wanted: Option<Variant>) -> Self {
        Self { wanted, found: None }
    }

    /// Makes the rules of a family what they should be. Says how many lines that took.
    pub(super) fn apply(&mut self, family: IpFamily, rules: &Rules) -> Result<usize> {
        let program = self.variant()?.program(family);
        let present = Saved::parse(&save(program)?.context("it is not installed")?);
        let (script, lines) = present.script(rules);
        if lines > 0 {
            restore(program, &script)?;
        }
        Ok(lines)
    }

    /// How many lines [`Self::apply`] would take.
    pub(super) fn missing(&mut self, family: IpFamily, rules: &Rules) -> Result<usize> {
        let program = self.variant()?.program(family);
        let saved = save(program)?.context("it is not installed")?;
        Ok(Saved::parse(&saved).script(rules).1)
    }

    /// Whether the rules of a family are what they should be.
    pub(super) fn check(&mut self, family: IpFamily, rules: &Rules) -> Result<RulesFound> {
        let program = self.variant()?.program(family);
        let Some(saved) = save(program)? else { return Ok(RulesFound::Wrong) };
        let (_, lines) = Saved::parse(&saved).script(rules);
        Ok(if lines == 0 { RulesFound::Right } else { RulesFound::Wrong })
    }

    /// How many rules of ours each program has; none of those that are not installed.
    pub(super) fn count(&self) -> Result<Vec<(&'static str, usize)>> {
        let mut counts = Vec::new();
        for program in programs() {
            if let Some(saved) = save(program)? {
                let saved = Saved::parse(&saved);
                counts.push((program, saved.chains.len()));
            }
        }
        Ok(counts)
    }

    /// The families of which there are rules of ours.
    pub(super) fn families(&self) -> Result<Vec<IpFamily>> {
        let counts = self.count()?;
        let is_there = |family: &IpFamily| {
            let programs = Variant::ALL.map(|variant| variant.program(*family));
            counts.iter().any(|(program, chains)| *chains > 0 && programs.contains(program))
        };
        Ok(IpFamily::ALL.into_iter().filter(is_there).collect())
    }

    /// Removes all rules and chains of ours, whichever program has them.
    pub(super) fn remove(&self) -> Result<()> {
        for program in programs() {
            let Some(saved) = save(program)? else { continue };
            let script = Saved::parse(&saved).removal();
            if !script.is_empty() {
                restore(program, &script)?;
            }
        }
        Ok(())
    }

    /// Which one it is.
    fn variant(&mut self) -> Result<Variant> {
        if let Some(found) = self.wanted.or(self.found) {
            return Ok(found);
        }
        let default = run("iptables", &["--version"], "")?.context("iptables is not installed")?;
        let mut saved = Vec::new();
        for variant in Variant::ALL {
            saved.push((variant, save(variant.program(IpFamily::V4))?.unwrap_or_default()));
        }
        let variant = Variant::choose(&saved, Variant::from_version(&default));
        info!(program = variant.program(IpFamily::V4), "iptables");
        self.found = Some(variant);
        Ok(variant)
    }
}

fn programs() -> impl Iterator<Item = &'static str> {
    Variant::ALL.into_iter().flat_map(|variant| IpFamily::ALL.map(|family| variant.program(family)))
}

// === impl Saved ===

impl Saved {
    fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name);
            }
            let Some(table) = table else { continue };
            if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next())
                && is_ours(chain)
            {
                saved.chains.push((table, chain.to_owned()));
            }
            if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) {
                let target = rule.rsplit_once("-j ").map_or("", |(_, target)| target);
                if is_ours(chain) || is_ours(target) {
                    saved.rules.push((table, chain.to_owned(), rule.to_owned()));
                }
            }
        }
        saved
    }

    fn rules_of<'a>(&'a self, table: Table, chain: &'a str) -> impl Iterator<Item = &'a str> {
        let is_its = move |(of, name, _): &&(Table, String, String)| *of == table && name == chain;
        self.rules.iter().filter(is_its).map(|(_, _, rule)| rule.as_str())
    }

    /// What makes the rules what they should be, and in how many lines.
    fn script(&self, wanted: &Rules) -> (String, usize) {
        let (mut script, mut total) = (String::new(), 0);
        for table in Table::ALL {
            let (mut declared, mut body, mut lines) = (String::new(), String::new(), 0);
            for chain in wanted.chains.iter().filter(|chain| chain.table == table) {
                let is_there = self.chains.iter().any(|(of, name)| *of == table && name == chain.name);
                if is_there && self.rules_of(table, chain.name).eq(chain.rules.iter().map(String::as_str)) {
                    continue;
                }
                // Declaring a chain empties it. Writing to a String cannot fail.
                let _ = writeln!(declared, ":{} - [0:0]", chain.name);
                lines += 1 + chain.rules.len();
                for rule in &chain.rules {
                    let _ = writeln!(body, "-A {} {rule}", chain.name);
                }
            }
            for hook in wanted.hooks.iter().filter(|hook| hook.table == table) {
                if !self.rules_of(table, hook.chain).any(|rule| rule == hook.rule) {
                    lines += 1;
                    let _ = writeln!(body, "-I {} {}", hook.chain, hook.rule);
                }
            }
            if lines > 0 {
                total += lines;
                let _ = write!(script, "*{}\n{declared}{body}COMMIT\n", table.name());
            }
        }
        (script, total)
    }

    /// What removes all of it.
    fn removal(&self) -> String {
        let mut script = String::new();
        for table in Table::ALL {
            let chains: Vec<_> = self.chains.iter().filter(|(of, _)| *of == table).collect();
            let jumps: Vec<_> = self.rules.iter().filter(|(of, chain, _)| *of == table && !is_ours(chain)).collect();
            if chains.is_empty() && jumps.is_empty() {
                continue;
            }
            let _ = writeln!(script, "*{}", table.name());
            for (_, chain) in &chains {
                let _ = writeln!(script, ":{chain} - [0:0]");
            }
            for (_, chain, rule) in &jumps {
                let _ = writeln!(script, "-D {chain} {rule}");
            }
            for (_, chain) in &chains {
                let _ = writeln!(script, "-X {chain}");
            }
            script.push_str("COMMIT\n");
        }
        script
    }
}

/// `None` when it is not installed.
fn save(program: &str) -> Result<Option<String>> {
    run(&format!("{program}-save"), &[], "")
}

fn restore(program: &str, script: &str) -> Result<()> {
    let ended = run(&format!("{program}-restore"), &["--noflush", "--wait", WAIT], script)?;
    ended.map(drop).with_context(|| format!("{program}-restore is not installed"))
}

/// Runs a program to its end; `None` when there is none.
fn run(program: &str, arguments: &[&str], input: &str) -> Result<Option<String>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        child => child.with_context(|| format!("start {program}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says why below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("wait for {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}", complaint.lines().collect::<Vec<_>>().join("; "));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{Chain, Hook};

    fn wanted() -> Rules {
        let rules = vec!["-j DROP".to_owned()];
        let chain = Chain { table: Table::Mangle, name: "FAIRLEAD-IPVS", rules };
        let hook = Hook { table: Table::Mangle, chain: "INPUT", rule: "-j FAIRLEAD-IPVS".to_owned() };
        Rules { chains: vec![chain], hooks: vec![hook] }
    }

    const SAVED: &str = "# a remark\n*mangle\n:INPUT ACCEPT [0:0]\n:FAIRLEAD-IPVS - [0:0]\n:OTHERS - [0:0]\n\
        -A INPUT -j OTHERS\n-A INPUT -j FAIRLEAD-IPVS\n-A FAIRLEAD-IPVS -j DROP\n-A OTHERS -j ACCEPT\nCOMMIT\n";

    #[test]
    fn what_is_there_is_not_written_again() {
        assert_eq!(Saved::parse(SAVED).script(&wanted()), (String::new(), 0));
    }

    #[test]
    fn what_differs_is_written_and_others_are_not_touched() {
        let empty = "*mangle\n:INPUT ACCEPT [0:0]\nCOMMIT\n";
        let whole = "*mangle\n:FAIRLEAD-IPVS - [0:0]\n-A FAIRLEAD-IPVS -j DROP\n-I INPUT -j FAIRLEAD-IPVS\nCOMMIT\n";
        assert_eq!(Saved::parse(empty).script(&wanted()), (whole.to_owned(), 3));
        let changed = SAVED.replace("FAIRLEAD-IPVS -j DROP", "FAIRLEAD-IPVS -j ACCEPT");
        let chain = "*mangle\n:FAIRLEAD-IPVS - [0:0]\n-A FAIRLEAD-IPVS -j DROP\nCOMMIT\n";
        assert_eq!(Saved::parse(&changed).script(&wanted()), (chain.to_owned(), 2));
    }

    #[test]
    fn what_is_ours_is_removed_and_nothing_else() {
        let removal = "*mangle\n:FAIRLEAD-IPVS - [0:0]\n-D INPUT -j FAIRLEAD-IPVS\n-X FAIRLEAD-IPVS\nCOMMIT\n";
        assert_eq!(Saved::parse(SAVED).removal(), removal);
        assert_eq!(Saved::parse("*mangle\n:OTHERS - [0:0]\n-A INPUT -j OTHERS\nCOMMIT\n").removal(), "");
    }
}

//! `fairlead cleanup`: removes the kernel objects of a backend or of kube-proxy, and lists them.

use std::{collections::BTreeSet, fmt::Display, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use backend::{Backend as _, InstalledObject, StateFile, dataplane::DataplaneOptions};
use backend_iptables::{LoopbackRouting, OwnChains};
use clap::ValueEnum as _;
use iptables::{Program, SavedRules, Variant, save_all, save_variants};
use runtime::Shutdown;
use serde::Serialize;

use super::{
    dataplanes::{DataplaneSettings, programmed, with_backend},
    uninterrupted,
};
use crate::{
    cli::{CleanupArgs, IptablesArgs, IpvsArgs, OtherProxy},
    instance::{Attempt, Holder, InstanceLock},
    modes::Mode,
    print,
    table::TextTable,
    takeover::{LeftoverObject, Leftovers, kube_proxy_may_run, running_kube_proxies},
};

/// The objects that were removed, or would be with `--dry-run`.
#[derive(Debug, Serialize)]
struct CleanupReport {
    dry_run: bool,
    removed: Vec<InstalledObject>,
    notes: Vec<String>,
}

/// Removes all objects of backends or of kube-proxy. A signal does not end it; with `--keep-running` it
/// then waits for a signal.
pub(crate) async fn run(args: CleanupArgs, mut shutdown: Shutdown) -> Result<()> {
    uninterrupted(remove_all(&args), shutdown.clone()).await?;
    if args.keep_running {
        shutdown.recv().await;
    }
    Ok(())
}

async fn remove_all(args: &CleanupArgs) -> Result<()> {
    let modes = if args.all { Mode::value_variants().to_vec() } else { args.backend.into_iter().collect() };
    let mut report = CleanupReport { dry_run: args.dry_run, removed: Vec::new(), notes: Vec::new() };

    let mut errors = Vec::new();
    if !modes.is_empty() {
        errors = remove_backends(&modes, args, &mut report).await?;
    }
    if let Some(OtherProxy::KubeProxy) = args.of {
        remove_kube_proxy(args.force, &mut report).await?;
    }

    if errors.is_empty() || !report.removed.is_empty() {
        print::value(args.output, &report, || report.table())?;
    }
    ensure!(errors.is_empty(), "{}", errors.join("; "));
    Ok(())
}

/// Removes the objects and the state of backends. Returns the errors; after each of them the rest is removed.
async fn remove_backends(modes: &[Mode], args: &CleanupArgs, report: &mut CleanupReport) -> Result<Vec<String>> {
    // Prevents a backend from starting meanwhile.
    let lock = match InstanceLock::try_acquire("`fairlead cleanup`")? {
        Attempt::Acquired(lock) => Some(lock),
        Attempt::HeldBy(holder) => {
            refuse_running(modes, &holder, report)?;
            None
        }
    };

    let mut errors = Vec::new();
    for &mode in modes {
        if let Err(error) = remove(mode, args, report).await {
            errors.push(format!("cannot remove the objects of backend {}: {error:#}", mode.name()));
        }
    }

    // The rules of resets and the state are those of any mode, so a backend that runs needs them.
    if lock.is_some() {
        let runs_iptables = modes.iter().any(|mode| mode.traits().runs_iptables);
        match backend::remove_reset_rules(runs_iptables, args.dry_run).await {
            Ok(rules) => report.removed.extend(rules),
            Err(error) => errors.push(format!("cannot remove rules of resets: {error:#}")),
        }
        remove_state(&args.state_dir, report)?;
    }
    Ok(errors)
}

/// Fails if the running instance has one of these modes; otherwise notes that its state is kept.
fn refuse_running(modes: &[Mode], holder: &Holder, report: &mut CleanupReport) -> Result<()> {
    // An instance that does not answer may have any mode.
    if let Some(running) = Mode::value_variants().iter().find(|mode| holder.is_backend(**mode))
        && !modes.contains(running)
    {
        report.notes.push(format!("the state is kept: {holder} runs on this node"));
        return Ok(());
    }
    report.refuse(&format!("{holder} runs on this node and would write its rules again: stop it first"))
}

/// Removes the kernel objects of a mode.
async fn remove(mode: Mode, args: &CleanupArgs, report: &mut CleanupReport) -> Result<()> {
    if mode == Mode::Iptables {
        return remove_iptables(args.iptables.variant(), report).await;
    }

    let iptables = IptablesArgs { variant: args.iptables.clone(), ..IptablesArgs::default() };
    let ipvs = IpvsArgs { exclude: args.exclude.clone(), ..IpvsArgs::default() };
    let settings = DataplaneSettings::new(DataplaneOptions::default(), iptables, ipvs);
    with_backend!(mode, settings, |mut backend| {
        report.removed.extend(backend.installed_objects().await?);
        if !report.dry_run {
            backend.cleanup().await?;
        }
    });
    Ok(())
}

/// Removes the rules of mode iptables, of one variant or both. Fails at the end if it could not read those of a
/// program.
async fn remove_iptables(variant: Option<Variant>, report: &mut CleanupReport) -> Result<()> {
    let all_saved = match variant {
        Some(variant) => save_variants(&[variant]).await?,
        None => save_all().await?,
    };
    if all_saved.is_empty() {
        report.notes.push("iptables is not installed, so rules written with it cannot be found or removed".to_owned());
    }

    let mut ours = Vec::new();
    let mut result = Ok(());
    for saved in all_saved {
        match backend_iptables::own_chains(&saved) {
            Ok(OwnChains { count: 0, .. }) => {}
            Ok(chains) => ours.push((saved, chains)),
            Err(error) => result = Err(error),
        }
    }

    if report.dry_run {
        list_chains(&ours, report)?;
    } else {
        remove_chains(&ours, report).await?;
    }
    result
}

/// Reports the chains that would be removed.
fn list_chains(ours: &[(SavedRules, OwnChains)], report: &mut CleanupReport) -> Result<()> {
    for (saved, chains) in ours {
        report.add(saved.program.name, "chain".to_owned(), chains.count);
        report.note_kept(saved.program, chains);
        if kube_proxy_may_run(saved)? {
            let note = "found chains of kube-proxy's iptables mode: if it is running, the chains that it uses are kept";
            report.notes.push(format!("{}: {note}", saved.program));
        }
    }
    Ok(())
}

/// Removes chains. kube-proxy uses chains of the same names: where it runs in mode iptables, they are kept.
async fn remove_chains(ours: &[(SavedRules, OwnChains)], report: &mut CleanupReport) -> Result<()> {
    let saved: Vec<_> = ours.iter().map(|(saved, _)| saved).collect();
    let shared = running_kube_proxies(&saved).await?;

    for (SavedRules { program, .. }, chains) in ours {
        let removed = if shared.contains(program) {
            let note =
                "kube-proxy runs in mode iptables: the chains that it uses are kept, and it has written them again";
            report.notes.push(format!("{program}: {note}"));
            backend_iptables::remove_unshared(*program).await?
        } else {
            backend_iptables::remove(*program, LoopbackRouting::Reset).await?;
            report.note_kept(*program, chains);
            chains.count
        };
        if removed > 0 {
            report.add(program.name, "chain".to_owned(), removed);
        }
    }
    Ok(())
}

/// Removes the state file.
fn remove_state(state_dir: &Path, report: &mut CleanupReport) -> Result<()> {
    for file in StateFile::files(&state_dir.join("state")) {
        if !file.exists() {
            continue;
        }
        report.add("file", file.display().to_string(), 1);
        if !report.dry_run {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

/// Removes the rules of kube-proxy; without `force` only if a backend of ours serves this node.
async fn remove_kube_proxy(force: bool, report: &mut CleanupReport) -> Result<()> {
    let leftovers = Leftovers::find().await.context("cannot list the objects of kube-proxy")?;
    let objects = leftovers.objects();
    report.notes.extend(leftovers.notes());

    if !force {
        let served: Vec<_> = programmed().await?.into_iter().flat_map(|(_, families)| families).collect();
        let touched: BTreeSet<_> = objects.iter().filter_map(|object| object.family).collect();
        if let Some(family) = touched.iter().find(|family| !served.contains(family)) {
            report.refuse(&format!(
                "no backend of Fairlead serves {family} Services on this node, so they would stop working: start a \
                 backend and wait until it is ready, or use --force"
            ))?;
        }
    }

    let in_use = if report.dry_run { Vec::new() } else { leftovers.remove().await? };
    for object in objects {
        if in_use.contains(&object) {
            let LeftoverObject { subsystem, kind, .. } = object;
            report.notes.push(format!("{subsystem} {kind} is kept: rules of other programs use it"));
        } else {
            report.add(&object.subsystem, object.kind, object.count);
        }
    }
    Ok(())
}

impl CleanupReport {
    /// Fails; with `--dry-run` notes that the removal would.
    fn refuse(&mut self, why: &str) -> Result<()> {
        ensure!(self.dry_run, "nothing was removed: {why}");
        self.notes.push(format!("cleanup would be refused now: {why}"));
        Ok(())
    }

    fn add(&mut self, subsystem: &str, kind: String, count: usize) {
        self.removed.push(InstalledObject { subsystem: subsystem.to_owned(), kind, count });
    }

    /// Names the chains that are only emptied.
    fn note_kept(&mut self, program: Program, chains: &OwnChains) {
        for chain in &chains.kept {
            self.notes.push(format!("{program}: {chain}, is kept without its rules"));
        }
    }

    fn table(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        if self.removed.is_empty() {
            return format!("nothing to remove\n{notes}");
        }

        let removed_from = if self.dry_run { "WOULD REMOVE FROM" } else { "REMOVED FROM" };
        let mut table = TextTable::new(&[removed_from, "WHAT", "COUNT"]);
        for InstalledObject { subsystem, kind, count } in &self.removed {
            table.row([subsystem as &dyn Display, kind, count]);
        }
        format!("{table}{notes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_objects_and_notes_are_printed() {
        let mut report = CleanupReport { dry_run: true, removed: Vec::new(), notes: vec!["one note".to_owned()] };
        assert_eq!(report.table(), "nothing to remove\nnote: one note\n");
        report.add("nf_tables", "table ip kube-proxy".to_owned(), 1);
        let expected = "\
WOULD REMOVE FROM   WHAT                  COUNT
nf_tables           table ip kube-proxy   1
note: one note
";
        assert_eq!(report.table(), expected);
    }
}

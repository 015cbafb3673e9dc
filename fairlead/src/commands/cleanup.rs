//! `fairlead cleanup`: removes the kernel objects of a backend or of kube-proxy, and lists them.

use std::{collections::BTreeSet, fmt::Display, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use backend::{Backend as _, InstalledObject, StateFile, dataplane::DataplaneOptions};
use backend_iptables::{LoopbackRouting, OwnChains};
use clap::ValueEnum as _;
use iptables::{Program, SavedRules, Variant, save_all, save_variants};
use serde::Serialize;

use super::dataplanes::{DataplaneSettings, programmed, with_backend};
use crate::{
    cli::{CleanupArgs, IptablesArgs, IpvsArgs, OtherProxy},
    config::BackendName,
    instance::{Attempt, Holder, InstanceLock},
    print,
    table::Table,
    takeover::{Leftovers, kube_proxy_may_run, running_kube_proxies},
};

/// The objects that were removed, or would be with `--dry-run`.
#[derive(Debug, Serialize)]
struct CleanupReport {
    dry_run: bool,
    removed: Vec<InstalledObject>,
    notes: Vec<String>,
}

/// Removes all objects of backends or of kube-proxy.
pub(crate) async fn run(args: CleanupArgs) -> Result<()> {
    let CleanupArgs { backend, all, of, dry_run, force, state_dir, output, iptables, exclude, keep_running: _ } = args;
    let backends = if all { BackendName::value_variants().to_vec() } else { backend.into_iter().collect() };
    let mut report = CleanupReport { dry_run, removed: Vec::new(), notes: Vec::new() };
    // The other parts are removed after an error.
    let mut errors = Vec::new();
    if !backends.is_empty() {
        // Prevents a backend from starting meanwhile.
        let lock = match InstanceLock::try_acquire("`fairlead cleanup`")? {
            Attempt::Acquired(lock) => Some(lock),
            Attempt::HeldBy(holder) => {
                refuse_running(&backends, &holder, &mut report)?;
                None
            }
        };
        for &name in &backends {
            let iptables = IptablesArgs { variant: iptables.clone(), ..IptablesArgs::default() };
            let ipvs = IpvsArgs { exclude: exclude.clone(), ..IpvsArgs::default() };
            let settings = DataplaneSettings::new(DataplaneOptions::default(), iptables, ipvs);
            if let Err(error) = remove(name, settings, &mut report).await {
                errors.push(format!("cannot remove the objects of backend {}: {error:#}", name.name()));
            }
        }
        if lock.is_some() {
            let programs = backends.iter().any(|name| *name != BackendName::Nftables);
            match backend::remove_reset_rules(programs, dry_run).await {
                Ok(rules) => report.removed.extend(rules),
                Err(error) => errors.push(format!("cannot remove rules of resets: {error:#}")),
            }
            remove_state(&state_dir, &mut report)?;
        }
    }
    if let Some(OtherProxy::KubeProxy) = of {
        remove_kube_proxy(force, &mut report).await?;
    }
    if errors.is_empty() || !report.removed.is_empty() {
        print::value(output, &report, || report.table())?;
    }
    ensure!(errors.is_empty(), "{}", errors.join("; "));
    Ok(())
}

/// Fails if the running instance is one of these backends; otherwise notes that its state is kept.
fn refuse_running(backends: &[BackendName], holder: &Holder, report: &mut CleanupReport) -> Result<()> {
    // An instance that does not answer may be any backend.
    if let Some(running) = BackendName::value_variants().iter().find(|name| holder.is_backend(**name))
        && !backends.contains(running)
    {
        report.notes.push(format!("the state is kept: {holder} runs on this node"));
        return Ok(());
    }
    report.refuse(&format!("{holder} runs on this node and would write its rules again: stop it first"))
}

/// Removes the kernel objects of a backend.
async fn remove(name: BackendName, settings: DataplaneSettings, report: &mut CleanupReport) -> Result<()> {
    if name == BackendName::Iptables {
        return remove_iptables(settings.variant.wanted(), report).await;
    }
    with_backend!(name, settings, |mut backend| {
        report.removed.extend(backend.installed_objects().await?);
        if !report.dry_run {
            backend.cleanup().await?;
        }
    });
    Ok(())
}

/// Removes the rules of the iptables backend, of one variant or both. kube-proxy uses chains of the same names: where
/// it runs in mode iptables, they are kept. Fails at the end if it could not read those of a program.
async fn remove_iptables(variant: Option<Variant>, report: &mut CleanupReport) -> Result<()> {
    let saved = match variant {
        Some(variant) => save_variants(&[variant]).await?,
        None => save_all().await?,
    };
    if saved.is_empty() {
        report.notes.push("iptables is not installed here: rules that were made with it are not found".to_owned());
    }
    let (mut ours, mut read) = (Vec::new(), Ok(()));
    for saved in saved {
        match backend_iptables::own_chains(&saved) {
            Ok(OwnChains { count: 0, .. }) => {}
            Ok(chains) => ours.push((saved, chains)),
            Err(error) => read = Err(error),
        }
    }
    if report.dry_run {
        for (saved, chains) in ours {
            report.removed(saved.program.name, "chain".to_owned(), chains.count);
            report.note_kept(saved.program, &chains);
            if kube_proxy_may_run(&saved)? {
                let note = "kube-proxy has been here in mode iptables: if it runs, the chains that it uses are kept";
                report.notes.push(format!("{}: {note}", saved.program));
            }
        }
        return read;
    }
    let saved: Vec<_> = ours.iter().map(|(saved, _)| saved).collect();
    let shared = running_kube_proxies(&saved).await?;
    for (SavedRules { program, .. }, chains) in ours {
        let removed = if shared.contains(&program) {
            let note =
                "kube-proxy runs in mode iptables: the chains that it uses are kept, and it has written them again";
            report.notes.push(format!("{program}: {note}"));
            backend_iptables::remove_unshared(program).await?
        } else {
            backend_iptables::remove(program, LoopbackRouting::Reset).await?;
            report.note_kept(program, &chains);
            chains.count
        };
        if removed > 0 {
            report.removed(program.name, "chain".to_owned(), removed);
        }
    }
    read
}

/// Removes the state file.
fn remove_state(state_dir: &Path, report: &mut CleanupReport) -> Result<()> {
    let files = StateFile::files(&state_dir.join("state"));
    for file in files.into_iter().filter(|file| file.exists()) {
        report.removed("file", file.display().to_string(), 1);
        if !report.dry_run {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

/// Removes the rules of kube-proxy; without `force` only if a backend of ours serves this node.
async fn remove_kube_proxy(force: bool, report: &mut CleanupReport) -> Result<()> {
    let leftovers = Leftovers::find().await.context("cannot list the objects of kube-proxy")?;
    let items = leftovers.objects();
    let touched: BTreeSet<_> = items.iter().filter_map(|item| item.family).collect();
    report.notes.extend(leftovers.notes());

    let served: Vec<_> = programmed().await?.into_iter().flat_map(|(_, families)| families).collect();
    let unserved = touched.iter().find(|family| !served.contains(family));
    if let Some(family) = unserved.filter(|_| !force) {
        report.refuse(&format!(
            "no backend of Fairlead serves {family} Services on this node, so they would stop working: start a backend \
             and wait until it is ready, or use --force"
        ))?;
    }
    let used = if report.dry_run { Vec::new() } else { leftovers.remove().await? };
    for item in items {
        if used.contains(&item) {
            report.notes.push(format!("{} {} is kept: rules of other programs use it", item.subsystem, item.kind));
        } else {
            report.removed(&item.subsystem, item.kind, item.count);
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

    fn removed(&mut self, subsystem: &str, kind: String, count: usize) {
        self.removed.push(InstalledObject { subsystem: subsystem.to_owned(), kind, count });
    }

    /// Names the chains that are only emptied.
    fn note_kept(&mut self, program: Program, chains: &OwnChains) {
        let notes = chains.kept.iter();
        self.notes.extend(notes.map(|chain| format!("{program}, {chain}: it is kept, but without its rules")));
    }

    fn table(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        if self.removed.is_empty() {
            return format!("nothing to remove\n{notes}");
        }
        let mut table = Table::new(&[if self.dry_run { "WOULD REMOVE FROM" } else { "REMOVED FROM" }, "WHAT", "COUNT"]);
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
        report.removed("nf_tables", "table ip kube-proxy".to_owned(), 1);
        let expected = "\
WOULD REMOVE FROM   WHAT                  COUNT
nf_tables           table ip kube-proxy   1
note: one note
";
        assert_eq!(report.table(), expected);
    }
}

//! `fairlead cleanup`: removes the kernel objects of a backend or of kube-proxy, and lists them.

use std::{collections::BTreeSet, fmt::Display, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use backend::{Backend, InstalledObject, Store};
use serde::Serialize;
use takeover::Leftovers;

use super::backend::{DataplaneSettings, programmed, with_backend};
use crate::{
    cli::{CleanupArgs, IptablesArgs, IpvsArgs, OtherProxy, OwnerArgs},
    print,
    table::Table,
};

/// The objects that were removed, or would be with `--dry-run`.
#[derive(Debug, Serialize)]
struct CleanupReport {
    dry_run: bool,
    removed: Vec<RemovedObjects>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RemovedObjects {
    subsystem: String,
    object: String,
    count: usize,
}

/// Removes all objects of a backend or of kube-proxy.
pub(crate) async fn run(args: CleanupArgs) -> Result<()> {
    let CleanupArgs { owner: OwnerArgs { backend, of }, dry_run, force, state_dir, output, iptables, exclude } = args;
    iptables.validate(backend)?;
    exclude.validate(backend)?;
    let mut report = CleanupReport { dry_run, removed: Vec::new(), notes: Vec::new() };
    if let Some(name) = backend {
        let iptables = IptablesArgs { variant: iptables, ..IptablesArgs::default() };
        let ipvs = IpvsArgs { exclude, ..IpvsArgs::default() };
        let settings = DataplaneSettings { iptables, ipvs, ..DataplaneSettings::default() };
        with_backend!(open, name, settings, |mut backend| {
            let items = backend.installed_objects().await?;
            remove(backend, items, &state_dir, &mut report).await?;
        });
    }
    if let Some(OtherProxy::KubeProxy) = of {
        remove_kube_proxy(force, &mut report).await?;
    }
    print::value(output, &report, || report.table())
}

/// Removes the objects and the state of a backend.
async fn remove(
    mut backend: impl Backend,
    items: Vec<InstalledObject>,
    state_dir: &Path,
    report: &mut CleanupReport,
) -> Result<()> {
    for InstalledObject { subsystem, kind, count } in items {
        report.removed(&subsystem, kind, count);
    }
    let files = Store::files(&state_dir.join("state"));
    let files: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
    for file in &files {
        report.removed("file", file.display().to_string(), 1);
    }
    if !report.dry_run {
        backend.cleanup().await?;
        for file in files {
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
        let why = format!(
            "no backend of Fairlead serves {family} Services on this node, so they would stop working: start a backend \
             and wait until it is ready, or use --force"
        );
        if !report.dry_run {
            bail!("nothing was removed: {why}");
        }
        report.notes.push(format!("cleanup would be refused now: {why}"));
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
    fn removed(&mut self, subsystem: &str, object: String, count: usize) {
        self.removed.push(RemovedObjects { subsystem: subsystem.to_owned(), object, count });
    }

    fn table(&self) -> String {
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        if self.removed.is_empty() {
            return format!("nothing to remove\n{notes}");
        }
        let mut table = Table::new(&[if self.dry_run { "WOULD REMOVE FROM" } else { "REMOVED FROM" }, "WHAT", "COUNT"]);
        for RemovedObjects { subsystem, object, count } in &self.removed {
            table.row([subsystem as &dyn Display, object, count]);
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

//! `fairlead cleanup`: takes out of the kernel what a backend has put there, or what kube-proxy has, and says what it was.

mod report;

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use backend::{Backend, InstalledObject, Store, dataplane::DataplaneOptions};
use backend_ipvs::Settings;
use takeover::Leftovers;

use super::backend::{ipvs, nft};
use crate::cli::{BackendName, CleanupArgs, Predecessor, WhoseArgs};
use report::Report;

/// Whether anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    DryRun,
    Remove,
}

/// Whether kube-proxy's rules may go when there are none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    Required,
    /// Who says so knows that Services end.
    Optional,
}

/// Removes everything of a backend, or of kube-proxy.
pub(crate) async fn run(args: CleanupArgs) -> Result<()> {
    let CleanupArgs { whose: WhoseArgs { backend, of }, dry_run, force, state_dir, output, iptables, exclude } = args;
    iptables.check(backend)?;
    exclude.check(backend)?;
    let mode = if dry_run { Mode::DryRun } else { Mode::Remove };
    let mut report = Report::new(mode);
    match backend {
        Some(BackendName::Nft) => {
            let mut backend = nft(DataplaneOptions::default())?;
            let items = backend.installed_objects().await?;
            remove(backend, items, &state_dir, mode, &mut report).await?;
        }
        Some(BackendName::Iptables) => {
            let mut backend = backend_iptables::open(DataplaneOptions::default(), iptables.variant());
            let items = backend.installed_objects().await?;
            remove(backend, items, &state_dir, mode, &mut report).await?;
        }
        Some(BackendName::Ipvs) => {
            let settings = Settings { exclude: exclude.ipvs_exclude_cidrs, ..Settings::default() };
            let mut backend = ipvs(settings)?;
            let items = backend.installed_objects().await?;
            remove(backend, items, &state_dir, mode, &mut report).await?;
        }
        None => {}
    }
    if let Some(Predecessor::KubeProxy) = of {
        let successor = if force { Successor::Optional } else { Successor::Required };
        remove_kube_proxys(successor, mode, &mut report).await?;
    }
    report.print(output)
}

/// What a backend has put into the kernel, and its state.
async fn remove(
    mut backend: impl Backend,
    items: Vec<InstalledObject>,
    state_dir: &Path,
    mode: Mode,
    report: &mut Report,
) -> Result<()> {
    for InstalledObject { subsystem, kind, count } in items {
        report.removed(&subsystem, kind, count);
    }
    let files = Store::files(&state_dir.join("state"));
    let files: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
    for file in &files {
        report.removed("file", file.display().to_string(), 1);
    }
    if mode == Mode::Remove {
        backend.cleanup().await?;
        for file in files {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

async fn remove_kube_proxys(successor: Successor, mode: Mode, report: &mut Report) -> Result<()> {
    let leftovers = Leftovers::find().await.context("cannot look for what kube-proxy has left")?;
    let items = leftovers.objects();
    let touched: BTreeSet<_> = items.iter().filter_map(|item| item.family).collect();
    leftovers.notes().into_iter().for_each(|note| report.note(note));

    let mut served = backend_nft::programmed_families().await?;
    served.extend(backend_iptables::programmed_families().await?);
    served.extend(backend_ipvs::programmed_families().await?);
    let unserved = touched.iter().find(|family| !served.contains(family));
    if let (Some(family), Successor::Required) = (unserved, successor) {
        let why = format!(
            "Fairlead has programmed no {family} Services on this node, so they would end: start a backend and wait until it is \
             ready, or say --force"
        );
        match mode {
            Mode::DryRun => report.note(format!("it would be refused now: {why}")),
            Mode::Remove => bail!("nothing was removed: {why}"),
        }
    }
    let used = match mode {
        Mode::DryRun => Vec::new(),
        Mode::Remove => leftovers.remove().await?,
    };
    for item in items {
        if used.contains(&item) {
            report.note(format!("{} {} stays, for rules of others use it", item.subsystem, item.kind));
        } else {
            report.removed(&item.subsystem, item.kind, item.count);
        }
    }
    Ok(())
}

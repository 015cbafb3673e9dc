//! `fairlead cleanup`: removes the kernel objects of a backend or of kube-proxy, and lists them.

mod report;

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use backend::{Backend, InstalledObject, Store, dataplane::DataplaneOptions};
use backend_ipvs::Settings;
use takeover::Leftovers;

use super::backend::{ipvs, nftables};
use crate::cli::{BackendName, CleanupArgs, OtherProxy, OwnerArgs};
use report::CleanupReport;

/// Whether objects are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    DryRun,
    Remove,
}

/// Whether kube-proxy's rules are kept unless a backend of ours serves this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    Required,
    /// With `--force`: Services stop working.
    Optional,
}

/// Removes all objects of a backend or of kube-proxy.
pub(crate) async fn run(args: CleanupArgs) -> Result<()> {
    let CleanupArgs { owner: OwnerArgs { backend, of }, dry_run, force, state_dir, output, iptables, exclude } = args;
    iptables.validate(backend)?;
    exclude.validate(backend)?;
    let mode = if dry_run { Mode::DryRun } else { Mode::Remove };
    let mut report = CleanupReport::new(mode);
    match backend {
        Some(BackendName::Nftables) => {
            let mut backend = nftables(DataplaneOptions::default())?;
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
    if let Some(OtherProxy::KubeProxy) = of {
        let successor = if force { Successor::Optional } else { Successor::Required };
        remove_kube_proxy(successor, mode, &mut report).await?;
    }
    report.print(output)
}

/// Removes the objects and the state of a backend.
async fn remove(
    mut backend: impl Backend,
    items: Vec<InstalledObject>,
    state_dir: &Path,
    mode: Mode,
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
    if mode == Mode::Remove {
        backend.cleanup().await?;
        for file in files {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

async fn remove_kube_proxy(successor: Successor, mode: Mode, report: &mut CleanupReport) -> Result<()> {
    let leftovers = Leftovers::find().await.context("cannot list the objects of kube-proxy")?;
    let items = leftovers.objects();
    let touched: BTreeSet<_> = items.iter().filter_map(|item| item.family).collect();
    leftovers.notes().into_iter().for_each(|note| report.note(note));

    let mut served = backend_nft::programmed_families().await?;
    served.extend(backend_iptables::programmed_families().await?);
    served.extend(backend_ipvs::programmed_families().await?);
    let unserved = touched.iter().find(|family| !served.contains(family));
    if let (Some(family), Successor::Required) = (unserved, successor) {
        let why = format!(
            "no backend of Fairlead serves {family} Services on this node, so they would stop working: start a backend \
             and wait until it is ready, or use --force"
        );
        match mode {
            Mode::DryRun => report.note(format!("cleanup would be refused now: {why}")),
            Mode::Remove => bail!("nothing was removed: {why}"),
        }
    }
    let used = match mode {
        Mode::DryRun => Vec::new(),
        Mode::Remove => leftovers.remove().await?,
    };
    for item in items {
        if used.contains(&item) {
            report.note(format!("{} {} is kept: rules of other programs use it", item.subsystem, item.kind));
        } else {
            report.removed(&item.subsystem, item.kind, item.count);
        }
    }
    Ok(())
}

//! `fairlead diff`: what should be in this node's kernel against what is there. Writes nothing.
//!
//! ```text
//!   frontend (as an observer) | state file ──▶ NodeState ─┬─▶ Preview of a backend ──▶ what it would write
//!                                                         └─▶ kube_proxy ────────────▶ what its rules do otherwise
//! ```

pub(crate) mod kube_proxy;
mod report;

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use backend::{NodeState, Preview, PreviewReport, StoredState, dataplane::DataplaneOptions};
use runtime::Shutdown;

use super::view::{Event, View};
use crate::{
    cli::{BackendName, DiffArgs, IptablesArgs, IpvsArgs, Predecessor},
    print,
};
use report::Report;
pub(crate) use report::summary;

/// As diff(1): something differs, and it cannot be told.
const DIFFERS: u8 = 1;
const TROUBLE: u8 = 2;

/// Compares, prints, and says by the exit code whether there is a difference.
pub(crate) async fn run(args: DiffArgs, shutdown: Shutdown) -> Result<ExitCode> {
    match compare(args, shutdown).await {
        Ok(Found::Nothing) => Ok(ExitCode::SUCCESS),
        Ok(Found::Differences) => Ok(ExitCode::from(DIFFERS)),
        Err(error) if error.is::<print::NobodyReads>() => Err(error),
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            Ok(ExitCode::from(TROUBLE))
        }
    }
}

/// What has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Differences,
}

async fn compare(args: DiffArgs, shutdown: Shutdown) -> Result<Found> {
    let DiffArgs { backend, of, state, view, traffic, iptables, ipvs } = args;
    let node = view.node_name()?;
    let options = traffic.options()?;
    let backend = match (backend, of) {
        (_, Some(Predecessor::KubeProxy)) => None,
        (Some(backend), None) => Some(backend),
        (None, None) => Some(programmed().await?),
    };
    if let Some(backend) = backend {
        iptables.check(backend)?;
        ipvs.check(backend)?;
    }
    let state = match state {
        Some(file) => stored(&file, &node)?,
        None => committed(View::open(&view).await?, shutdown).await?,
    };
    let Some(backend) = backend else {
        let report = kube_proxy::compare(&state).await.context("cannot read what kube-proxy's rules do")?;
        print::value(view.output, &report, || report.text())?;
        return Ok(if report.is_as_meant() { Found::Nothing } else { Found::Differences });
    };
    let previewed = preview(backend, &state, options, iptables, ipvs).await?;
    let report = Report::new(backend.name(), &node, previewed);
    print::value(view.output, &report, || report.text())?;
    Ok(if report.is_empty() { Found::Nothing } else { Found::Differences })
}

/// What the named backend would write.
async fn preview(
    backend: BackendName,
    state: &NodeState,
    options: DataplaneOptions,
    iptables: IptablesArgs,
    ipvs: IpvsArgs,
) -> Result<PreviewReport> {
    match backend {
        BackendName::Nft => backend_nft::open_preview(options)?.preview(state).await,
        BackendName::Iptables => iptables.preview(options).preview(state).await,
        BackendName::Ipvs => {
            backend_ipvs::open_preview(ipvs.settings(options, &iptables.variant))?.preview(state).await
        }
    }
}

/// The backend whose rules are in this node's kernel.
async fn programmed() -> Result<BackendName> {
    let mut found = Vec::new();
    if !backend_nft::programmed_families().await?.is_empty() {
        found.push(BackendName::Nft);
    }
    if !backend_iptables::programmed_families().await?.is_empty() {
        found.push(BackendName::Iptables);
    }
    if !backend_ipvs::programmed_families().await?.is_empty() {
        found.push(BackendName::Ipvs);
    }
    match found[..] {
        [backend] => Ok(backend),
        [] => bail!("no backend of Fairlead's has programmed this node: say --backend, or --of kube-proxy"),
        _ => {
            let names: Vec<_> = found.iter().map(|backend| backend.name()).collect();
            bail!("several backends of Fairlead's have rules here ({}): say --backend", names.join(", "))
        }
    }
}

/// What an agent of this node has committed last.
fn stored(file: &Path, node: &str) -> Result<NodeState> {
    let stored = StoredState::read(file, node).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(stored.state)
}

/// What the frontend says first.
async fn committed(mut view: View, mut shutdown: Shutdown) -> Result<NodeState> {
    loop {
        let event = tokio::select! {
            () = shutdown.recv() => bail!("interrupted"),
            event = view.next() => event?,
        };
        if matches!(event, Event::Batch(batch) if batch.commit) {
            return Ok(view.state);
        }
    }
}

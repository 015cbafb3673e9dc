//! `fairlead diff`: compares this node's kernel with the desired state. Writes nothing.
//!
//! ```text
//!   frontend (as an observer) | state file ──▶ NodeState ─┬─▶ Preview of a backend ──▶ what it would write
//!                                                         └─▶ kube_proxy ────────────▶ how its rules differ
//! ```

pub(crate) mod kube_proxy;
mod report;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use backend::{NodeState, Preview, PreviewReport, StoredState, dataplane::DataplaneOptions};
use runtime::Shutdown;

use super::view;
use crate::{
    cli::{BackendName, DiffArgs, IptablesArgs, IpvsArgs, OtherProxy},
    exit_code::ExitCode,
    print,
};
use report::DiffReport;
pub(crate) use report::summary;

/// Compares, and prints the differences.
pub(crate) async fn run(args: DiffArgs, mut shutdown: Shutdown) -> Result<ExitCode> {
    let DiffArgs { backend, of, state, view, traffic, iptables, ipvs } = args;
    let node = view.node_name()?;
    let options = traffic.options()?;
    let backend = match (backend, of) {
        (_, Some(OtherProxy::KubeProxy)) => None,
        (Some(backend), None) => Some(backend),
        (None, None) => Some(programmed().await?),
    };
    if let Some(backend) = backend {
        iptables.validate(backend)?;
        ipvs.validate(backend)?;
    }
    let state = match state {
        Some(file) => stored(&file, &node)?,
        None => tokio::select! {
            () = shutdown.recv() => bail!("interrupted"),
            state = view::committed(&view) => state?,
        },
    };
    let Some(backend) = backend else {
        let report = kube_proxy::compare(&state).await.context("cannot read the rules of kube-proxy")?;
        print::value(view.output, &report, || report.text())?;
        return Ok(ExitCode::of_check(report.is_as_documented()));
    };
    let previewed = preview(backend, &state, options, iptables, ipvs).await?;
    let report = DiffReport::new(backend.name(), &node, previewed);
    print::value(view.output, &report, || report.text())?;
    Ok(ExitCode::of_check(report.is_empty()))
}

/// What a backend would write.
async fn preview(
    backend: BackendName,
    state: &NodeState,
    options: DataplaneOptions,
    iptables: IptablesArgs,
    ipvs: IpvsArgs,
) -> Result<PreviewReport> {
    match backend {
        BackendName::Nftables => backend_nft::open_preview(options)?.preview(state).await,
        BackendName::Iptables => iptables.preview(options).preview(state).await,
        BackendName::Ipvs => {
            backend_ipvs::open_preview(ipvs.settings(options, &iptables.variant))?.preview(state).await
        }
    }
}

/// The backend whose objects are in this node's kernel.
async fn programmed() -> Result<BackendName> {
    let mut found = Vec::new();
    if !backend_nft::programmed_families().await?.is_empty() {
        found.push(BackendName::Nftables);
    }
    if !backend_iptables::programmed_families().await?.is_empty() {
        found.push(BackendName::Iptables);
    }
    if !backend_ipvs::programmed_families().await?.is_empty() {
        found.push(BackendName::Ipvs);
    }
    match found[..] {
        [backend] => Ok(backend),
        [] => bail!("no backend of Fairlead has programmed this node: set --backend, or --of kube-proxy"),
        _ => {
            let names: Vec<_> = found.iter().map(|backend| backend.name()).collect();
            bail!("several backends of Fairlead have programmed this node ({}): set --backend", names.join(", "))
        }
    }
}

/// The last committed state of a backend of this node.
fn stored(file: &Path, node: &str) -> Result<NodeState> {
    let stored = StoredState::read(file, node).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(stored.state)
}

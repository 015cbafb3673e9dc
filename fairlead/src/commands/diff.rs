//! `fairlead diff`: compares this node's kernel with the desired state. Writes nothing.
//!
//! ```text
//!   frontend (as an observer) | state file ──▶ NodeState ─┬─▶ preview of a backend ──▶ what it would write
//!                                                         └─▶ kube_proxy ────────────▶ how its rules differ
//! ```

pub(crate) mod kube_proxy;
mod report;

use anyhow::{Context as _, Result, bail};
use backend::{StoredState, dataplane::DataplaneOptions};

use super::{
    dataplanes::{DataplaneSettings, programmed, with_backend},
    view,
};
use crate::{
    cli::{DiffArgs, OtherProxy, invalid_packets_by_sysctl},
    exit_code::ExitCode,
    modes::Mode,
    print,
    running_backend::RunningBackend,
};
use report::DiffReport;
pub(crate) use report::summary;

/// Compares, and prints the differences.
pub(crate) async fn run(args: DiffArgs, running: Option<RunningBackend>) -> Result<ExitCode> {
    let DiffArgs { backend, of, state, healthz, drained, running: _, view, traffic, iptables, ipvs } = args;
    let node = view.node_name()?;
    let options = DataplaneOptions {
        invalid_packets: invalid_packets_by_sysctl(),
        drained_ports: drained.ports(healthz),
        ..traffic.options()?
    };
    let backend = match (backend, of) {
        (_, Some(OtherProxy::KubeProxy)) => None,
        (Some(backend), None) => Some(backend),
        (None, None) => Some(programmed_backend().await?),
    };
    let state = match state {
        Some(file) => {
            let stored = StoredState::read(&file, &node).with_context(|| format!("cannot read {}", file.display()))?;
            stored.state
        }
        None => view::of_this_node(&view.frontend, &node, running.as_ref()).await?,
    };
    let Some(backend) = backend else {
        let report = kube_proxy::compare(&state).await.context("cannot read the rules of kube-proxy")?;
        print::value(view.output, &report, || report.text())?;
        return Ok(ExitCode::of_check(report.is_as_documented()));
    };
    let settings = DataplaneSettings::new(options, iptables, ipvs);
    let previewed = with_backend!(backend, settings, |mut backend| backend.preview(&state).await?);
    let report = DiffReport::new(backend.name(), &node, previewed);
    print::value(view.output, &report, || report.text())?;
    Ok(ExitCode::of_check(report.is_empty()))
}

/// The backend whose objects are in this node's kernel.
async fn programmed_backend() -> Result<Mode> {
    match &programmed().await?[..] {
        [(backend, _)] => Ok(*backend),
        [] => bail!("no backend of Fairlead has programmed this node: set --backend, or --of kube-proxy"),
        several => {
            let names: Vec<_> = several.iter().map(|(backend, _)| backend.name()).collect();
            bail!("several backends of Fairlead have programmed this node ({}): set --backend", names.join(", "))
        }
    }
}

//! `fairlead diff`: compares this node's kernel with the desired state. Writes nothing.
//!
//! ```text
//!   frontend (as an observer) | state file ──▶ NodeState ─┬─▶ preview of a backend ──▶ what it would write
//!                                                         └─▶ kube_proxy ────────────▶ how its rules differ
//! ```

pub(crate) mod kube_proxy;
mod report;

use anyhow::{Context as _, Result, bail};
use backend::{NodeState, StoredState, dataplane::DataplaneOptions};

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
    let node = args.view.node_name()?;
    if let Some(OtherProxy::KubeProxy) = args.of {
        let state = desired_state(&args, &node, running.as_ref()).await?;
        let report = kube_proxy::compare(&state).await.context("cannot read the rules of kube-proxy")?;
        print::value(args.view.output, &report, || report.text())?;
        return Ok(ExitCode::of_check(report.is_as_documented()));
    }

    let mode = match args.backend {
        Some(mode) => mode,
        None => programmed_mode().await?,
    };
    let state = desired_state(&args, &node, running.as_ref()).await?;
    let options = DataplaneOptions {
        invalid_packets: invalid_packets_by_sysctl(),
        drained_ports: args.drained.ports(args.healthz),
        ..args.traffic.options()?
    };
    let settings = DataplaneSettings::new(options, args.iptables, args.ipvs);
    let previewed = with_backend!(mode, settings, |mut backend| backend.preview(&state).await?);

    let report = DiffReport::new(mode.name(), &node, previewed);
    print::value(args.view.output, &report, || report.text())?;
    Ok(ExitCode::of_check(report.is_empty()))
}

/// The state in the file of `--state`, or of a frontend.
async fn desired_state(args: &DiffArgs, node: &str, running: Option<&RunningBackend>) -> Result<NodeState> {
    match &args.state {
        Some(file) => {
            let stored = StoredState::read(file, node).with_context(|| format!("cannot read {}", file.display()))?;
            Ok(stored.state)
        }
        None => view::of_this_node(&args.view.frontend, node, running).await,
    }
}

/// The mode whose objects are in this node's kernel.
async fn programmed_mode() -> Result<Mode> {
    match &programmed().await?[..] {
        [(mode, _)] => Ok(*mode),
        [] => bail!("no backend of Fairlead has programmed this node: set --backend, or --of kube-proxy"),
        several => {
            let names: Vec<_> = several.iter().map(|(mode, _)| mode.name()).collect();
            bail!("several backends of Fairlead have programmed this node ({}): set --backend", names.join(", "))
        }
    }
}

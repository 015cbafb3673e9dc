//! `fairlead backend`: a backend that follows a frontend over gRPC.

use std::path::Path;

use anyhow::{Context as _, Result};
use backend::{
    Backend, Connect, ConntrackCleanup, ConntrackSettings, RunMode, Runner, RunnerOptions, dataplane::DataplaneOptions,
};
use backend_ipvs::{Ipvs, Settings};
use backend_nft::Nft;
use runtime::{Ready, Shutdown, Tasks, metrics::Registry};
use tracing::{info, warn};

use super::{SHUTDOWN_DEADLINE, observe, shadow::Shadow};
use crate::cli::{
    AnyBackendArgs, BackendCommand, BackendName, CommonBackendArgs, ConntrackArgs, Effective, NodeArgs, ObserveArgs,
};

/// The settings of a backend process that do not depend on the kernel's mechanism.
struct BackendProcess<'a> {
    node: NodeArgs,
    conntrack: ConntrackArgs,
    observe: ObserveArgs,
    config: &'a Effective,
    /// Metrics of the other parts of this process.
    registries: Vec<Registry>,
}

/// Runs until the shutdown, which leaves the kernel unchanged.
pub(crate) async fn run(command: BackendCommand, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let (frontend, backend) = command.into_parts();
    let connect = frontend.grpc(backend.common.node.address_cache())?;
    let mut tasks = Tasks::new();
    spawn(backend, config, Vec::new(), connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts a backend. `registries`: metrics of the other parts of this process.
pub(super) fn spawn(
    args: AnyBackendArgs,
    config: &Effective,
    registries: Vec<Registry>,
    connect: impl Connect,
    tasks: &mut Tasks,
) -> Result<()> {
    let name = args.name()?;
    let AnyBackendArgs { common, iptables, ipvs, .. } = args;
    let CommonBackendArgs { node, traffic, conntrack, observe } = common;
    let options = traffic.options()?;
    let run_mode = node.run_mode();
    let process = BackendProcess { node, conntrack, observe, config, registries };
    match (name, run_mode) {
        (BackendName::Nftables, RunMode::Program) => process.spawn(nftables(options)?, connect, tasks),
        (BackendName::Nftables, RunMode::Shadow) => {
            process.spawn(Shadow::new(backend_nft::open_preview(options)?), connect, tasks)
        }
        (BackendName::Iptables, RunMode::Program) => process.spawn(iptables.backend(options), connect, tasks),
        (BackendName::Iptables, RunMode::Shadow) => {
            process.spawn(Shadow::new(iptables.preview(options)), connect, tasks)
        }
        (BackendName::Ipvs, RunMode::Program) => {
            process.spawn(self::ipvs(ipvs.settings(options, &iptables.variant))?, connect, tasks)
        }
        (BackendName::Ipvs, RunMode::Shadow) => {
            let preview = backend_ipvs::open_preview(ipvs.settings(options, &iptables.variant))?;
            process.spawn(Shadow::new(preview), connect, tasks)
        }
    }
}

/// The IPVS backend.
pub(super) fn ipvs(settings: Settings) -> Result<Ipvs> {
    backend_ipvs::open(settings).context("cannot open a netlink socket for IPVS")
}

/// The nftables backend.
pub(super) fn nftables(options: DataplaneOptions) -> Result<Nft> {
    backend_nft::open(options).context("cannot open a netlink socket for nf_tables")
}

impl BackendProcess<'_> {
    /// Starts the tasks of a backend.
    fn spawn(self, backend: impl Backend, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
        let Self { node, conntrack, mut observe, config, registries } = self;
        let name = node.name()?;
        if let Some(score) = node.oom_score_adj
            && let Err(error) = runtime::set_oom_score_adj(score)
        {
            warn!(score, %error, "cannot set the OOM score adjustment, leaving it unchanged");
        }
        let defaults = RunnerOptions { max_loss: node.max_loss, ..RunnerOptions::new(name.as_str()) };
        let (options, ready_message) = match node.run_mode() {
            RunMode::Program => {
                // Before the first rule, which makes the kernel track all connections.
                ConntrackSettings::from(conntrack).apply(Path::new("/"))?;
                std::fs::create_dir_all(&node.state_dir)
                    .with_context(|| format!("cannot create the state directory {}", node.state_dir.display()))?;
                let state_file = Some(node.state_dir.join("state"));
                let options = RunnerOptions { state_file, conntrack: ConntrackCleanup::Enabled, ..defaults };
                (options, "ready: node state programmed")
            }
            RunMode::Shadow => {
                observe.disable_defaults(config);
                let options = RunnerOptions { state_file: None, run_mode: RunMode::Shadow, ..defaults };
                (options, "ready: node state compared with the kernel, nothing written (shadow)")
            }
        };
        let ready = Ready::new();
        let runner = Runner::new(options, backend, connect).with_ready(ready.guard("first state"));
        observe::spawn(&observe, runner.observer(), config, registries, tasks);
        tasks.spawn("backend", move |shutdown| runner.run(shutdown));
        tasks.spawn("readiness", move |mut shutdown| async move {
            tokio::select! {
                () = shutdown.recv() => return Ok(()),
                () = ready.wait() => info!(node = name, "{ready_message}"),
            }
            shutdown.recv().await;
            Ok(())
        });
        Ok(())
    }
}

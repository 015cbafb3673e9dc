//! `fairlead backend nft` and its siblings: an agent that follows a frontend over gRPC.

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
    AnyBackendArgs, BackendConfiguredArgs, BackendIptablesArgs, BackendIpvsArgs, BackendName, BackendNftArgs,
    ConntrackArgs, Effective, IptablesArgs, NodeArgs, ObserveArgs,
};

/// An agent, but for its backend and its frontend.
struct Setup<'a> {
    node: NodeArgs,
    conntrack: ConntrackArgs,
    observe: ObserveArgs,
    config: &'a Effective,
    others: Vec<Registry>,
}

/// Runs until the shutdown. The kernel stays as it is then.
pub(crate) async fn run_nft(args: BackendNftArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let BackendNftArgs { frontend, node, traffic, conntrack, observe } = args;
    let connect = frontend.grpc(node.known_frontends())?;
    let mut tasks = Tasks::new();
    Setup::new(node, conntrack, observe, config).nft(traffic.options()?, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with iptables.
pub(crate) async fn run_iptables(args: BackendIptablesArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let BackendIptablesArgs { frontend, node, traffic, conntrack, observe, iptables } = args;
    let connect = frontend.grpc(node.known_frontends())?;
    let mut tasks = Tasks::new();
    let setup = Setup::new(node, conntrack, observe, config);
    setup.iptables(&iptables, traffic.options()?, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with IPVS.
pub(crate) async fn run_ipvs(args: BackendIpvsArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let BackendIpvsArgs { frontend, node, traffic, conntrack, observe, iptables, ipvs } = args;
    let connect = frontend.grpc(node.known_frontends())?;
    let mut tasks = Tasks::new();
    let settings = ipvs.settings(traffic.options()?, &iptables);
    Setup::new(node, conntrack, observe, config).ipvs(settings, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with the one that is named.
pub(crate) async fn run_configured(args: BackendConfiguredArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let BackendConfiguredArgs { frontend, any } = args;
    any.check()?;
    let connect = frontend.grpc(any.node.known_frontends())?;
    let mut tasks = Tasks::new();
    spawn_any(any, config, Vec::new(), connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts an agent with the backend that is named. `others`: the metrics of what else is in this process.
pub(super) fn spawn_any(
    args: AnyBackendArgs,
    config: &Effective,
    others: Vec<Registry>,
    connect: impl Connect,
    tasks: &mut Tasks,
) -> Result<()> {
    let AnyBackendArgs { backend, node, traffic, conntrack, observe, iptables, ipvs } = args;
    let options = traffic.options()?;
    let setup = Setup { others, ..Setup::new(node, conntrack, observe, config) };
    match backend {
        BackendName::Nft => setup.nft(options, connect, tasks),
        BackendName::Iptables => setup.iptables(&iptables, options, connect, tasks),
        BackendName::Ipvs => setup.ipvs(ipvs.settings(options, &iptables.variant), connect, tasks),
    }
}

/// The IPVS backend.
pub(super) fn ipvs(settings: Settings) -> Result<Ipvs> {
    backend_ipvs::open(settings).context("cannot open netlink")
}

/// The nftables backend.
pub(super) fn nft(options: DataplaneOptions) -> Result<Nft> {
    backend_nft::open(options).context("cannot open nf_tables")
}

impl<'a> Setup<'a> {
    /// An agent that is alone in its process.
    fn new(node: NodeArgs, conntrack: ConntrackArgs, observe: ObserveArgs, config: &'a Effective) -> Self {
        Self { node, conntrack, observe, config, others: Vec::new() }
    }

    fn nft(self, options: DataplaneOptions, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
        match self.node.run_mode() {
            RunMode::Program => self.spawn(nft(options)?, connect, tasks),
            RunMode::Shadow => self.spawn(Shadow::new(backend_nft::open_preview(options)?), connect, tasks),
        }
    }

    fn iptables(
        self,
        args: &IptablesArgs,
        options: DataplaneOptions,
        connect: impl Connect,
        tasks: &mut Tasks,
    ) -> Result<()> {
        match self.node.run_mode() {
            RunMode::Program => self.spawn(args.backend(options), connect, tasks),
            RunMode::Shadow => self.spawn(Shadow::new(args.preview(options)), connect, tasks),
        }
    }

    fn ipvs(self, settings: Settings, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
        match self.node.run_mode() {
            RunMode::Program => self.spawn(ipvs(settings)?, connect, tasks),
            RunMode::Shadow => self.spawn(Shadow::new(backend_ipvs::open_preview(settings)?), connect, tasks),
        }
    }

    /// Starts it with a backend.
    fn spawn(self, backend: impl Backend, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
        let Self { node, conntrack, mut observe, config, others } = self;
        let name = node.name()?;
        if let Some(score) = node.oom_score_adj
            && let Err(error) = runtime::set_oom_score_adj(score)
        {
            warn!(score, %error, "the OOM score stays as it is");
        }
        let defaults = RunnerOptions { max_loss: node.max_loss, ..RunnerOptions::new(name.as_str()) };
        let (options, said) = match node.run_mode() {
            RunMode::Program => {
                // Before the first rule, from which on the kernel tracks every connection.
                ConntrackSettings::from(conntrack).apply(Path::new("/"))?;
                std::fs::create_dir_all(&node.state_dir)
                    .with_context(|| format!("cannot make the state directory {}", node.state_dir.display()))?;
                let state_file = Some(node.state_dir.join("state"));
                let options = RunnerOptions { state_file, conntrack: ConntrackCleanup::Enabled, ..defaults };
                (options, "ready: the kernel holds this node's state")
            }
            RunMode::Shadow => {
                // At these ports is whoever programs the node.
                observe.leave_to_others(config);
                let options = RunnerOptions { state_file: None, run_mode: RunMode::Shadow, ..defaults };
                (options, "shadow: this node's state has been compared with the kernel, and nothing was written")
            }
        };
        let ready = Ready::new();
        let agent = Runner::new(options, backend, connect).with_ready(ready.guard("first state"));
        observe::spawn(&observe, agent.observer(), config, others, tasks);
        tasks.spawn("agent", move |shutdown| agent.run(shutdown));
        tasks.spawn("readiness", move |mut shutdown| async move {
            tokio::select! {
                () = shutdown.recv() => return Ok(()),
                () = ready.wait() => info!(node = name, "{said}"),
            }
            shutdown.recv().await;
            Ok(())
        });
        Ok(())
    }
}

//! `fairlead backend nft` and its siblings: an agent that follows a frontend over gRPC.

use std::path::Path;

use agent::{Agent, AgentOptions, Backend, Connect, Conntrack, ConntrackSettings, traffic::Options};
use anyhow::{Context as _, Result};
use backend_ipvs::{Ipvs, Settings};
use backend_nft::Nft;
use runtime::{Ready, Shutdown, Tasks};
use tracing::{info, warn};

use super::SHUTDOWN_DEADLINE;
use crate::cli::{
    AnyBackendArgs, BackendConfiguredArgs, BackendIptablesArgs, BackendIpvsArgs, BackendName, BackendNftArgs,
    ConntrackArgs, NodeArgs,
};

/// Runs until the shutdown. The kernel stays as it is then.
pub(crate) async fn run_nft(args: BackendNftArgs, shutdown: Shutdown) -> Result<()> {
    let BackendNftArgs { frontend, node, traffic, conntrack } = args;
    let connect = frontend.grpc(Some(node.known_frontends()))?;
    let mut tasks = Tasks::new();
    spawn(&node, conntrack, nft(traffic.options()?)?, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with iptables.
pub(crate) async fn run_iptables(args: BackendIptablesArgs, shutdown: Shutdown) -> Result<()> {
    let BackendIptablesArgs { frontend, node, traffic, conntrack, iptables } = args;
    let connect = frontend.grpc(Some(node.known_frontends()))?;
    let mut tasks = Tasks::new();
    let backend = iptables.backend(traffic.options()?);
    spawn(&node, conntrack, backend, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with IPVS.
pub(crate) async fn run_ipvs(args: BackendIpvsArgs, shutdown: Shutdown) -> Result<()> {
    let BackendIpvsArgs { frontend, node, traffic, conntrack, iptables, ipvs } = args;
    let connect = frontend.grpc(Some(node.known_frontends()))?;
    let mut tasks = Tasks::new();
    let backend = self::ipvs(ipvs.settings(traffic.options()?, &iptables))?;
    spawn(&node, conntrack, backend, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// The same with the one that is named.
pub(crate) async fn run_configured(args: BackendConfiguredArgs, shutdown: Shutdown) -> Result<()> {
    let BackendConfiguredArgs { frontend, any } = args;
    any.check()?;
    let connect = frontend.grpc(Some(any.node.known_frontends()))?;
    let mut tasks = Tasks::new();
    spawn_any(any, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts an agent with the backend that is named.
pub(super) fn spawn_any(args: AnyBackendArgs, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
    let AnyBackendArgs { backend, node, traffic, conntrack, iptables, ipvs } = args;
    let options = traffic.options()?;
    match backend {
        BackendName::Nft => spawn(&node, conntrack, nft(options)?, connect, tasks),
        BackendName::Iptables => spawn(&node, conntrack, iptables.backend(options), connect, tasks),
        BackendName::Ipvs => {
            let ipvs = self::ipvs(ipvs.settings(options, &iptables.variant))?;
            spawn(&node, conntrack, ipvs, connect, tasks)
        }
    }
}

/// The IPVS backend.
pub(super) fn ipvs(settings: Settings) -> Result<Ipvs> {
    Ipvs::new(settings).context("cannot open netlink")
}

/// The nftables backend.
pub(super) fn nft(options: Options) -> Result<Nft> {
    Nft::new(options).context("cannot open nf_tables")
}

/// Starts an agent with a backend.
pub(super) fn spawn(
    node: &NodeArgs,
    conntrack: ConntrackArgs,
    backend: impl Backend,
    connect: impl Connect,
    tasks: &mut Tasks,
) -> Result<()> {
    let name = node.name()?;
    if let Some(score) = node.oom_score_adj
        && let Err(error) = runtime::set_oom_score_adj(score)
    {
        warn!(score, %error, "the OOM score stays as it is");
    }
    // Before the first rule, from which on the kernel tracks every connection.
    ConntrackSettings::from(conntrack).apply(Path::new("/"))?;
    std::fs::create_dir_all(&node.state_dir)
        .with_context(|| format!("cannot make the state directory {}", node.state_dir.display()))?;
    let options = AgentOptions {
        state_file: Some(node.state_dir.join("state")),
        conntrack: Conntrack::Reconcile,
        max_loss: node.max_loss,
        ..AgentOptions::new(name.as_str())
    };
    let ready = Ready::new();
    let agent = Agent::new(options, backend, connect).with_ready(ready.guard("first state in the kernel"));
    tasks.spawn("agent", move |shutdown| agent.run(shutdown));
    tasks.spawn("readiness", move |mut shutdown| async move {
        tokio::select! {
            () = shutdown.recv() => return Ok(()),
            () = ready.wait() => info!(node = name, "ready: the kernel holds this node's state"),
        }
        shutdown.recv().await;
        Ok(())
    });
    Ok(())
}

//! `fairlead backend nft`: an agent that follows a frontend over gRPC.

use std::path::Path;

use agent::{Agent, AgentOptions, Connect, Conntrack, ConntrackSettings};
use anyhow::{Context as _, Result};
use backend_nft::Nft;
use runtime::{Ready, Shutdown, Tasks};
use tracing::info;

use super::SHUTDOWN_DEADLINE;
use crate::cli::{BackendNftArgs, ConntrackArgs, NodeArgs, TrafficArgs};

/// Runs until the shutdown. The kernel stays as it is then.
pub(crate) async fn run_nft(args: BackendNftArgs, shutdown: Shutdown) -> Result<()> {
    let connect = args.frontend.grpc()?;
    let mut tasks = Tasks::new();
    let BackendNftArgs { frontend: _, node, traffic, conntrack } = args;
    spawn_nft(&node, traffic, conntrack, connect, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts an agent with the nftables backend.
pub(crate) fn spawn_nft(
    node: &NodeArgs,
    traffic: TrafficArgs,
    conntrack: ConntrackArgs,
    connect: impl Connect,
    tasks: &mut Tasks,
) -> Result<()> {
    let backend = Nft::new(traffic.options()?).context("cannot open nf_tables")?;
    let name = node.name()?;
    // Before the first rule, from which on the kernel tracks every connection.
    ConntrackSettings::from(conntrack).apply(Path::new("/"))?;
    std::fs::create_dir_all(&node.state_dir)
        .with_context(|| format!("cannot make the state directory {}", node.state_dir.display()))?;
    let options = AgentOptions {
        state_file: Some(node.state_dir.join("state")),
        conntrack: Conntrack::Reconcile,
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

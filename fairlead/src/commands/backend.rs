//! `fairlead backend`, which follows a frontend over gRPC, and `fairlead local`, which runs one in the same process.
//!
//! ```text
//!   backend ── gRPC ───┐           ┌─▶ task backend: instance lock, then the runner
//!                      ├─▶ spawn ──┼─▶ task takeover: what other modes have left     unless it is a shadow
//!   local ── channel ──┘           ├─▶ tasks health, metrics, drained (not of local): HTTP
//!                                  └─▶ task readiness: says when the node is programmed
//! ```

mod other_modes;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use ::backend::{
    Backend, Connect, ConntrackCleanup, ConntrackSettings, Observer, ObserverPages, Runner, RunnerOptions, StateFile,
    dataplane::DataplaneOptions, drained::Drains,
};
use ::frontend::Listener;
use anyhow::Result;
use proto::model::Role;
use runtime::{Ready, Shutdown, Tasks, http::serve_at, metrics::Registry};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    SHUTDOWN_DEADLINE,
    dataplanes::{DataplaneSettings, with_backend},
    frontend,
    shadow::Shadow,
};
use crate::{
    cli::{
        AnyBackendArgs, BackendCommand, CommonBackendArgs, DrainedPortArgs, Effective, LocalArgs, ObserveArgs,
        StreamArgs,
    },
    config::BackendName,
    instance::InstanceLock,
};
use other_modes::{OtherModes, StaleObjects};

/// The settings of a backend process that do not depend on the kernel's mechanism.
struct BackendProcess<'a> {
    mode: BackendName,
    other_modes: OtherModes,
    common: CommonBackendArgs,
    config: &'a Effective,
    /// Metrics of the other parts of this process.
    registries: Vec<Registry>,
    drained: Option<DrainedServer>,
}

/// What answers `GET /drained`. `local` has none, because it does not know what other nodes have programmed.
struct DrainedServer {
    args: DrainedPortArgs,
    drains: Drains,
}

/// Runs until the shutdown, which leaves the kernel unchanged.
pub(crate) async fn run(command: BackendCommand, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let (StreamArgs { frontend, drained, .. }, backend) = command.into_parts();
    let connect = frontend.grpc()?;
    let mut tasks = Tasks::default();
    let certificates = vec![runtime::metrics::certificates(frontend.certificate_files())];
    let node = backend.common.node.name()?;
    let drained = DrainedServer { args: drained, drains: Drains::new(connect.drains(&node)) };
    spawn(backend, config, certificates, connect, Some(drained), &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// `fairlead local`: runs frontend and backend in one process, connected by channels.
pub(crate) async fn run_local(args: LocalArgs, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let LocalArgs { listen, source, cluster, any, .. } = args;
    let listener = match &listen {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    let mut tasks = Tasks::default();
    let ObserveArgs { healthz, metrics, .. } = &any.common.observe;
    let mut services = cluster.policy.policy(healthz.0.into_iter().chain(metrics.0));
    services.cluster_cidrs.clone_from(&any.common.traffic.cluster_cidr);
    services.refuse_node_addresses |= any.name()? == BackendName::Ipvs;
    let only_node = Some(any.common.node.name()?.as_str().into());
    let config_of_frontend = ::frontend::Config { services, only_node, ..Default::default() };
    let frontend = frontend::spawn(&source, &cluster, config_of_frontend, &mut tasks).await?;
    if let Some(listener) = listener {
        let frontend = frontend.clone();
        tasks.spawn("server", move |shutdown| async move { frontend.serve(listener, shutdown).await });
    }
    let registries = vec![frontend.metrics()];
    let stop = shutdown.clone();
    let connect = move |hello| frontend.attach(hello, stop.clone());
    spawn(any, config, registries, connect, None, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts a backend. `registries`: metrics of the other parts of this process.
fn spawn(
    args: AnyBackendArgs,
    config: &Effective,
    registries: Vec<Registry>,
    connect: impl Connect,
    drained: Option<DrainedServer>,
    tasks: &mut Tasks,
) -> Result<()> {
    let mode = args.name()?;
    super::raise_file_limit();
    let AnyBackendArgs { common, iptables, ipvs, .. } = args;
    let drained_ports = drained.as_ref().map(|drained| drained.args.ports(common.observe.healthz));
    let options = DataplaneOptions {
        invalid_packets: common.conntrack.invalid_packets(),
        drained_ports: drained_ports.unwrap_or_default(),
        ..common.traffic.options()?
    };
    let settings = DataplaneSettings::new(options, iptables, ipvs);
    let is_shadow = common.node.shadow;
    let other_modes = OtherModes::new(mode, &settings);
    let process = BackendProcess { mode, other_modes, common, config, registries, drained };
    if is_shadow {
        with_backend!(mode, settings, |backend| process.spawn(Shadow::new(backend), connect, tasks))
    } else {
        with_backend!(mode, settings, |backend| process.spawn(backend, connect, tasks))
    }
}

impl BackendProcess<'_> {
    /// Starts the tasks of a backend.
    fn spawn(self, backend: impl Backend, connect: impl Connect, tasks: &mut Tasks) -> Result<()> {
        let Self { mode, other_modes, common, config, mut registries, mut drained } = self;
        let CommonBackendArgs { node, traffic, conntrack, mut observe } = common;
        let name = node.name()?;
        if let Some(score) = node.oom_score_adj
            && let Err(error) = runtime::set_oom_score_adj(score)
        {
            warn!(score, %error, "cannot set the OOM score adjustment, leaving it unchanged");
        }
        let defaults = RunnerOptions {
            max_loss: node.max_loss,
            nodeport_addresses: traffic.nodeport_addresses,
            ..RunnerOptions::new(name.as_str())
        };
        let is_shadow = node.shadow;
        let (options, ready_message) = if is_shadow {
            observe.disable_defaults(config);
            drained = drained.filter(|_| !config.is_default("drained-port"));
            let options = RunnerOptions { state_file: None, role: Role::Shadow, ..defaults };
            (options, "ready: node state compared with the kernel, nothing written (shadow)")
        } else {
            let state_file = Some(StateFile::local(&node.state_dir.join("state")));
            let options = RunnerOptions { state_file, conntrack: ConntrackCleanup::Enabled, ..defaults };
            (options, "ready: node state programmed")
        };
        let ready = Ready::default();
        let runner = Runner::new(options, backend, connect).with_ready(ready.guard("first state"));
        let (is_only_instance, only_instance) = oneshot::channel();
        if !is_shadow {
            let stale_objects = StaleObjects::default();
            let progress = runner.progress();
            registries.push(stale_objects.registry());
            tasks.spawn_infallible("takeover", move |mut shutdown| async move {
                // Fails when another instance runs, and this process ends.
                if only_instance.await.is_ok() {
                    shutdown.run_until_started(other_modes.take_over(progress, &stale_objects)).await;
                }
                shutdown.recv().await;
            });
        }
        registries.extend(drained.as_ref().map(|drained| drained.drains.registry()));
        spawn_servers(&observe, runner.observer(), drained, config, registries, tasks);
        let instance_timeout = node.instance_timeout;
        let node_name = name.clone();
        let lock_gate = ready.guard("the only backend of this network namespace");
        tasks.spawn("backend", move |mut shutdown| async move {
            // A shadow writes nothing.
            if is_shadow {
                drop(lock_gate);
                return runner.run(shutdown).await;
            }
            let _lock = match InstanceLock::acquire(mode, &node_name, instance_timeout, &mut shutdown).await {
                Ok(Some(lock)) => lock,
                unlocked => {
                    lock_gate.fail();
                    return unlocked.map(drop);
                }
            };
            drop(lock_gate);
            // Fails when the takeover has ended, with the process.
            let _ = is_only_instance.send(());
            // Before the first rule, which makes the kernel track all connections.
            ConntrackSettings::from(conntrack).apply(Path::new("/"))?;
            runner.run(shutdown).await
        });
        tasks.spawn_infallible("readiness", move |mut shutdown| async move {
            if shutdown.run_until_started(ready.wait()).await.is_some() {
                info!(node = name, "{ready_message}");
            }
            shutdown.recv().await;
        });
        Ok(())
    }
}

/// Starts the HTTP servers. `registries`: metrics of the other parts of this process.
fn spawn_servers(
    args: &ObserveArgs,
    observer: Observer,
    drained: Option<DrainedServer>,
    config: &Effective,
    registries: Vec<Registry>,
    tasks: &mut Tasks,
) {
    let on_bind_error = args.on_bind_error();
    if let Some(address) = args.healthz.0 {
        let observer = observer.clone();
        let old_hooks = drained.as_ref().filter(|drained| drained.args.drained_at_healthz);
        let old_hooks = old_hooks.map(|drained| drained.drains.clone());
        tasks.spawn("health", move |shutdown| async move {
            let answer = move |request: &_| {
                let answer = old_hooks.as_ref().and_then(|drains| drains.answer_at_health_port(request));
                answer.unwrap_or_else(|| observer.health(request).into())
            };
            Ok(serve_at(address, "healthz", on_bind_error, answer, shutdown).await?)
        });
    }
    if let Some(DrainedServer { args, drains }) = drained
        && args.drained_port != 0
    {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.drained_port));
        tasks.spawn("drained", move |shutdown| async move {
            let answer = move |request: &_| drains.answer(request);
            Ok(serve_at(address, "drained-port", on_bind_error, answer, shutdown).await?)
        });
    }
    if let Some(address) = args.metrics.0 {
        let pages =
            ObserverPages::new(observer, config.to_json(), registries.into_iter().chain([runtime::metrics::process()]));
        tasks.spawn("metrics", move |shutdown| async move {
            let answer = move |request: &_| pages.answer(request);
            Ok(serve_at(address, "metrics", on_bind_error, answer, shutdown).await?)
        });
    }
}

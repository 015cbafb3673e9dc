//! `fairlead backend`, which follows a frontend over gRPC, and `fairlead local`, which runs one in the same process.
//!
//! ```text
//!   backend ── gRPC ───┐           ┌─▶ task backend: instance lock, then the runner
//!                      ├─▶ spawn ──┼─▶ task takeover: removes what other modes have left
//!   local ── channel ──┘           ├─▶ tasks health, metrics, drained (not of local): HTTP
//!                                  └─▶ task readiness: logs when the node is programmed
//! ```
//!
//! A shadow writes nothing, and so takes neither the lock nor anything over.

mod other_modes;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use ::backend::{
    Backend, Connect, ConntrackCleanup, ConntrackSettings, Observer, ObserverPages, Runner, RunnerOptions, StateFile,
    dataplane::{DataplaneOptions, DrainedPorts, NodePortAddresses},
    drained::Drains,
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
        AnyBackendArgs, BackendCommand, CommonBackendArgs, ConntrackArgs, DrainedPortArgs, Effective, LocalArgs,
        NodeArgs, ObserveArgs, StreamArgs,
    },
    connections::ConnectionMetrics,
    instance::InstanceLock,
    modes::Mode,
};
use other_modes::{OtherModes, StaleObjects};

/// What the tasks of a backend process need, apart from the backend of its mode.
struct BackendSetup<'a> {
    mode: Mode,
    other_modes: OtherModes,
    node_name: String,
    node: NodeArgs,
    nodeport_addresses: NodePortAddresses,
    conntrack: ConntrackArgs,
    http: HttpServers<'a>,
}

/// What the process serves over HTTP.
struct HttpServers<'a> {
    args: ObserveArgs,
    /// For `/configz`.
    config: &'a Effective,
    /// Metrics of the parts of this process other than the runner.
    registries: Vec<Registry>,
    /// `None` in `local`, because it does not know what other nodes have programmed.
    drained: Option<DrainedServer>,
}

/// What answers `GET /drained`.
struct DrainedServer {
    args: DrainedPortArgs,
    drains: Drains,
}

/// Runs until the shutdown, which leaves the kernel unchanged.
pub(crate) async fn run(command: BackendCommand, config: &Effective, shutdown: Shutdown) -> Result<()> {
    let (StreamArgs { frontend, drained, .. }, backend) = command.into_parts();
    let connect = frontend.grpc()?;
    let node = backend.common.node.name()?;
    let certificates = runtime::metrics::certificates(frontend.certificate_files());
    let drained = DrainedServer { args: drained, drains: Drains::new(connect.drains(&node)) };

    let mut tasks = Tasks::default();
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

    let ObserveArgs { healthz, metrics, .. } = &any.common.observe;
    let mut services = cluster.policy.policy(healthz.0.into_iter().chain(metrics.0));
    services.cluster_cidrs.clone_from(&any.common.traffic.cluster_cidr);
    services.refuse_node_addresses |= any.mode()?.traits().binds_vips;
    let only_node = Some(any.common.node.name()?.as_str().into());
    let frontend_config = ::frontend::Config { services, only_node, ..Default::default() };

    let mut tasks = Tasks::default();
    let frontend = frontend::spawn(&source, &cluster, frontend_config, &mut tasks).await?;
    if let Some(listener) = listener {
        let frontend = frontend.clone();
        tasks.spawn("server", move |shutdown| async move { frontend.serve(listener, shutdown).await });
    }

    let metrics_of_frontend = frontend.metrics();
    let stop = shutdown.clone();
    let connect = move |hello| frontend.attach(hello, stop.clone());
    spawn(any, config, metrics_of_frontend, connect, None, &mut tasks)?;
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Starts a backend. `registry`: metrics of another part of this process.
fn spawn(
    args: AnyBackendArgs,
    config: &Effective,
    registry: Registry,
    connect: impl Connect,
    drained: Option<DrainedServer>,
    tasks: &mut Tasks,
) -> Result<()> {
    let mode = args.mode()?;
    let AnyBackendArgs { common, iptables, ipvs, .. } = args;
    let CommonBackendArgs { node, traffic, conntrack, observe } = common;
    let node_name = node.name()?;

    super::raise_file_limit();
    if let Some(score) = node.oom_score_adj
        && let Err(error) = runtime::set_oom_score_adj(score)
    {
        warn!(score, %error, "cannot set the OOM score adjustment, leaving it unchanged");
    }

    let drained_ports = match &drained {
        Some(drained) => drained.args.ports(observe.healthz),
        None => DrainedPorts::default(),
    };
    let options =
        DataplaneOptions { invalid_packets: conntrack.invalid_packets(), drained_ports, ..traffic.options()? };
    let settings = DataplaneSettings::new(options, iptables, ipvs);

    let is_shadow = node.shadow;
    let process = BackendSetup {
        mode,
        other_modes: OtherModes::new(mode, &settings),
        node_name,
        node,
        nodeport_addresses: traffic.nodeport_addresses,
        conntrack,
        http: HttpServers { args: observe, config, registries: vec![registry], drained },
    };
    with_backend!(mode, settings, |backend| {
        if is_shadow {
            process.spawn_shadow(Shadow::new(backend), connect, tasks);
        } else {
            process.spawn(backend, connect, tasks);
        }
    });
    Ok(())
}

impl BackendSetup<'_> {
    /// Starts the tasks of a backend that programs the kernel.
    fn spawn(self, backend: impl Backend, connect: impl Connect, tasks: &mut Tasks) {
        let ready = Ready::default();
        let first_state = ready.guard("first state");
        let lock_gate = ready.guard("the only backend of this network namespace");

        let options = RunnerOptions {
            state_file: Some(StateFile::local(&self.node.state_dir.join("state"))),
            conntrack: ConntrackCleanup::Enabled,
            ..self.runner_options()
        };
        let runner = Runner::new(options, backend, connect).with_ready(first_state);

        let Self { mode, other_modes, node_name, node, conntrack, mut http, .. } = self;
        let stale_objects = StaleObjects::default();
        http.registries.push(stale_objects.registry());
        if http.args.connection_metrics {
            let connections = ConnectionMetrics::default();
            http.registries.push(connections.registry());
            let file = node.state_dir.join("state");
            let of_node = node_name.clone();
            tasks.spawn_infallible("connection metrics", move |shutdown| connections.run(file, of_node, shutdown));
        }
        http.spawn(runner.observer(), tasks);

        let (is_only_instance, only_instance) = oneshot::channel();
        let progress = runner.progress();
        tasks.spawn_infallible("takeover", move |mut shutdown| async move {
            // Fails when another instance runs, and this process ends.
            if only_instance.await.is_ok() {
                shutdown.run_until_started(other_modes.take_over(progress, &stale_objects)).await;
            }
            shutdown.recv().await;
        });

        let locked_name = node_name.clone();
        tasks.spawn("backend", move |mut shutdown| async move {
            let _lock = match InstanceLock::acquire(mode, &locked_name, node.instance_timeout, &mut shutdown).await {
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
        spawn_readiness(ready, node_name, "ready: node state programmed", tasks);
    }

    /// Starts the tasks of a shadow.
    fn spawn_shadow(mut self, backend: impl Backend, connect: impl Connect, tasks: &mut Tasks) {
        // kube-proxy, which programs this node, has the default ports.
        self.http.args.disable_defaults(self.http.config);
        if self.http.config.is_default("drained-port") {
            self.http.drained = None;
        }

        let ready = Ready::default();
        let options = RunnerOptions { state_file: None, role: Role::Shadow, ..self.runner_options() };
        let runner = Runner::new(options, backend, connect).with_ready(ready.guard("first state"));

        self.http.spawn(runner.observer(), tasks);
        tasks.spawn("backend", move |shutdown| runner.run(shutdown));
        let message = "ready: node state compared with the kernel, nothing written (shadow)";
        spawn_readiness(ready, self.node_name, message, tasks);
    }

    /// The options that a shadow has, too.
    fn runner_options(&self) -> RunnerOptions {
        RunnerOptions {
            max_loss: self.node.max_loss,
            nodeport_addresses: self.nodeport_addresses.clone(),
            ..RunnerOptions::new(self.node_name.as_str())
        }
    }
}

/// Starts the task that logs when the node is ready.
fn spawn_readiness(ready: Ready, node: String, message: &'static str, tasks: &mut Tasks) {
    tasks.spawn_infallible("readiness", move |mut shutdown| async move {
        if shutdown.run_until_started(ready.wait()).await.is_some() {
            info!(node, "{message}");
        }
        shutdown.recv().await;
    });
}

impl HttpServers<'_> {
    /// Starts the servers.
    fn spawn(self, observer: Observer, tasks: &mut Tasks) {
        let Self { args, config, mut registries, drained } = self;
        let on_bind_error = args.on_bind_error();

        if let Some(address) = args.healthz.0 {
            let observer = observer.clone();
            let drains_of_old_hooks = match &drained {
                Some(drained) if drained.args.drained_at_healthz => Some(drained.drains.clone()),
                _ => None,
            };
            tasks.spawn("health", move |shutdown| async move {
                let answer = move |request: &_| {
                    let to_hook = drains_of_old_hooks.as_ref().and_then(|drains| drains.answer_at_health_port(request));
                    to_hook.unwrap_or_else(|| observer.health(request).into())
                };
                Ok(serve_at(address, "healthz", on_bind_error, answer, shutdown).await?)
            });
        }

        if let Some(DrainedServer { args, drains }) = drained {
            registries.push(drains.registry());
            if args.drained_port != 0 {
                let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.drained_port));
                tasks.spawn("drained", move |shutdown| async move {
                    let answer = move |request: &_| drains.answer(request);
                    Ok(serve_at(address, "drained-port", on_bind_error, answer, shutdown).await?)
                });
            }
        }

        if let Some(address) = args.metrics.0 {
            registries.push(runtime::metrics::process());
            let pages = ObserverPages::new(observer, config.to_json(), registries);
            tasks.spawn("metrics", move |shutdown| async move {
                let answer = move |request: &_| pages.answer(request);
                Ok(serve_at(address, "metrics", on_bind_error, answer, shutdown).await?)
            });
        }
    }
}

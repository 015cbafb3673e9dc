//! `fairlead frontend`: a source of objects, the engine, and its listeners.

use anyhow::{Context as _, Result, bail};
use frontend::{
    Config, Frontend, Listener,
    source::{KubernetesApi, Source},
};
use proto::model::ClusterInfo;
use runtime::{
    Ready, Shutdown, Tasks,
    http::{bind_both_families, describe_bind_error},
};
use tokio::{net::TcpListener, sync::mpsc};
use tracing::warn;

use super::SHUTDOWN_DEADLINE;
use crate::cli::{ClusterArgs, FrontendArgs, HttpAddress, SourceArgs};

/// Updates that are queued for the engine before the source blocks.
const QUEUED_UPDATES: usize = 1024;

/// Runs until the shutdown.
pub(crate) async fn run(args: FrontendArgs, shutdown: Shutdown) -> Result<()> {
    let secured = args.tls.tls_auth(args.source.kubeconfig()).await?;
    super::raise_file_limit();
    let mut listeners = Vec::new();
    for address in &args.listen {
        let listener = match &secured {
            Some((_, auth)) if !address.starts_with("unix:") => Listener::bind_tls(address, auth.clone()).await?,
            _ => Listener::bind(address).await?,
        };
        if matches!(listener, Listener::Tcp(..)) {
            warn!(address, "listening without TLS: every client that reaches this port can read and act as every node");
        }
        listeners.push(listener);
    }
    let metrics = bind(args.metrics, "--metrics")?;
    let page = bind(args.page, "--page")?;

    let mut services = args.cluster.policy.policy(args.listening());
    services.cluster_cidrs.clone_from(&args.cluster_cidr);
    let config = Config {
        max_stream_age: if args.max_stream_age.is_zero() { None } else { Some(args.max_stream_age) },
        history: args.history_limits(),
        connections: args.connection_limits(),
        services,
        ..Config::default()
    };
    let mut tasks = Tasks::default();
    let frontend = spawn(&args.source, &args.cluster, config, &mut tasks).await?;

    if let Some(listener) = metrics {
        let frontend = frontend.clone();
        let certificates = vec![runtime::metrics::certificates(args.tls.certificate_files())];
        tasks.spawn_infallible("metrics", move |shutdown| async move {
            frontend.serve_metrics(listener, certificates, shutdown).await
        });
    }
    if let Some(listener) = page {
        let frontend = frontend.clone();
        tasks.spawn_infallible("page", move |shutdown| async move { frontend.serve_page(listener, shutdown).await });
    }
    if let Some((tls, _)) = secured {
        tasks.spawn_infallible("TLS files", move |shutdown| tls.watch_files(shutdown));
    }
    for listener in listeners {
        let frontend = frontend.clone();
        // Writing to thousands of streams must not delay the source and the engine.
        let serve = move |shutdown| async move { frontend.serve(listener, shutdown).await };
        tasks.spawn_on_own_threads("server", serve).context("cannot start the threads of the server")?;
    }
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Binds the address of a flag, unless it is `none`.
fn bind(address: HttpAddress, flag: &str) -> Result<Option<TcpListener>> {
    let HttpAddress(Some(address)) = address else { return Ok(None) };
    match bind_both_families(address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => bail!("{} (`{flag} none` disables it)", describe_bind_error(flag, address, &error)),
    }
}

/// Starts a source and the engine.
pub(crate) async fn spawn(
    source: &SourceArgs,
    cluster: &ClusterArgs,
    config: Config,
    tasks: &mut Tasks,
) -> Result<Frontend> {
    let source = match &source.manifests {
        Some(directory) => Source::Manifests(directory.clone()),
        None => Source::Kubernetes(KubernetesApi::new(source.kubeconfig().as_deref()).await?),
    };
    let info = ClusterInfo { service_cidrs: cluster.service_cidr.clone() };
    let frontend = Frontend::new(Config { cluster: info, ..config });

    if !cluster.no_events
        && let Some(client) = source.client()
    {
        let frontend = frontend.clone();
        tasks.spawn_infallible("events", move |shutdown| async move {
            frontend.record_events(client, instance(), shutdown).await
        });
    }
    if cluster.remove_startup_taint
        && let Some(client) = source.client()
    {
        let frontend = frontend.clone();
        tasks.spawn_infallible("taints", move |shutdown| async move {
            frontend.remove_startup_taints(client, shutdown).await
        });
    }

    let listed = Ready::default().guard("first list of all objects");
    let (updates, receiver) = mpsc::channel(QUEUED_UPDATES);
    let freshness = frontend.freshness();
    // After the shutdown, clients receive changes until they are asked to reconnect.
    let (stop_source, source_shutdown) = Shutdown::channel();
    tasks.spawn("source", move |_| source.run(updates, freshness, source_shutdown));
    let engine = frontend.clone();
    tasks.spawn_infallible("engine", move |shutdown| async move {
        let _stop_source = stop_source;
        engine.run(receiver, listed, shutdown).await
    });
    Ok(frontend)
}

/// The name of this replica in Events: the host name, so the pod, or the node on the host network. At most 128
/// characters.
fn instance() -> String {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = hostname.trim().chars().take(128).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

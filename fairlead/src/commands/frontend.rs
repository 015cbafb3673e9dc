//! `fairlead frontend`: a source, the engine, and its listeners.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use frontend::{Config, Frontend, Listener, source::Source};
use proto::model::ClusterInfo;
use runtime::{Ready, Shutdown, Tasks};
use tokio::{net::TcpListener, sync::mpsc};
use tracing::warn;

use super::SHUTDOWN_DEADLINE;
use crate::cli::{ClusterArgs, FrontendArgs, HttpAddress, SourceArgs};

/// How many updates wait for the engine before a source has to.
const UPDATES: usize = 1024;

/// Runs until the shutdown.
pub(crate) async fn run(args: FrontendArgs, shutdown: Shutdown) -> Result<()> {
    let addresses = args.addresses()?;
    let secured = args.tls.tls_auth(args.source.kubeconfig()).await?;
    // With a lower limit it works too, for fewer nodes.
    if let Err(error) = runtime::raise_file_limit() {
        warn!(%error, "the limit of open files stays as it is");
    }
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = match &secured {
            Some((_, auth)) if !address.starts_with("unix:") => Listener::bind_tls(address, auth.clone()).await?,
            _ => Listener::bind(address).await?,
        };
        if matches!(listener, Listener::Tcp(..)) {
            warn!(address, "without TLS: whoever reaches this port can read and claim to be every node");
        }
        listeners.push(listener);
    }
    let metrics = bind(args.metrics, "--metrics").await?;
    let page = bind(args.page, "--page").await?;
    let mut tasks = Tasks::new();
    let age = Some(args.max_stream_age).filter(|age| !age.is_zero());
    let config = Config { max_stream_age: age, ..Config::default() };
    let frontend = spawn(&args.source, &args.cluster, config, &mut tasks).await?;
    if let Some(listener) = metrics {
        let (frontend, profiling) = (frontend.clone(), args.profiling.profiling());
        tasks.spawn(
            "metrics",
            move |shutdown| async move { frontend.serve_metrics(listener, profiling, shutdown).await },
        );
    }
    if let Some(listener) = page {
        let frontend = frontend.clone();
        tasks.spawn("page", move |shutdown| async move { frontend.serve_page(listener, shutdown).await });
    }
    if let Some((tls, _)) = secured {
        let frontend = frontend.clone();
        tasks.spawn("TLS files", move |shutdown| async move { frontend.watch_tls_files(tls, shutdown).await });
    }
    for listener in listeners {
        let frontend = frontend.clone();
        // Thousands of streams that are all told something must not keep the source and the engine from their work.
        let serve = move |shutdown| async move { frontend.serve(listener, shutdown).await };
        tasks.spawn_on_own_threads("server", serve).context("threads for the server")?;
    }
    tasks.run(shutdown, SHUTDOWN_DEADLINE).await
}

/// Binds what a flag says, if it says anything.
async fn bind(address: HttpAddress, flag: &str) -> Result<Option<TcpListener>> {
    let Some(address) = address.address() else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).with_context(|| format!("bind {flag} {address} (`{flag} none` does without)"))
}

/// Starts a source and the engine that takes in what it says.
pub(crate) async fn spawn(
    source: &SourceArgs,
    cluster: &ClusterArgs,
    config: Config,
    tasks: &mut Tasks,
) -> Result<Frontend> {
    let source = match &source.manifests {
        Some(directory) => Source::Manifests(directory.clone()),
        None => Source::kubernetes(source.kubeconfig().as_deref()).await?,
    };
    let recorded = source.client().filter(|_| !cluster.no_events);
    let cluster = ClusterInfo { service_cidrs: cluster.service_cidr.clone() };
    let frontend = Frontend::new(Config { cluster, ..config });
    let ready = Arc::new(Ready::new());
    let listed = ready.guard("first list of all objects");
    let (updates, receiver) = mpsc::channel(UPDATES);
    if let Some(client) = recorded {
        let (frontend, instance) = (frontend.clone(), instance());
        tasks.spawn("events", move |shutdown| async move { frontend.record_events(client, instance, shutdown).await });
    }
    let freshness = frontend.freshness();
    tasks.spawn("source", move |shutdown| source.run(updates, freshness, shutdown));
    let engine = frontend.clone();
    tasks.spawn("engine", move |shutdown| async move { engine.run(receiver, listed, shutdown).await });
    Ok(frontend)
}

/// What this replica is called in Events: the pod, or on the host network the node. Kubernetes takes 128 characters.
fn instance() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().take(128).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

//! A Kubernetes API as a source: each kind is listed and watched for itself, its objects parsed as they are decoded.
//!
//! ```text
//!   list: streamed, or in pages ─▶ Replace ──┐
//!                                            ├─▶ updates (bounded: a slow receiver slows the watch down)
//!   watch ─▶ Apply, Delete ──────────────────┘
//!     └─▶ what is confirmed ─▶ Freshness
//! ```
//!
//! Retry never ends a watch and never empties anything: what has been delivered stays in force until a list has succeeded.
//!
//! | module | answers |
//! |---|---|
//! | `watcher` | EventChange is done next about a kind, whatever happens? |
//! | `request` | EventChange does the API say, and why not? |
//! | `decode` | EventChange is in an answer? |
//! | `retry` | How long to wait after a failure? |

mod decode;
mod request;
mod retry;
mod watcher;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use runtime::Shutdown;
use tokio::sync::mpsc;

use self::watcher::{KindWatcher, Streaming};
use super::Freshness;
use crate::object::SourceUpdate;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
struct Deadlines {
    /// After how many seconds the server is asked to end a watch, which is then taken up where it ended.
    watch_seconds: u32,
    /// A page of a list, whole, and the beginning of a watch. The API server itself gives a request 60 seconds.
    answer: Duration,
    /// The next event of a streaming list, whole.
    initial_event: Duration,
    /// The next event of a watch, whole. More than `watch_seconds`: before it ends a watch, the server sends a bookmark.
    event: Duration,
    /// Without a list, an event or a bookmark for so long, everything is listed anew: watching does not work here, or the server
    /// has stopped to tell of changes without knowing it.
    confirmation: Duration,
    /// After the first failure, and after one of many.
    retry: (Duration, Duration),
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            watch_seconds: 60,
            answer: Duration::from_secs(70),
            initial_event: Duration::from_secs(10),
            event: Duration::from_secs(70),
            confirmation: Duration::from_secs(150),
            retry: (Duration::from_millis(100), Duration::from_secs(10)),
        }
    }
}

impl Deadlines {
    /// How long a watch is meant to last.
    fn watch(&self) -> Duration {
        Duration::from_secs(self.watch_seconds.into())
    }
}

/// A client for the API that a kubeconfig leads to, or else for the cluster that this process runs in.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("kubeconfig {}", path.display()))?
        }
        None => Config::incluster().context("configuration of a pod (outside of one, give a kubeconfig)")?,
    };
    client_from(config)
}

/// A client whose failures all come to light here: by itself it would try in silence, for up to 17 minutes between two tries. Of
/// its own deadlines only that for connecting is in force; the others are [`Deadlines`].
fn client_from(mut config: Config) -> Result<Client> {
    config.default_retry = false;
    config.read_timeout = None;
    Client::try_from(config).context("Kubernetes client")
}

/// Delivers what the API has until the shutdown, or until nobody receives it.
pub(super) async fn run(
    client: Client,
    updates: mpsc::Sender<SourceUpdate>,
    freshness: Freshness,
    shutdown: Shutdown,
) -> Result<()> {
    run_with(client, Deadlines::default(), updates, freshness, shutdown).await
}

async fn run_with(
    client: Client,
    deadlines: Deadlines,
    updates: mpsc::Sender<SourceUpdate>,
    freshness: Freshness,
    mut shutdown: Shutdown,
) -> Result<()> {
    let streaming = Streaming::default();
    let watches = future::join4(
        KindWatcher::<Node>::new(&client, deadlines, &streaming, &updates, &freshness).run(),
        KindWatcher::<Service>::new(&client, deadlines, &streaming, &updates, &freshness).run(),
        KindWatcher::<EndpointSlice>::new(&client, deadlines, &streaming, &updates, &freshness).run(),
        KindWatcher::<ServiceCIDR>::new(&client, deadlines, &streaming, &updates, &freshness).run(),
    );
    tokio::select! {
        _ = watches => {}
        () = updates.closed() => {}
        () = shutdown.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! A Kubernetes API as a source: one list and watch for each kind, whose objects are parsed as they are decoded.
//!
//! ```text
//!   list ─▶ Init, InitApply.., InitDone ─▶ Replace ──┐
//!                                                    ├─▶ updates (bounded: a slow receiver slows the watch down)
//!   watch ─▶ Apply, Delete ──────────────────────────┘
//! ```
//!
//! Trouble never ends a watch and never empties anything: what has been delivered stays in force until a list has succeeded.

mod arrived;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, future};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event, InitialListStrategy};
use kube::{Api, Client, Config};
use runtime::{Backoff, Shutdown};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use self::arrived::{Arrived, Need, Watchable};
use crate::object::{Kind, Parsed, Update};

/// How the initial list is fetched. Streaming lists need a server that has them enabled (Kubernetes 1.32).
const STRATEGY: InitialListStrategy = InitialListStrategy::ListWatch;

/// After how many seconds the server ends a watch, which is then taken up where it ended. A connection that has died without
/// a word is noticed a few seconds later: the server sends a bookmark before it ends a watch.
const WATCH_SECONDS: u32 = 60;

/// How long to wait for any byte of an answer. Longer than a watch may be silent.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);

const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Nobody receives updates any more.
struct NobodyReceives;

/// Follows one kind.
struct Follower<'a> {
    updates: &'a mpsc::Sender<Update>,
    kind: Kind,
    /// What the list that is under way has brought.
    listed: Vec<Parsed>,
    delivery: Delivery,
    trouble: Trouble,
}

/// Whether the kind has been delivered as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Due,
    Done,
}

/// Failures in a row.
struct Trouble {
    backoff: Backoff,
    /// The last one, while no event has come since.
    last: Option<Instant>,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// The watcher mends itself.
    GoOn,
    /// The version to watch from is of no use to the server: it must be listed anew.
    ListAnew,
}

/// A client for the API that a kubeconfig leads to, or else for the cluster that this process runs in.
pub(super) async fn client(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let file =
                Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("kubeconfig {}", path.display()))?
        }
        None => Config::incluster().context("configuration of a pod (outside of one, give a kubeconfig)")?,
    };
    client_from(config)
}

/// A client whose failures all come to light here: by itself it would try in silence, for up to 17 minutes between two tries.
fn client_from(mut config: Config) -> Result<Client> {
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    Client::try_from(config).context("Kubernetes client")
}

/// Delivers what the API has until the shutdown, or until nobody receives it.
pub(super) async fn run(client: Client, updates: mpsc::Sender<Update>, shutdown: Shutdown) -> Result<()> {
    run_with(client, WATCH_SECONDS, updates, shutdown).await
}

async fn run_with(
    client: Client,
    watch_seconds: u32,
    updates: mpsc::Sender<Update>,
    mut shutdown: Shutdown,
) -> Result<()> {
    let watches = future::join4(
        follow::<Node>(&client, watch_seconds, &updates),
        follow::<Service>(&client, watch_seconds, &updates),
        follow::<EndpointSlice>(&client, watch_seconds, &updates),
        follow::<ServiceCIDR>(&client, watch_seconds, &updates),
    );
    tokio::select! {
        _ = watches => {}
        () = updates.closed() => {}
        () = shutdown.recv() => {}
    }
    Ok(())
}

/// Follows a kind until nobody receives.
async fn follow<K: Watchable>(client: &Client, watch_seconds: u32, updates: &mpsc::Sender<Update>) {
    let config = watcher::Config {
        label_selector: K::LABELS.map(str::to_owned),
        field_selector: K::FIELDS.map(str::to_owned),
        timeout: Some(watch_seconds),
        initial_list_strategy: STRATEGY,
        ..watcher::Config::default()
    };
    let mut follower = Follower {
        updates,
        kind: K::KIND,
        listed: Vec::new(),
        delivery: Delivery::Due,
        trouble: Trouble::default(),
    };
    let look_again = Duration::from_secs(watch_seconds.into());
    loop {
        let api = Api::<Arrived<K>>::all(client.clone());
        if follower.follow(watcher::watcher(api, config.clone()), look_again).await.is_err() {
            return;
        }
    }
}

// === impl Follower ===

impl Follower<'_> {
    /// Follows one watcher until it must be started over, or until nobody receives.
    async fn follow<K: Watchable>(
        &mut self,
        events: impl Stream<Item = watcher::Result<Event<Arrived<K>>>>,
        look_again: Duration,
    ) -> Result<(), NobodyReceives> {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.event(event).await?,
                Err(error) if K::NEED == Need::Optional && is_not_offered(&error) => {
                    self.do_without(&error).await?;
                    sleep(look_again).await;
                }
                Err(error) => {
                    self.trouble.wait(self.kind, &error).await;
                    if recovery(&error) == Recovery::ListAnew {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    async fn event<K: Watchable>(&mut self, event: Event<Arrived<K>>) -> Result<(), NobodyReceives> {
        let update = match event {
            // Comes before anything was asked for, so it says nothing about the server.
            Event::Init => {
                self.listed.clear();
                return Ok(());
            }
            Event::InitApply(object) => {
                self.listed.push(object.parsed);
                None
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                debug!(kind = %self.kind, objects = listed.len(), "listed");
                self.trouble.over(self.kind);
                return self.deliver(listed).await;
            }
            Event::Apply(object) => Some(Update::Apply(object.parsed)),
            Event::Delete(object) => Some(Update::Delete(self.kind, object.parsed.name)),
        };
        self.trouble.over(self.kind);
        match update {
            Some(update) => self.updates.send(update).await.map_err(|_| NobodyReceives),
            None => Ok(()),
        }
    }

    /// The API does not offer this kind. What is known of it stays; if that is nothing, there is nothing.
    async fn do_without(&mut self, error: &watcher::Error) -> Result<(), NobodyReceives> {
        match self.delivery {
            Delivery::Done => {
                debug!(kind = %self.kind, %error, "the API does not offer this kind");
                Ok(())
            }
            Delivery::Due => {
                warn!(kind = %self.kind, %error, "the API does not offer this kind: doing without");
                self.deliver(Vec::new()).await
            }
        }
    }

    /// Everything there is.
    async fn deliver(&mut self, listed: Vec<Parsed>) -> Result<(), NobodyReceives> {
        self.delivery = Delivery::Done;
        self.updates.send(Update::Replace(self.kind, listed)).await.map_err(|_| NobodyReceives)
    }
}

// === impl Trouble ===

impl Default for Trouble {
    fn default() -> Self {
        Self { backoff: Backoff::new(MIN_DELAY, MAX_DELAY), last: None }
    }
}

impl Trouble {
    /// Logs a failure and waits, longer after each one.
    ///
    /// A watch that works may be silent for long, so a while without failures counts as a success too.
    async fn wait(&mut self, kind: Kind, error: &watcher::Error) {
        if self.last.is_some_and(|last| last.elapsed() > 2 * MAX_DELAY) {
            self.backoff.reset();
        }
        let delay = self.backoff.next_delay();
        warn!(%kind, %error, ?delay, "watch failed, what is known stays in force");
        sleep(delay).await;
        self.last = Some(Instant::now());
    }

    fn over(&mut self, kind: Kind) {
        if self.last.take().is_some() {
            info!(%kind, "watch works again");
            self.backoff.reset();
        }
    }
}

/// The watcher lists anew by itself when the server says 410 Gone within a watch, but not when it refuses to begin one: that
/// one it would try for ever. A server that was restored from a backup refuses a version of its future with 504.
fn recovery(error: &watcher::Error) -> Recovery {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if matches!(status.code, 400 | 410 | 504) =>
        {
            Recovery::ListAnew
        }
        _ => Recovery::GoOn,
    }
}

/// The kind is not known to the server, or we may not read it.
fn is_not_offered(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if matches!(status.code, 403 | 404))
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

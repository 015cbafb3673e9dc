//! Where the cluster comes from: a Kubernetes API, or a directory of manifests.
//!
//! ```text
//!   kubernetes: list, watch ──┐
//!                             ├─▶ parse (pure) ─▶ Update ─▶ the one who indexes
//!   manifests: read, inotify ─┘
//! ```

mod freshness;
mod kubernetes;
mod manifests;
mod parse;

use std::path::{Path, PathBuf};

use anyhow::Result;
use runtime::Shutdown;
use tokio::sync::mpsc;

pub use self::freshness::{Freshness, KindFreshness, WatchPhase};
use crate::object::SourceUpdate;

/// A client for the API that a kubeconfig file leads to; without one, for that of the cluster this process runs in.
pub(crate) async fn kubernetes_client(kubeconfig: Option<&Path>) -> Result<kube::Client> {
    kubernetes::client(kubeconfig).await
}

/// A source of [`Update`]s.
#[derive(Clone)]
pub enum Source {
    /// A directory of Kubernetes manifests (`.yaml`, `.yml`, `.json`), followed as it changes.
    Manifests(PathBuf),
    /// A Kubernetes API.
    Kubernetes(kube::Client),
}

// === impl Source ===

impl Source {
    /// The API that a kubeconfig file leads to; without one, that of the cluster this process runs in. Connects only when run.
    pub async fn kubernetes(kubeconfig: Option<&Path>) -> Result<Self> {
        Ok(Self::Kubernetes(kubernetes::client(kubeconfig).await?))
    }

    /// The client of the API, where there is one.
    #[must_use]
    pub fn client(&self) -> Option<kube::Client> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(client) => Some(client.clone()),
        }
    }

    /// Delivers updates until the shutdown, or until nobody receives them any more.
    ///
    /// One [`Update::Replace`] for each kind comes first. From then on trouble with the source is logged and mended, never
    /// delivered: what has been delivered stays in force. Fails only if there is no way to start.
    ///
    /// What an API confirms is written down in `freshness`; a directory needs no confirmation, and says nothing there.
    pub async fn run(
        self,
        updates: mpsc::Sender<SourceUpdate>,
        freshness: Freshness,
        shutdown: Shutdown,
    ) -> Result<()> {
        match self {
            Self::Manifests(directory) => manifests::run(directory, updates, shutdown).await,
            Self::Kubernetes(client) => kubernetes::run(client, updates, freshness, shutdown).await,
        }
    }
}

//! Where the objects of the cluster come from: a Kubernetes API server, or a directory of manifests.
//!
//! ```text
//!   kubernetes: list, watch ──┐
//!                             ├─▶ parse (pure) ─▶ SourceUpdate ─▶ engine
//!   manifests: read, inotify ─┘
//! ```

mod freshness;
mod kubernetes;
mod manifests;
mod parse;

use std::path::PathBuf;

use anyhow::Result;
use runtime::Shutdown;
use tokio::sync::mpsc;

#[cfg(test)]
pub(crate) use self::freshness::CONFIRMATION_TIMEOUT;
use self::kubernetes::Deadlines;
#[cfg(feature = "testing")]
pub use self::kubernetes::decode_event;
pub(crate) use self::manifests::parse_documents;
#[cfg(feature = "testing")]
pub(crate) use self::manifests::{ManifestFormat, parse_text as parse_manifests};
pub use self::{
    freshness::{Freshness, KindFreshness, is_unconfirmed},
    kubernetes::KubernetesApi,
};
use crate::object::SourceUpdate;

/// A source of [`SourceUpdate`]s.
#[derive(Clone)]
pub enum Source {
    /// A directory of Kubernetes manifests (`.yaml`, `.yml`, `.json`), watched for changes.
    Manifests(PathBuf),
    /// A Kubernetes API server. Connects only when run.
    Kubernetes(KubernetesApi),
}

// === impl Source ===

impl Source {
    /// The client of the API server, where there is one.
    #[must_use]
    pub fn client(&self) -> Option<kube::Client> {
        match self {
            Self::Manifests(_) => None,
            Self::Kubernetes(api) => Some(api.client()),
        }
    }

    /// Delivers updates until the shutdown, or until the receiver is dropped.
    ///
    /// One [`SourceUpdate::Replace`] for each kind comes first. From then on failures are logged and retried, never
    /// delivered: what was delivered stays valid. Fails only if it cannot start.
    ///
    /// `freshness` has when an API server confirmed the objects, or what is not used in a directory.
    pub async fn run(
        self,
        updates: mpsc::Sender<SourceUpdate>,
        freshness: Freshness,
        shutdown: Shutdown,
    ) -> Result<()> {
        match self {
            Self::Manifests(directory) => {
                manifests::run(directory, manifests::REMOVAL_DELAY, updates, freshness, shutdown).await
            }
            Self::Kubernetes(api) => {
                kubernetes::run(api, Deadlines::default(), updates, &freshness, shutdown).await;
                Ok(())
            }
        }
    }
}

//! Health, metrics and status of a backend process over HTTP.
//!
//! ```text
//!   Progress ──▶ Observer ──▶ health: /healthz, /livez, /readyz                 for load balancers and the kubelet
//!                       └──▶ ObserverPages: /metrics, /proxyMode, /statusz ...  for operators and Prometheus
//! ```

mod health;
mod pages;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::SystemTime};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::{Progress, metrics::Metrics};

pub use pages::ObserverPages;

/// Serves the health and the progress of a backend process. Clones share them.
#[derive(Clone, Debug)]
pub struct Observer {
    identity: Arc<Identity>,
    progress: watch::Receiver<Progress>,
    metrics: Arc<Metrics>,
}

/// The identity of a backend process.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// [`Backend::NAME`](crate::Backend::NAME).
    pub(crate) backend: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}

impl Observer {
    pub(crate) fn new(
        node: &Arc<str>,
        backend: &'static str,
        version: &str,
        started: SystemTime,
        progress: watch::Receiver<Progress>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (node, version) = (node.clone(), version.to_owned());
        Self { identity: Arc::new(Identity { node, backend, version, started }), progress, metrics }
    }
}

/// A time in the format of Kubernetes.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string())
}

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
    pub(crate) identity: Arc<BackendIdentity>,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The identity of a backend process.
#[derive(Debug)]
pub(crate) struct BackendIdentity {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// [`Backend::NAME`](crate::Backend::NAME).
    pub(crate) backend: &'static str,
    pub(crate) version: String,
    pub(crate) started: SystemTime,
}

/// A time in the format of Kubernetes.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string())
}

//! Health, metrics and status of a backend process over HTTP.
//!
//! ```text
//!   Progress ──▶ Observer ──▶ health: /healthz, /livez, /readyz                 for load balancers and the kubelet
//!                       └──▶ ObserverPages: /metrics, /proxyMode, /statusz ...  for operators and Prometheus
//! ```

mod health;
mod status;
#[cfg(test)]
mod tests;

use std::{iter, sync::Arc, time::SystemTime};

use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use runtime::{
    http::{JSON, TEXT, response},
    metrics::{self, Registry},
};
use tokio::sync::watch;

use crate::{
    Progress,
    backend::BackendIdentity,
    metrics::{Metrics, registry},
};

pub(crate) use health::SYNC_FAILING;

/// Serves the health and the progress of a backend process. Clones share them.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(crate) identity: Arc<BackendIdentity>,
    pub(crate) progress: watch::Receiver<Progress>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The pages of the metrics address, as in kube-proxy.
#[derive(Debug)]
pub struct ObserverPages {
    observer: Observer,
    /// The effective configuration, as JSON.
    config: String,
    registries: Vec<Registry>,
}

impl ObserverPages {
    /// `config` is the effective configuration, as JSON; `others` are the metrics of other parts of the process.
    #[must_use]
    pub fn new(observer: Observer, config: String, others: impl IntoIterator<Item = Registry>) -> Self {
        let registries = iter::once(registry(&observer)).chain(others).collect();
        Self { observer, config, registries }
    }

    /// Answers one request.
    #[must_use]
    pub fn answer<B>(&self, request: &Request<B>) -> Response<String> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        }

        match request.uri().path() {
            "/metrics" => metrics::scrape(&self.registries),
            "/proxyMode" => text(StatusCode::OK, self.observer.identity.backend),
            // Only shows that the process answers, as in kube-proxy; the health is served at its own address.
            "/healthz" => text(StatusCode::OK, "ok"),
            "/statusz" => response(StatusCode::OK, JSON, self.observer.status()),
            "/configz" => response(StatusCode::OK, JSON, self.config.clone()),
            _ => {
                let paths = "not found; the pages are /metrics, /proxyMode, /healthz, /statusz and /configz\n";
                text(StatusCode::NOT_FOUND, paths)
            }
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<String> {
    response(status, TEXT, text.to_owned())
}

/// A time in the format of Kubernetes.
fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string())
}

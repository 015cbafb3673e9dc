//! The HTTP endpoints of the metrics address.

use anyhow::Result;
use hyper::{Method, Request, Response, StatusCode};
use runtime::{
    Shutdown,
    http::{self, HttpConnections, TEXT, response},
    metrics::{self, Registry},
};
use tokio::net::TcpListener;
use tracing::info;

use crate::{Frontend, cluster::ClusterState};

impl Frontend {
    /// Serves `/metrics`, `/healthz` and `/readyz` over HTTP until the shutdown.
    /// There is no authentication; responses contain no names of objects or nodes.
    /// `others`: metrics of other parts of the process.
    ///
    /// # Errors
    /// None so far; tasks return a `Result`.
    pub async fn serve_metrics(
        &self,
        listener: TcpListener,
        others: Vec<Registry>,
        mut shutdown: Shutdown,
    ) -> Result<()> {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving metrics");
        }
        let context = self.context.clone();
        let registries: Vec<_> = [self.metrics(), metrics::process()].into_iter().chain(others).collect();
        let serving = http::serve(listener, "metrics", HttpConnections::default(), move |request| {
            answer(request, &context.cluster, &registries)
        });
        shutdown.run_until_started(serving).await;
        Ok(())
    }
}

fn answer<B>(request: &Request<B>, cluster: &ClusterState, registries: &[Registry]) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "method not allowed: use GET or HEAD\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => metrics::scrape(registries),
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => ready(cluster),
        _ => response(
            StatusCode::NOT_FOUND,
            TEXT,
            "not found: the paths are /metrics, /healthz and /readyz\n".to_owned(),
        ),
    }
}

/// 200 when every kind has been listed. A replica that has lost the API server stays ready: other replicas would not
/// have newer state.
fn ready(cluster: &ClusterState) -> Response<String> {
    if cluster.is_ready() {
        return response(StatusCode::OK, TEXT, "ready\n".to_owned());
    }
    let missing: Vec<_> = cluster.index().missing().map(|kind| kind.to_string()).collect();
    let body = format!("not listed yet: {}\n", missing.join(", "));
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
}

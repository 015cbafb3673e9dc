//! The paths of the metrics address.

use std::sync::Arc;

use anyhow::Result;
use hyper::{Method, Request, Response, StatusCode};
use runtime::{
    Profiling, Shutdown,
    http::{self, TEXT, response},
    metrics::{self, Registry},
};
use tokio::net::TcpListener;
use tracing::info;

use crate::{Frontend, engine::Shared};

use super::Metrics;

impl Frontend {
    /// What a replica measures about itself, for whoever serves it together with others.
    #[must_use]
    pub fn metrics(&self) -> Registry {
        Metrics::registry(&self.shared)
    }

    /// Answers `/metrics`, `/healthz` and `/readyz` over HTTP until the shutdown. For everybody who can connect: there are no
    /// names of objects or nodes in the answers. Profiles too, if they are on.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn serve_metrics(
        &self,
        listener: TcpListener,
        profiling: Profiling,
        mut shutdown: Shutdown,
    ) -> Result<()> {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "metrics are served");
        }
        let shared = self.shared.clone();
        let registries = [self.metrics(), metrics::process()];
        let serving = http::serve(listener, "metrics", move |request| {
            profiling.answer(request, || answer(request, &shared, &registries))
        });
        tokio::select! {
            () = serving => {}
            () = shutdown.recv() => {}
        }
        Ok(())
    }
}

fn answer<B>(request: &Request<B>, shared: &Arc<Shared>, registries: &[Registry]) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => metrics::scrape(registries),
        // That there is an answer is all there is to say.
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => ready(shared),
        _ => response(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /readyz\n".to_owned()),
    }
}

/// 200 when every kind has been listed. That the API has not been heard of since is no reason to be passed over: what is known
/// goes on being right until somebody knows better, and no other replica does.
fn ready(shared: &Shared) -> Response<String> {
    if shared.is_ready() {
        return response(StatusCode::OK, TEXT, "ready\n".to_owned());
    }
    let missing: Vec<_> = shared.index().missing().map(|kind| kind.to_string()).collect();
    let body = format!("not listed yet: {}\n", missing.join(", "));
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
}

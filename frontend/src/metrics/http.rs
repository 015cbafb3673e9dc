//! The paths of the metrics address.

use std::sync::Arc;

use anyhow::Result;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use prometheus_client::{encoding::text, registry::Registry};
use runtime::{Shutdown, http};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::{Frontend, engine::Shared};

use super::Metrics;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Prometheus' text format in its standardised form, which scrapers know by this name.
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

impl Frontend {
    /// Answers `/metrics`, `/healthz` and `/readyz` over HTTP until the shutdown. For everybody who can connect: there are no
    /// names of objects or nodes in the answers.
    ///
    /// # Errors
    /// None so far; the type is that of a task.
    pub async fn serve_metrics(&self, listener: TcpListener, mut shutdown: Shutdown) -> Result<()> {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "metrics are served");
        }
        let shared = self.shared.clone();
        let registry = Metrics::registry(&shared);
        let serving = http::serve(listener, "metrics", move |request| answer(request, &shared, &registry));
        tokio::select! {
            () = serving => {}
            () = shutdown.recv() => {}
        }
        Ok(())
    }
}

fn answer<B>(request: &Request<B>, shared: &Arc<Shared>, registry: &Registry) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => metrics(registry),
        // That there is an answer is all there is to say.
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => ready(shared),
        _ => response(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /readyz\n".to_owned()),
    }
}

fn metrics(registry: &Registry) -> Response<String> {
    let mut body = String::new();
    match text::encode(&mut body, registry) {
        Ok(()) => response(StatusCode::OK, OPENMETRICS, body),
        Err(error) => {
            warn!(%error, "the metrics cannot be written");
            response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics cannot be written\n".to_owned())
        }
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

fn response(status: StatusCode, kind: HeaderValue, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

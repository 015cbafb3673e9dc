//! The answer of a health-check node port, over HTTP/1.1.

use hyper::{
    Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use runtime::http::{self, JSON};
use serde::Serialize;
use tokio::{net::TcpListener, sync::watch};
use tracing::{Instrument as _, info_span};

use super::checks::{Check, CheckPort, Checks};
use crate::Progress;

/// The weight by which a load balancer distributes traffic among nodes: the number of endpoints.
const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The sources of the answers.
#[derive(Clone, Debug)]
pub(super) struct CheckSources {
    pub(super) checks: watch::Receiver<Checks>,
    pub(super) progress: watch::Receiver<Progress>,
}

/// The body, with the fields that kube-proxy has.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerBody<'a> {
    service: AnswerService<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct AnswerService<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Serves all connections. Dropping the future closes them.
pub(super) async fn serve(listener: TcpListener, port: CheckPort, sources: CheckSources) {
    let span = info_span!("health checks", port = port.port, family = %port.family);
    http::serve(listener, "health checks", move |_| sources.answer(port)).instrument(span).await;
}

// === impl CheckSources ===

impl CheckSources {
    /// 200 when the node has endpoints of the Service and the last sync succeeded.
    fn answer(&self, port: CheckPort) -> Response<String> {
        let healthy = self.progress.borrow().error.is_none();
        match self.checks.borrow().get(port) {
            Some(check) => check.to_response(healthy),
            // The Service was removed just now, and the listener is about to be closed.
            None => response(StatusCode::SERVICE_UNAVAILABLE, 0, String::new()),
        }
    }
}

// === impl Check ===

impl Check<'_> {
    fn to_response(self, healthy: bool) -> Response<String> {
        let Self { service, local_endpoints } = self;
        let status = if local_endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = AnswerBody {
            service: AnswerService { namespace: &service.namespace, name: &service.name },
            local_endpoints,
            service_proxy_healthy: healthy,
        };
        // Strings and numbers are always JSON.
        response(status, local_endpoints, serde_json::to_string(&body).unwrap_or_default())
    }
}

fn response(status: StatusCode, weight: usize, body: String) -> Response<String> {
    let mut response = http::response(status, JSON, body);
    response.headers_mut().insert(ENDPOINT_WEIGHT, HeaderValue::from(weight));
    response
}

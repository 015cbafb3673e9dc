//! What a health-check node port answers, over HTTP/1.1.

use hyper::{
    Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use runtime::http::{self, JSON};
use serde::Serialize;
use tokio::{net::TcpListener, sync::watch};
use tracing::{Instrument as _, info_span};

use super::checks::{Check, Checks, Place};
use crate::Progress;

/// How load balancers share out traffic among nodes.
const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");
/// What answers are made from.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) checks: watch::Receiver<Checks>,
    pub(super) progress: watch::Receiver<Progress>,
}

/// The body, in the words that kube-proxy uses.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: BodyService<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct BodyService<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Answers everybody who connects, until it is dropped, and all connections with it.
pub(super) async fn serve(listener: TcpListener, place: Place, facts: Facts) {
    let span = info_span!("health checks", port = place.port, family = %place.family);
    http::serve(listener, "health checks", move |_| facts.answer(place)).instrument(span).await;
}

// === impl Facts ===

impl Facts {
    /// 200 when the node has endpoints of the Service and the kernel leads to them.
    fn answer(&self, place: Place) -> Response<String> {
        let healthy = self.progress.borrow().error.is_none();
        match self.checks.borrow().get(place) {
            Some(check) => check.to_response(healthy),
            // The service has just gone, and the listener is about to.
            None => response(StatusCode::SERVICE_UNAVAILABLE, 0, String::new()),
        }
    }
}

// === impl Check ===

impl Check<'_> {
    fn to_response(self, healthy: bool) -> Response<String> {
        let Self { service, local_endpoints } = self;
        let status = if local_endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let body = Body {
            service: BodyService { namespace: &service.namespace, name: &service.name },
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

//! What a health-check node port answers, over HTTP/1.1, and what it puts up with from a client.

use std::{convert::Infallible, time::Duration};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::checks::{Check, Checks, Place};
use crate::Progress;

/// How load balancers share out traffic among nodes.
const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");
/// The most connections that one listener has open. More have to wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take for its request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take for everything, reading the answer included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is accepted when that fails: what a process or a machine has run out of does not come back at once.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

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
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => drop(connections.spawn(connection(stream, place, facts.clone()))),
            Err(error) => {
                warn!(port = place.port, family = %place.family, %error, "health checks are not accepted");
                sleep(ACCEPT_DELAY).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, place: Place, facts: Facts) {
    let service = service_fn(|_request| async { Ok::<_, Infallible>(facts.answer(place)) });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(port = place.port, %error, "health check failed"),
        Err(_) => debug!(port = place.port, "health check took too long"),
    }
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
        let status =
            if local_endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
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
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(ENDPOINT_WEIGHT, HeaderValue::from(weight));
    response
}

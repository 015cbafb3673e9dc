//! Opens and closes the listeners that the checks require, and answers requests over HTTP/1.1. A port that cannot be
//! opened is retried while it is required.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hyper::{
    Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use proto::model::{FailureKind, IpFamily, ServicePortFailure};
use runtime::{
    Backoff,
    failure::{Recovery, Repeated},
    http::{self, HttpConnections, JSON},
    warn_if_news,
};
use serde::Serialize;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{Instrument as _, info, info_span};

use super::{
    HealthChecks,
    checks::{Check, CheckPort, Checks, ServiceName},
};
use crate::Progress;

/// The shortest and the longest delay before a port that cannot be opened is retried.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The weight by which a load balancer distributes traffic among nodes: the number of endpoints.
const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// All listeners of a node.
#[derive(Debug)]
pub(crate) struct HealthCheckServers {
    checks: watch::Receiver<Checks>,
    sources: CheckSources,
    /// The bounds of connections of all ports together.
    connections: HttpConnections,
    /// The task that owns each listener.
    open: BTreeMap<CheckPort, JoinSet<()>>,
    failing: BTreeMap<CheckPort, FailingPort>,
    /// The ports that cannot be opened, and those that belong to another Service.
    failures: watch::Sender<Vec<ServicePortFailure>>,
}

/// A port that cannot be opened.
#[derive(Debug)]
struct FailingPort {
    error: String,
    repeated: Repeated,
    backoff: Backoff,
    retry_at: Instant,
}

impl HealthCheckServers {
    /// Starts without listeners.
    pub(crate) fn new(health: &HealthChecks, progress: watch::Receiver<Progress>) -> Self {
        let checks = health.checks.subscribe();
        let sources = CheckSources { checks: checks.clone(), progress };
        let failures = health.failures.0.clone();
        let connections = HttpConnections::default();
        Self { checks, sources, connections, open: BTreeMap::new(), failing: BTreeMap::new(), failures }
    }

    /// Opens and closes listeners until the [`HealthChecks`] are dropped. Dropping the future closes all of them.
    pub(crate) async fn run(mut self) {
        loop {
            self.reconcile().await;
            self.publish_failures();
            let retry_at = self.failing.values().map(|failing| failing.retry_at).min();
            tokio::select! {
                changed = self.checks.changed() => if changed.is_err() { return },
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
            }
        }
    }

    async fn reconcile(&mut self) {
        let desired: BTreeMap<CheckPort, ServiceName> =
            self.checks.borrow_and_update().owners().map(|(port, name)| (port, name.clone())).collect();
        self.failing.retain(|port, _| desired.contains_key(port));
        let closing = self.open.extract_if(.., |port, _| !desired.contains_key(port));
        for (CheckPort { port, family }, mut task) in closing {
            // Frees the port before this returns.
            task.shutdown().await;
            info!(port, %family, "closed a health-check node port");
        }
        let now = Instant::now();
        for (port, service) in desired {
            let due = self.failing.get(&port).is_none_or(|failing| failing.retry_at <= now);
            if due && !self.open.contains_key(&port) {
                self.open(port, &service);
            }
        }
    }

    fn publish_failures(&self) {
        let checks = self.checks.borrow();
        let failing = checks.owners().filter_map(|(port, service)| {
            let FailingPort { error, .. } = self.failing.get(&port)?;
            Some((service, port, format!("cannot be opened: {error}")))
        });
        let rejected = checks.rejected_claims();
        let rejected = rejected.map(|claim| (&claim.service, claim.check_port, format!("belongs to {}", claim.owner)));
        let failures = failing.chain(rejected).filter_map(|(service, CheckPort { port, family }, why)| {
            let reason = format!("health-check node port {port} ({family}) {why}");
            let key = checks.key(service)?.clone();
            // In both cases the port is opened as soon as that is possible.
            Some(ServicePortFailure { key, reason, retryable: true, kind: FailureKind::HealthCheck })
        });
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by(|one, other| (&one.key, &one.reason).cmp(&(&other.key, &other.reason)));
        self.failures.send_if_modified(|published| {
            let differs = *published != failures;
            *published = failures;
            differs
        });
    }

    fn open(&mut self, check_port: CheckPort, service: &ServiceName) {
        match bind(check_port) {
            Ok(listener) => {
                let CheckPort { port, family } = check_port;
                info!(%service, port, %family, "opened a health-check node port");
                let recovery = self.failing.remove(&check_port).and_then(|mut failing| failing.repeated.recovered());
                if let Some(Recovery { count, duration }) = recovery {
                    let after_ms = duration.as_millis();
                    let failures = count;
                    info!(%service, port, %family, failures, after_ms, "health-check node port could be opened again");
                }
                let mut task = JoinSet::new();
                task.spawn(serve(listener, check_port, self.connections.clone(), self.sources.clone()));
                self.open.insert(check_port, task);
            }
            Err(error) => {
                let failing = self.failing.entry(check_port).or_insert_with(|| FailingPort {
                    error: String::new(),
                    repeated: Repeated::default(),
                    backoff: Backoff::new(RETRY_DELAY.0, RETRY_DELAY.1),
                    retry_at: Instant::now(),
                });
                failing.failed(check_port, service, error.to_string());
            }
        }
    }
}

impl FailingPort {
    /// Logs the failure and schedules the retry.
    fn failed(&mut self, CheckPort { port, family }: CheckPort, service: &ServiceName, error: String) {
        let delay = self.backoff.next_delay();
        self.retry_at = Instant::now() + delay;
        let retry_in_ms = delay.as_millis();
        let (occurrence, text) = (self.repeated.failed(&error), "cannot open a health-check node port, retrying");
        warn_if_news!(occurrence, %service, port, %family, error, retry_in_ms, "{text}");
        self.error = error;
    }
}

/// Listens at all addresses of one family: each family has its own count of endpoints.
fn bind(CheckPort { port, family }: CheckPort) -> io::Result<TcpListener> {
    let any: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    http::bind(SocketAddr::new(any, port.get()))
}

/// The sources of the answers.
#[derive(Clone, Debug)]
struct CheckSources {
    checks: watch::Receiver<Checks>,
    progress: watch::Receiver<Progress>,
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
async fn serve(listener: TcpListener, port: CheckPort, connections: HttpConnections, sources: CheckSources) {
    let span = info_span!("health checks", port = port.port, family = %port.family);
    http::serve(listener, "health checks", connections, move |_| sources.answer(port)).instrument(span).await;
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

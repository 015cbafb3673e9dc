//! Opens and closes the listeners that the checks require, and answers requests over HTTP/1.1. A port that cannot be
//! opened is retried while it is required.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hyper::{
    Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use proto::model::{FailureKind, ServicePortFailure};
use runtime::{
    Backoff, TokenBucket,
    failure::{Recovery, Repeated},
    http::{self, HttpConnections, JSON},
    warn_if_news,
};
use serde::Serialize;
use tokio::{
    net::TcpListener,
    sync::watch::{self, error::RecvError},
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::{Instrument as _, debug, info, info_span};

use super::{
    HealthChecks,
    addresses::{LIST_INTERVAL, ListenAddresses, Listing},
    checks::{Check, CheckPort, Checks},
};
use crate::{LINE_RATE, Progress, ServiceName, dataplane::NodePortAddresses};

/// The shortest delay before a port that cannot be opened is retried.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The longest delay before a port that cannot be opened is retried.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The soft limit of open files that most systems set.
const USUAL_FILE_LIMIT: u64 = 1024;

/// The weight by which a load balancer distributes traffic among nodes: the number of endpoints.
const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// All listeners of a node.
#[derive(Debug)]
pub(crate) struct HealthCheckServers {
    checks: watch::Receiver<Checks>,
    progress: watch::Receiver<Progress>,
    /// The bounds of connections of all ports together.
    connections: HttpConnections,
    pub(super) addresses: ListenAddresses,
    /// The most listeners that may be open. Further listeners wait until others are closed.
    pub(super) max_open: usize,
    /// The task that owns each listener.
    open: BTreeMap<Listener, JoinSet<()>>,
    failing: BTreeMap<Listener, FailingPort>,
    lines: PortLines,
    /// The ports that cannot be opened.
    failures: watch::Sender<Vec<ServicePortFailure>>,
}

/// A port at an address of the node, or at the unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listener {
    port: CheckPort,
    address: IpAddr,
}

/// The log lines about ports that are opened or closed, or cannot be opened. A tenant decides their number: some ports
/// have a line of their own, the others share a line.
#[derive(Debug)]
struct PortLines {
    bucket: TokenBucket,
    /// The ports without a line so far.
    others: usize,
    /// When the line about the others is due.
    line_at: Option<Instant>,
}

/// A listener that cannot be opened.
#[derive(Debug)]
struct FailingPort {
    error: String,
    repeated: Repeated,
    backoff: Backoff,
    /// When to try again. `None`: as soon as another listener is closed, because the limit is reached.
    retry_at: Option<Instant>,
}

impl HealthCheckServers {
    /// Starts without listeners, which will be at these addresses.
    pub(crate) fn new(
        health: &HealthChecks,
        addresses: NodePortAddresses,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        Self {
            checks: health.checks.subscribe(),
            progress,
            connections: HttpConnections::default(),
            addresses: ListenAddresses::new(addresses),
            max_open: max_open(),
            open: BTreeMap::new(),
            failing: BTreeMap::new(),
            lines: PortLines { bucket: TokenBucket::full(Instant::now()), others: 0, line_at: None },
            failures: health.failure_sender.clone(),
        }
    }

    /// Opens and closes listeners until the [`HealthChecks`] are dropped. Dropping the future closes all of them.
    pub(crate) async fn run(mut self) {
        loop {
            self.lines.log_others();
            match self.addresses.list().await {
                Listing::Addresses(interfaces) => {
                    self.reconcile(&interfaces).await;
                    self.publish_failures();
                    if self.wait().await.is_err() {
                        return;
                    }
                }
                Listing::Failed { retry_in } => {
                    // The listeners stay as they are.
                    self.publish_failures();
                    sleep(retry_in).await;
                    if self.checks.has_changed().is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits until listeners may have to be opened or closed. Fails when the [`HealthChecks`] are dropped.
    async fn wait(&mut self) -> Result<(), RecvError> {
        let retries = self.failing.values().filter_map(|failing| failing.retry_at);
        let next = retries.chain(self.lines.line_at).min();
        let has_ports = self.checks.borrow().owners().next().is_some();
        let relists = has_ports && self.addresses.depend_on_interfaces();
        tokio::select! {
            changed = self.checks.changed() => changed,
            () = runtime::sleep_until(next) => Ok(()),
            () = sleep(LIST_INTERVAL), if relists => Ok(()),
        }
    }

    async fn reconcile(&mut self, interfaces: &HashSet<IpAddr>) {
        let desired = self.desired(interfaces);
        self.failing.retain(|listener, _| desired.contains_key(listener));
        self.close_others(&desired).await;

        let now = Instant::now();
        for (listener, service) in desired {
            let retry_at = self.failing.get(&listener).and_then(|failing| failing.retry_at);
            let is_due = retry_at.is_none_or(|retry_at| retry_at <= now);
            if is_due && !self.open.contains_key(&listener) {
                self.open(listener, &service);
            }
        }
    }

    /// The listeners that the newest checks require, each with its Service.
    fn desired(&mut self, interfaces: &HashSet<IpAddr>) -> BTreeMap<Listener, ServiceName> {
        let checks = self.checks.borrow_and_update().clone();
        let mut desired = BTreeMap::new();
        for (port, service) in checks.owners() {
            let primary = checks.primary_addresses[port.family];
            let mut addresses = self.addresses.of_family(port.family, primary, interfaces);
            if !addresses.contains(&port.family.unspecified()) {
                addresses.extend(checks.load_balancer_ips(service, port.family));
            }
            for address in addresses {
                desired.insert(Listener { port, address }, service.clone());
            }
        }
        desired
    }

    async fn close_others(&mut self, desired: &BTreeMap<Listener, ServiceName>) {
        let closing = self.open.extract_if(.., |listener, _| !desired.contains_key(listener));
        for (Listener { port: CheckPort { port, family }, address }, mut task) in closing {
            // Frees the port before this returns.
            task.shutdown().await;
            if self.lines.has_own() {
                info!(port, %family, %address, "closed a health-check node port");
            } else {
                debug!(port, %family, %address, "closed another health-check node port");
            }
        }
    }

    fn open(&mut self, listener: Listener, service: &ServiceName) {
        match self.bind(listener) {
            Ok(socket) => {
                self.log_opened(listener, service);
                let task = self.serve(listener.port, socket);
                self.open.insert(listener, task);
            }
            Err(error) => self.open_failed(listener, service, error),
        }
    }

    fn bind(&self, listener: Listener) -> Result<TcpListener, String> {
        if !self.has_room() {
            return Err(format!("the limit of open files allows {} listeners for health checks", self.max_open));
        }
        // Programs of clouds give the node a load-balancer IP at any time.
        let address = SocketAddr::new(listener.address, listener.port.port.get());
        http::bind_early(address).map_err(|error| error.to_string())
    }

    fn has_room(&self) -> bool {
        self.open.len() < self.max_open
    }

    fn log_opened(&mut self, listener: Listener, service: &ServiceName) {
        let Listener { port: CheckPort { port, family }, address } = listener;
        if self.lines.has_own() {
            info!(%service, port, %family, %address, "opened a health-check node port");
        } else {
            debug!(%service, port, %family, %address, "opened another health-check node port");
        }

        let recovery = self.failing.remove(&listener).and_then(|mut failing| failing.repeated.recovered());
        if let Some(Recovery { count: failures, duration }) = recovery {
            let after_ms = duration.as_millis();
            info!(%service, port, %family, failures, after_ms, "opened the health-check node port after failures");
        }
    }

    /// Answers the requests at a listener. Dropping the task closes all its connections.
    fn serve(&self, check_port: CheckPort, socket: TcpListener) -> JoinSet<()> {
        let CheckPort { port, family } = check_port;
        let checks = self.checks.clone();
        let progress = self.progress.clone();
        let serving = http::serve(socket, "health checks", self.connections.clone(), move |_| {
            let progress = progress.borrow();
            let is_healthy = progress.is_alive() && progress.kernel.is_usable(family);
            answer(checks.borrow().get(check_port), is_healthy)
        });

        let mut task = JoinSet::new();
        task.spawn(serving.instrument(info_span!("health checks", port, %family)));
        task
    }

    /// Logs a failure and schedules the retry, unless the reconcile that closes another listener has to try again.
    fn open_failed(&mut self, listener: Listener, service: &ServiceName, error: String) {
        let is_known = self.failing.get(&listener).is_some_and(|failing| failing.error == error);
        let has_line = is_known || self.lines.has_own();
        let has_room = self.has_room();
        let failing = self.failing.entry(listener).or_insert_with(FailingPort::new);

        let delay = if has_room { Some(failing.backoff.next_delay()) } else { None };
        failing.retry_at = delay.map(|delay| Instant::now() + delay);

        let CheckPort { port, family } = listener.port;
        let retry_in_ms = delay.map(|delay| delay.as_millis());
        let mut occurrence = failing.repeated.failed(&error);
        occurrence.is_news &= has_line;
        warn_if_news!(
            occurrence, %service, port, %family, error, retry_in_ms,
            "cannot open a health-check node port, retrying"
        );
        failing.error = error;
    }

    fn publish_failures(&self) {
        let checks = self.checks.borrow();
        let failures = self.failing.iter().filter_map(|(listener, failing)| failing.failure(*listener, &checks));
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by(|one, other| (&one.key, &one.reason).cmp(&(&other.key, &other.reason)));
        self.failures.send_if_modified(|published| {
            let before = mem::replace(published, failures);
            before != *published
        });
    }
}

impl PortLines {
    /// Whether the port has a line of its own.
    fn has_own(&mut self) -> bool {
        match self.bucket.take(LINE_RATE, Instant::now()) {
            Ok(()) => true,
            Err(next_line) => {
                self.others += 1;
                self.line_at = Some(next_line);
                false
            }
        }
    }

    /// Logs the line about the others if it is due.
    fn log_others(&mut self) {
        let now = Instant::now();
        if self.line_at.is_none_or(|line_at| now < line_at) {
            return;
        }
        self.line_at = self.bucket.take(LINE_RATE, now).err();
        if self.line_at.is_none() {
            let count = mem::take(&mut self.others);
            info!(count, "opened, closed or failed to open further health-check node ports");
        }
    }
}

impl FailingPort {
    fn new() -> Self {
        Self {
            error: String::new(),
            repeated: Repeated::default(),
            backoff: Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY),
            retry_at: None,
        }
    }

    /// The failure to report; `None` if no Service has the port any more.
    fn failure(&self, listener: Listener, checks: &Checks) -> Option<ServicePortFailure> {
        let Listener { port: check_port, address } = listener;
        let CheckPort { port, family } = check_port;
        let key = checks.key(checks.get(check_port)?.service)?.clone();
        let at = if address.is_unspecified() { String::new() } else { format!(" at {address}") };
        let reason = format!("health-check node port {port} ({family}) cannot be opened{at}: {}", self.error);
        // The port is opened as soon as that is possible.
        Some(ServicePortFailure { key, reason, retryable: true, kind: FailureKind::HealthCheck })
    }
}

/// Half of the limit of open files, since tenants decide how many listeners there are: the rest is for connections, the
/// kernel and files.
fn max_open() -> usize {
    let limit = runtime::file_limit().unwrap_or(USUAL_FILE_LIMIT);
    usize::try_from(limit / 2).unwrap_or(usize::MAX)
}

/// The body, with the fields that kube-proxy has.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerBody<'a> {
    service: &'a ServiceName,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

/// 200 when the node has endpoints of the Service, the family is programmed, and syncs have not been failing for too
/// long: a single failed write must not take the node out of all load balancers.
fn answer(check: Option<Check<'_>>, healthy: bool) -> Response<String> {
    let Some(Check { service, local_endpoints }) = check else {
        // The Service was removed just now, and the listener is about to be closed.
        return response(StatusCode::SERVICE_UNAVAILABLE, 0, String::new());
    };
    let status = if local_endpoints > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = AnswerBody { service, local_endpoints, service_proxy_healthy: healthy };
    // Strings and numbers are always JSON.
    response(status, local_endpoints, serde_json::to_string(&body).unwrap_or_default())
}

fn response(status: StatusCode, weight: usize, body: String) -> Response<String> {
    let mut response = http::response(status, JSON, body);
    response.headers_mut().insert(ENDPOINT_WEIGHT, HeaderValue::from(weight));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ports_that_are_opened_and_closed_without_a_pause_share_lines() {
        let mut lines = PortLines { bucket: TokenBucket::full(Instant::now()), others: 0, line_at: None };
        let (mut own, mut shared) = (0, 0);
        for _ in 0..6_000 {
            let before = lines.others;
            lines.log_others();
            shared += usize::from(lines.others < before);
            own += usize::from(lines.has_own());
            assert!(lines.others <= 60, "{}", lines.others);
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!(own < 20 && (100..150).contains(&shared), "{own} and {shared} in a minute");
        tokio::time::advance(LINE_RATE.every).await;
        lines.log_others();
        assert_eq!((lines.others, lines.line_at), (0, None));
    }
}

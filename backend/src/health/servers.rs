//! Opens and closes the listeners that the checks require, and answers requests over HTTP/1.1. A port that cannot be
//! opened is retried while it is required.

use std::{
    collections::{BTreeMap, HashSet},
    io, mem,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hyper::{
    Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use proto::model::{FailureKind, IpFamily, ServicePortFailure};
use runtime::{
    Backoff, TokenBucket,
    failure::{Recovery, Repeated, chain},
    http::{self, HttpConnections, JSON},
    warn_if_news,
};
use serde::Serialize;
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep},
};
use tracing::{Instrument as _, debug, info, info_span};

use super::{
    HealthChecks,
    checks::{Check, CheckPort, Checks},
};
use crate::{
    LINE_RATE, Progress, ServiceName,
    dataplane::{IPVS_DEVICE, NodePortAddresses},
};

/// The shortest delay before a port that cannot be opened is retried.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The longest delay before a port that cannot be opened, or addresses that cannot be listed, are tried again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// How often the addresses of interfaces are listed, if listeners depend on them, and the first delay after a failure:
/// a load balancer that probes a new address soon finds the port open. Listing is cheap: the kernel takes about 10 ms
/// for 10,000 VIPs of IPVS, and less than a millisecond for a few addresses.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(1);

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
    addresses: NodePortAddresses,
    /// Lists the addresses of the node's interfaces, without VIPs. Blocks.
    pub(super) list_addresses: fn() -> io::Result<HashSet<IpAddr>>,
    listing: Repeated,
    list_backoff: Backoff,
    /// How many may be open. Further ones wait until others are closed.
    pub(super) max_open: usize,
    /// The task that owns each listener.
    open: BTreeMap<Listener, JoinSet<()>>,
    failing: BTreeMap<Listener, FailingPort>,
    lines: PortLines,
    /// The ports that cannot be opened.
    failures: watch::Sender<Vec<ServicePortFailure>>,
}

/// A port at an address of the node, or at the unspecified one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listener {
    port: CheckPort,
    address: IpAddr,
}

/// Which ports that are opened or closed, or cannot be opened, have a line of their own. The others share one.
#[derive(Debug)]
struct PortLines {
    bucket: TokenBucket,
    others: usize,
    /// When the line about the others is due.
    line_at: Option<Instant>,
}

#[derive(Debug)]
struct FailingPort {
    error: String,
    repeated: Repeated,
    backoff: Backoff,
    /// `None`: as soon as another listener is closed.
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
            addresses,
            list_addresses: || netlink::rtnl::addresses_except(&[IPVS_DEVICE]).map_err(io::Error::other),
            listing: Repeated::default(),
            list_backoff: Backoff::new(ADDRESS_INTERVAL, MAX_RETRY_DELAY),
            max_open: max_open(),
            open: BTreeMap::new(),
            failing: BTreeMap::new(),
            lines: PortLines { bucket: TokenBucket::full(Instant::now()), others: 0, line_at: None },
            failures: health.failures.0.clone(),
        }
    }

    /// Opens and closes listeners until the [`HealthChecks`] are dropped. Dropping the future closes all of them.
    pub(crate) async fn run(mut self) {
        loop {
            self.lines.log_others();
            let interfaces = match self.interface_addresses().await {
                Ok(interfaces) => interfaces,
                // The listeners stay as they are.
                Err(delay) => {
                    self.publish_failures();
                    sleep(delay).await;
                    if self.checks.has_changed().is_err() {
                        return;
                    }
                    continue;
                }
            };
            self.reconcile(&interfaces).await;
            self.publish_failures();
            let retry_at = self.failing.values().filter_map(|failing| failing.retry_at);
            let next = retry_at.chain(self.lines.line_at).min();
            let has_ports = self.checks.borrow().owners().next().is_some();
            tokio::select! {
                changed = self.checks.changed() => if changed.is_err() { return },
                () = runtime::sleep_until(next) => {}
                () = sleep(ADDRESS_INTERVAL), if has_ports && self.depends_on_interfaces() => {}
            }
        }
    }

    fn depends_on_interfaces(&self) -> bool {
        let NodePortAddresses::Cidrs(ranges) = &self.addresses else { return false };
        ranges.iter().any(|range| range.prefix_len() > 0)
    }

    /// The addresses of a family to listen at, as node ports answer: loopback addresses are excluded, and so are
    /// link-local ones, which need an interface.
    fn addresses(&self, family: IpFamily, checks: &Checks, interfaces: &HashSet<IpAddr>) -> Vec<IpAddr> {
        let NodePortAddresses::Cidrs(ranges) = &self.addresses else {
            return checks.primary_addresses[family].into_iter().collect();
        };
        let is_of_family = |address: IpAddr| IpFamily::of(&address) == family;
        if ranges.iter().any(|range| range.prefix_len() == 0 && is_of_family(range.addr())) {
            return vec![family.unspecified()];
        }
        let is_listened_at = |address: &IpAddr| is_of_family(*address) && self.addresses.serve(address);
        interfaces.iter().copied().filter(is_listened_at).collect()
    }

    /// The addresses of the node's interfaces, if listeners depend on them. An error is the delay before the next try.
    async fn interface_addresses(&mut self) -> Result<HashSet<IpAddr>, Duration> {
        if !self.depends_on_interfaces() {
            return Ok(HashSet::new());
        }
        // The thread inherits the network namespace.
        let listed = spawn_blocking(self.list_addresses).await;
        match listed.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
            Ok(addresses) => {
                self.list_backoff.reset();
                if let Some(Recovery { count: failures, duration }) = self.listing.recovered() {
                    let after_ms = duration.as_millis();
                    info!(failures, after_ms, "the node's addresses for health-check node ports could be listed again");
                }
                Ok(addresses)
            }
            Err(error) => {
                let delay = self.list_backoff.next_delay();
                let (error, retry_in_ms) = (chain(&error), delay.as_millis());
                let occurrence = self.listing.failed(&error);
                warn_if_news!(
                    occurrence,
                    error,
                    retry_in_ms,
                    "cannot list the node's addresses for health-check node ports, retrying"
                );
                Err(delay)
            }
        }
    }

    async fn reconcile(&mut self, interfaces: &HashSet<IpAddr>) {
        let mut desired: BTreeMap<Listener, ServiceName> = BTreeMap::new();
        let checks = self.checks.borrow_and_update().clone();
        for (port, service) in checks.owners() {
            let mut addresses = self.addresses(port.family, &checks, interfaces);
            if !addresses.contains(&port.family.unspecified()) {
                addresses.extend(checks.load_balancer_ips(service, port.family));
            }
            for address in addresses {
                desired.insert(Listener { port, address }, service.clone());
            }
        }
        self.failing.retain(|listener, _| desired.contains_key(listener));
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
        let now = Instant::now();
        for (listener, service) in desired {
            let retry_at = self.failing.get(&listener).and_then(|failing| failing.retry_at);
            let due = retry_at.is_none_or(|retry_at| retry_at <= now);
            if due && !self.open.contains_key(&listener) {
                self.open(listener, &service);
            }
        }
    }

    fn publish_failures(&self) {
        let checks = self.checks.borrow();
        let failures = self.failing.iter().filter_map(|(Listener { port: check_port, address }, failing)| {
            let key = checks.key(checks.get(*check_port)?.service)?.clone();
            let CheckPort { port, family } = check_port;
            let at = if address.is_unspecified() { String::new() } else { format!(" at {address}") };
            let error = &failing.error;
            let reason = format!("health-check node port {port} ({family}) cannot be opened{at}: {error}");
            // It is opened as soon as that is possible.
            Some(ServicePortFailure { key, reason, retryable: true, kind: FailureKind::HealthCheck })
        });
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by(|one, other| (&one.key, &one.reason).cmp(&(&other.key, &other.reason)));
        self.failures.send_if_modified(|published| {
            let before = mem::replace(published, failures);
            before != *published
        });
    }

    fn open(&mut self, listener: Listener, service: &ServiceName) {
        let Listener { port: check_port @ CheckPort { port, family }, address } = listener;
        let bound = if self.open.len() < self.max_open {
            // Programs of clouds give the node a load-balancer IP at any time.
            http::bind_early(SocketAddr::new(address, port.get())).map_err(|error| error.to_string())
        } else {
            Err(format!("the limit of open files allows {} listeners for health checks", self.max_open))
        };
        match bound {
            Ok(socket) => {
                if self.lines.has_own() {
                    info!(%service, port, %family, %address, "opened a health-check node port");
                } else {
                    debug!(%service, port, %family, %address, "opened another health-check node port");
                }
                let recovery = self.failing.remove(&listener).and_then(|mut failing| failing.repeated.recovered());
                if let Some(Recovery { count: failures, duration }) = recovery {
                    let after_ms = duration.as_millis();
                    info!(%service, port, %family, failures, after_ms, "health-check node port could be opened again");
                }
                let (checks, progress) = (self.checks.clone(), self.progress.clone());
                let serving = http::serve(socket, "health checks", self.connections.clone(), move |_| {
                    let progress = progress.borrow();
                    let is_healthy = progress.is_alive() && progress.kernel.is_usable(family);
                    answer(checks.borrow().get(check_port), is_healthy)
                });
                let mut task = JoinSet::new();
                // Dropping it closes all connections.
                task.spawn(serving.instrument(info_span!("health checks", port, %family)));
                self.open.insert(listener, task);
            }
            Err(error) => {
                // The reconcile that closes another listener tries again.
                let is_retried = self.open.len() < self.max_open;
                let is_known = self.failing.get(&listener).is_some_and(|failing| failing.error == error);
                let has_line = is_known || self.lines.has_own();
                let failing = self.failing.entry(listener).or_insert_with(|| FailingPort {
                    error: String::new(),
                    repeated: Repeated::default(),
                    backoff: Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY),
                    retry_at: None,
                });
                failing.failed(check_port, service, error, is_retried, has_line);
            }
        }
    }
}

impl PortLines {
    /// Whether the port has a line of its own.
    fn has_own(&mut self) -> bool {
        let next_line = self.bucket.take(LINE_RATE, Instant::now()).err();
        self.others += usize::from(next_line.is_some());
        self.line_at = next_line.or(self.line_at);
        next_line.is_none()
    }

    /// Logs the line about the others if it is due.
    fn log_others(&mut self) {
        let now = Instant::now();
        if self.line_at.is_some_and(|line_at| line_at <= now) {
            self.line_at = self.bucket.take(LINE_RATE, now).err();
            if self.line_at.is_none() {
                let count = mem::take(&mut self.others);
                info!(count, "opened or closed other health-check node ports, or could not open them");
            }
        }
    }
}

impl FailingPort {
    /// Logs the failure and schedules the retry, if time can help.
    fn failed(
        &mut self,
        CheckPort { port, family }: CheckPort,
        service: &ServiceName,
        error: String,
        is_retried: bool,
        has_line: bool,
    ) {
        let delay = is_retried.then(|| self.backoff.next_delay());
        self.retry_at = delay.map(|delay| Instant::now() + delay);
        let retry_in_ms = delay.map(|delay| delay.as_millis());
        let mut occurrence = self.repeated.failed(&error);
        occurrence.is_news &= has_line;
        warn_if_news!(
            occurrence, %service, port, %family, error, retry_in_ms,
            "cannot open a health-check node port, which is opened as soon as that is possible"
        );
        self.error = error;
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

//! Opens and closes the listeners that the checks require. A port that cannot be opened is retried while it is
//! required.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use proto::model::{FailureKind, IpFamily, ServicePortFailure};
use runtime::{
    Backoff,
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::info;

use super::{
    HealthChecks,
    answer::{self, CheckSources},
    checks::{CheckPort, Checks, ServiceName},
};
use crate::Progress;

/// The shortest and the longest delay before a port that cannot be opened is retried.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// All listeners of a node.
#[derive(Debug)]
pub(crate) struct HealthCheckServers {
    checks: watch::Receiver<Checks>,
    sources: CheckSources,
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
        Self { checks, sources, open: BTreeMap::new(), failing: BTreeMap::new(), failures }
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
        let rejected = rejected.map(|(port, service, owner)| (service, port, format!("belongs to {owner}")));
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
                if let Some(mut failing) = self.failing.remove(&check_port) {
                    failing.recovered(check_port, service);
                }
                let mut task = JoinSet::new();
                task.spawn(answer::serve(listener, check_port, self.sources.clone()));
                self.open.insert(check_port, task);
            }
            Err(error) => {
                let failing = self.failing.entry(check_port).or_insert_with(FailingPort::new);
                failing.failed(check_port, service, error.to_string());
            }
        }
    }
}

impl FailingPort {
    fn new() -> Self {
        Self {
            error: String::new(),
            repeated: Repeated::default(),
            backoff: Backoff::new(RETRY_DELAY.0, RETRY_DELAY.1),
            retry_at: Instant::now(),
        }
    }

    /// Logs the failure and schedules the retry.
    fn failed(&mut self, CheckPort { port, family }: CheckPort, service: &ServiceName, error: String) {
        let delay = self.backoff.next_delay();
        self.retry_at = Instant::now() + delay;
        let retry_in_ms = delay.as_millis();
        let (occurrence, text) = (self.repeated.failed(&error), "cannot open a health-check node port, retrying");
        warn_if_news!(occurrence, %service, port, %family, error, retry_in_ms, "{text}");
        self.error = error;
    }

    fn recovered(&mut self, CheckPort { port, family }: CheckPort, service: &ServiceName) {
        if let Some(Recovery { count, duration }) = self.repeated.recovered() {
            let after_ms = duration.as_millis();
            info!(%service, port, %family, failures = count, after_ms, "health-check node port could be opened again");
        }
    }
}

/// Listens at all addresses of one family: each family has its own count of endpoints.
fn bind(CheckPort { port, family }: CheckPort) -> io::Result<TcpListener> {
    let any: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    runtime::http::bind(SocketAddr::new(any, port.get()))
}

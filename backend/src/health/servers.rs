//! Keeps the listeners those that the checks ask for: level-triggered, so a port that could not be opened is tried until it is, or until
//! nobody wants it any more.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use proto::model::{FailureKind, IpFamily, ServicePortFailure};
use runtime::Backoff;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    Health,
    answer::{self, Facts},
    checks::{Checks, Place, ServiceName},
};
use crate::Progress;

/// The shortest and the longest delay before a port that could not be opened is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// All listeners of a node.
#[derive(Debug)]
pub(crate) struct Servers {
    checks: watch::Receiver<Checks>,
    facts: Facts,
    /// The one task that owns each socket.
    open: BTreeMap<Place, JoinSet<()>>,
    failing: BTreeMap<Place, Failing>,
    /// What is told of those, and of those who have not got their port.
    failures: watch::Sender<Vec<ServicePortFailure>>,
}

/// A port that could not be opened.
#[derive(Debug)]
struct Failing {
    error: String,
    backoff: Backoff,
    retry: Instant,
}

impl Servers {
    /// No listeners yet, but all that [`Health`] will ask for.
    pub(crate) fn new(health: &Health, progress: watch::Receiver<Progress>) -> Self {
        let checks = health.checks.subscribe();
        let facts = Facts { checks: checks.clone(), progress };
        let failures = health.failures.0.clone();
        Self { checks, facts, open: BTreeMap::new(), failing: BTreeMap::new(), failures }
    }

    /// Opens and closes listeners until the [`Health`] is gone. Dropping the future closes them all.
    pub(crate) async fn run(mut self) {
        loop {
            self.reconcile().await;
            self.tell();
            let retry = self.failing.values().map(|failing| failing.retry).min();
            tokio::select! {
                changed = self.checks.changed() => if changed.is_err() { return },
                () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
            }
        }
    }

    async fn reconcile(&mut self) {
        let wanted: BTreeMap<Place, ServiceName> =
            self.checks.borrow_and_update().holders().map(|(place, name)| (place, name.clone())).collect();
        self.failing.retain(|place, _| wanted.contains_key(place));
        let unwanted = self.open.extract_if(.., |place, _| !wanted.contains_key(place));
        for (Place { port, family }, mut task) in unwanted {
            // Waited for, so that the port is free when this returns.
            task.shutdown().await;
            info!(port, %family, "health-check node port closed");
        }
        let now = Instant::now();
        for (place, service) in wanted {
            let due = self.failing.get(&place).is_none_or(|failing| failing.retry <= now);
            if due && !self.open.contains_key(&place) {
                self.open(place, service);
            }
        }
    }

    /// Says which health-check node ports nobody answers at, for the service that claims it.
    fn tell(&self) {
        let checks = self.checks.borrow();
        let failing = checks.holders().filter_map(|(place, service)| {
            let Failing { error, .. } = self.failing.get(&place)?;
            Some((service, place, format!("cannot be opened: {error}")))
        });
        let refused = checks.losers();
        let refused = refused.map(|(place, loser, holder)| (loser, place, format!("belongs to {holder}")));
        let failures = failing.chain(refused).filter_map(|(service, Place { port, family }, why)| {
            let reason = format!("health-check node port {port} ({family}) {why}");
            let key = checks.key(service)?.clone();
            // The agent goes on by itself in both cases, and opens it when it can be had.
            Some(ServicePortFailure { key, reason, retryable: true, kind: FailureKind::HealthCheck })
        });
        let mut failures: Vec<_> = failures.collect();
        failures.sort_by(|one, other| (&one.key, &one.reason).cmp(&(&other.key, &other.reason)));
        self.failures.send_if_modified(|told| {
            let differs = *told != failures;
            *told = failures;
            differs
        });
    }

    fn open(&mut self, place: Place, service: ServiceName) {
        let Place { port, family } = place;
        match bind(place) {
            Ok(listener) => {
                info!(%service, port, %family, "health-check node port open");
                self.failing.remove(&place);
                let mut task = JoinSet::new();
                task.spawn(answer::serve(listener, place, self.facts.clone()));
                self.open.insert(place, task);
            }
            Err(error) => {
                let error = error.to_string();
                let failing = self.failing.entry(place).or_insert_with(Failing::new);
                if failing.failed(&error) {
                    warn!(%service, port, %family, error, "health-check node port cannot be opened, trying again");
                }
            }
        }
    }
}

// === impl Failing ===

impl Failing {
    fn new() -> Self {
        Self { error: String::new(), backoff: Backoff::new(RETRY.0, RETRY.1), retry: Instant::now() }
    }

    /// Puts off the next try. Says whether this failure is another one than the last.
    fn failed(&mut self, error: &str) -> bool {
        self.retry = Instant::now() + self.backoff.next_delay();
        let differs = self.error != error;
        error.clone_into(&mut self.error);
        differs
    }
}

/// Listens at all addresses of one family; each has a listener of its own, with a count of its own.
fn bind(Place { port, family }: Place) -> io::Result<TcpListener> {
    let any: IpAddr = match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    runtime::http::bind(SocketAddr::new(any, port.get()))
}

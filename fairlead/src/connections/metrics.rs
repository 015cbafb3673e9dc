//! The metrics of `--connection-metrics`: the open connections of Services on this node, and the source ports of
//! masquerading.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backend::{ServiceName, StoredState};
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    registry::{Registry, Unit},
};
use runtime::{Shutdown, failure::Repeated, lock, metrics::Writer, warn_if_news};
use tokio::{task::spawn_blocking, time::sleep};

use super::{Grouping, Query, Report, SourcePortUse, count};

/// How many Services have a metric, because each of the cluster's Services would be a series of each node otherwise.
const MAX_SERVICES: usize = 100;
/// From which share of the ports on a destination has a metric. Others would come and go with each pass.
const REPORTED_PERCENT: u64 = 10;
/// The shortest rest after a pass.
const MIN_REST: Duration = Duration::from_secs(15);
/// A pass rests for so many times as long as it took: it uses 1 % of a core.
const REST_FACTOR: u32 = 100;

/// The result of the last pass. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionMetrics(Arc<Mutex<Option<LastPass>>>);

#[derive(Clone, Debug)]
struct LastPass {
    /// The Services with most open connections.
    services: Vec<(ServiceName, u64)>,
    source_ports: Vec<SourcePortUse>,
    duration: Duration,
}

impl ConnectionMetrics {
    pub(crate) fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("fairlead_backend").register_collector(Box::new(self.clone()));
        registry
    }

    /// Counts again and again until the shutdown.
    pub(crate) async fn run(self, state_file: PathBuf, node: String, mut shutdown: Shutdown) {
        let mut failures = Repeated::default();
        // The first state is in the file by then.
        let mut pause = MIN_REST;
        while shutdown.run_until_started(sleep(pause)).await.is_some() {
            let begun = Instant::now();
            let file = state_file.clone();
            let node = node.clone();
            let pass = spawn_blocking(move || LastPass::count(&file, &node)).await.context("the pass was cancelled");
            pause = rest(begun.elapsed());

            let last = match pass.flatten() {
                Ok(pass) => {
                    failures.recovered();
                    Some(pass)
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    warn_if_news!(failures.failed(&error), error, "cannot count connections for metrics");
                    None
                }
            };
            *lock(&self.0) = last;
        }
    }
}

fn rest(pass: Duration) -> Duration {
    pass.saturating_mul(REST_FACTOR).max(MIN_REST)
}

impl LastPass {
    /// Blocks.
    fn count(state_file: &Path, node: &str) -> Result<Self> {
        let begun = Instant::now();
        let stored = StoredState::read(state_file, node)
            .with_context(|| format!("cannot read the state file {}", state_file.display()))?;
        let report = count(&stored.state, &Query { by: Grouping::Service, service: None }, |_| {})?;
        let services = largest_services(&report);
        let mut source_ports = report.source_ports;
        source_ports.retain(|ports| ports.percent() >= REPORTED_PERCENT);
        Ok(Self { services, source_ports, duration: begun.elapsed() })
    }
}

/// The Services with most open connections.
fn largest_services(report: &Report) -> Vec<(ServiceName, u64)> {
    let mut open = BTreeMap::<_, u64>::new();
    for row in &report.translated.rows {
        let service = ServiceName { namespace: row.namespace.as_str().into(), name: row.service.as_str().into() };
        *open.entry(service).or_default() += row.counts.open;
    }

    let mut largest: Vec<_> = open.into_iter().collect();
    largest.sort_unstable_by(|(name, open), (other, others)| (Reverse(open), name).cmp(&(Reverse(others), other)));
    largest.truncate(MAX_SERVICES);
    largest
}

impl Collector for ConnectionMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(LastPass { services, source_ports, duration }) = lock(&self.0).clone() else { return Ok(()) };
        let mut writer = Writer::new(encoder);

        let text = "Open connections that this node translates to endpoints, of the 100 Services with the most.";
        let samples = services
            .iter()
            .map(|(service, open)| ([("namespace", &*service.namespace), ("service", &*service.name)], *open as f64));
        writer.labelled_gauge("connections", text, None, samples)?;

        let text = "Source ports that masquerading uses to a destination, of 64,512, from 10 % on: at most ten \
                    destinations.";
        let mut labels = Vec::new();
        for SourcePortUse { protocol, source, destination, used } in &source_ports {
            labels.push((protocol, source.to_string(), destination.to_string(), *used));
        }
        let samples = labels.iter().map(|(protocol, source, destination, used)| {
            ([("protocol", protocol.as_str()), ("source", source), ("destination", destination)], *used as f64)
        });
        writer.labelled_gauge("source_ports", text, None, samples)?;

        let text =
            "How long the last pass over the conntrack table took; the next one follows after 100 times as long.";
        writer.gauge("connections_pass_duration", text, Some(Unit::Seconds), duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Counts, Row, Section},
        *,
    };

    fn row(service: &str, port: &str, open: u64) -> Row {
        Row {
            namespace: "default".to_owned(),
            service: service.to_owned(),
            service_port: format!("default/{service}:{port}/tcp"),
            endpoint: None,
            client: None,
            in_use: true,
            counts: Counts { open, closing: 1000, ..Counts::default() },
            even: None,
        }
    }

    fn report(rows: Vec<Row>) -> Report {
        Report {
            by: Grouping::Service,
            tracked: 0,
            translated: Section { rows, ..Section::default() },
            arriving: Section::default(),
            source_ports: Vec::new(),
        }
    }

    #[test]
    fn ports_of_a_service_are_added_and_the_largest_come_first() {
        let largest = largest_services(&report(vec![row("a", "http", 1), row("b", "http", 1), row("b", "https", 2)]));
        let named: Vec<_> = largest.iter().map(|(service, open)| (service.to_string(), *open)).collect();
        assert_eq!(named, [("default/b".to_owned(), 3), ("default/a".to_owned(), 1)]);

        let many = (0..300).map(|number| row(&format!("s{number}"), "http", number)).collect();
        let largest = largest_services(&report(many));
        assert_eq!((largest.len(), largest[0].1, largest[99].1), (100, 299, 200));
    }

    #[test]
    fn a_pass_rests_a_hundred_times_as_long() {
        assert_eq!(rest(Duration::from_secs(2)), Duration::from_secs(200));
        assert_eq!(rest(Duration::from_millis(1)), MIN_REST);
    }

    #[test]
    fn the_last_pass_is_scraped() {
        let metrics = ConnectionMetrics::default();
        let scrape = || runtime::metrics::scrape([&metrics.registry()]).into_body();
        assert_eq!(scrape(), "# EOF\n", "before the first pass");

        let source_ports = vec![SourcePortUse {
            protocol: "tcp".to_owned(),
            source: "192.0.2.1".parse().unwrap(),
            destination: "[fd00::1]:443".parse().unwrap(),
            used: 17,
        }];
        let services = largest_services(&report(vec![row("web", "http", 5)]));
        *lock(&metrics.0) = Some(LastPass { services, source_ports, duration: Duration::from_millis(250) });
        let text = scrape();
        for line in [
            "fairlead_backend_connections{namespace=\"default\",service=\"web\"} 5.0",
            "fairlead_backend_source_ports{protocol=\"tcp\",source=\"192.0.2.1\",destination=\"[fd00::1]:443\"} 17.0",
            "fairlead_backend_connections_pass_duration_seconds 0.25",
        ] {
            assert!(text.lines().any(|scraped| scraped == line), "{line}: {text}");
        }
    }
}

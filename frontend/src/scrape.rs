//! The metrics address: counters and histograms of `metrics`, gauges that are read for a scrape, and whether this
//! replica is alive and ready.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc, time::UNIX_EPOCH};

use hyper::{Method, Request, Response, StatusCode};
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    registry::{Registry, Unit},
};
use proto::{model::Role, v1::WatchPhase};
use runtime::{
    Shutdown,
    http::{self, HttpConnections, TEXT, response},
    metrics::{self, Labels, Writer},
};
use tokio::net::TcpListener;
use tracing::info;

use crate::{
    Frontend, cached::Cached, cluster::ClusterState, context::FrontendContext, index::ProblemCounts,
    object::ObjectKind, source::KindFreshness,
};

/// Reads the gauges.
#[derive(Debug)]
struct Scrape(Arc<FrontendContext>);

impl Frontend {
    /// The metrics of this replica, to be served together with others.
    #[must_use]
    pub fn metrics(&self) -> Registry {
        let mut registry = self.context.metrics.registry();
        registry.register_collector(Box::new(Scrape(self.context.clone())));
        registry
    }

    /// Serves `/metrics`, computed at most once per second, `/healthz` and `/readyz` over HTTP until the shutdown.
    /// There is no authentication; responses contain no names of objects or nodes.
    /// `others`: metrics of other parts of the process.
    pub async fn serve_metrics(&self, listener: TcpListener, others: Vec<Registry>, mut shutdown: Shutdown) {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving metrics");
        }

        let context = self.context.clone();
        let last = Cached::default();
        let registries: Vec<_> = [self.metrics(), metrics::process()].into_iter().chain(others).collect();
        let serving = http::serve(listener, "metrics", HttpConnections::default(), move |request| {
            answer(request, &context.cluster, || last.get(|| metrics::scrape(&registries)))
        });
        shutdown.run_until_started(serving).await;
    }
}

fn answer<B>(
    request: &Request<B>,
    cluster: &ClusterState,
    scrape: impl FnOnce() -> Response<String>,
) -> Response<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "method not allowed: use GET or HEAD\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => scrape(),
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => ready(cluster),
        _ => response(
            StatusCode::NOT_FOUND,
            TEXT,
            "not found: the paths are /metrics, /healthz and /readyz\n".to_owned(),
        ),
    }
}

/// 200 when every kind has been listed. A replica that has lost the API server stays ready: other replicas would not
/// have newer state.
fn ready(cluster: &ClusterState) -> Response<String> {
    if cluster.is_ready() {
        return response(StatusCode::OK, TEXT, "ready\n".to_owned());
    }
    let missing: Vec<_> = cluster.index().missing().map(|kind| kind.to_string()).collect();
    let body = format!("not listed yet: {}\n", missing.join(", "));
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
}

impl Scrape {
    fn cluster(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let FrontendContext { cluster, started, .. } = &*self.0;
        let log = cluster.log();
        let service_ports = log.service_ports;
        let endpoints = log.endpoints;
        drop(log);
        let index = cluster.index();
        let objects = ObjectKind::ALL.map(|kind| (kind.to_string(), index.count(kind)));
        let ProblemCounts { problems, vip_conflicts, limited_services } = index.problems.counts();
        drop(index);
        let authn = self.0.authn_problems().len();
        let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();

        let text = "Always 1; its label is the version.";
        writer.labelled_gauge("info", text, None, [([("version", env!("CARGO_PKG_VERSION"))], 1.0)])?;

        let text = "Unix time at which this process, and with it its epoch, started.";
        writer.gauge("started_timestamp", text, Some(Unit::Seconds), started.as_secs_f64())?;

        let text = "1 when every kind of object has been listed; no client is served before.";
        writer.gauge("ready", text, None, f64::from(u8::from(cluster.is_ready())))?;

        let text = "Service ports that are served to nodes.";
        writer.gauge("service_ports", text, None, service_ports as f64)?;

        let text = "Endpoints of all service ports; an endpoint of several service ports is counted for each.";
        writer.gauge("endpoints", text, None, endpoints as f64)?;

        let text = "Valid objects of the cluster, by kind.";
        let objects = objects.iter().map(|(kind, count)| ([("kind", kind.as_str())], *count as f64));
        writer.labelled_gauge("objects", text, None, objects)?;

        let text = "Invalid fields of objects, TLS files that cannot be used, and keys that are missing to verify \
                    tokens; `fairlead status --problems` lists them.";
        writer.gauge("problems", text, None, (problems + authn) as f64)?;

        let text =
            "VIPs and node ports that service ports claim and do not get, because they belong to another object.";
        writer.gauge("vip_conflicts", text, None, vip_conflicts as f64)?;

        let text = "Services of which only a part is used, because they exceed a limit or claim addresses that are not \
                    allowed.";
        writer.gauge("limited_services", text, None, limited_services as f64)
    }

    fn nodes(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let fleet = self.0.streams.fleet();

        let text = "Nodes of the cluster, connected or not.";
        writer.gauge("nodes", text, None, fleet.nodes.len() as f64)?;

        let text = "Nodes of the cluster without a backend at this replica; most may be connected to another one.";
        writer.gauge("nodes_without_backend", text, None, fleet.disconnected().count() as f64)?;

        let text =
            "Backends connected to this replica whose Node object does not exist; they use its last known facts.";
        writer.gauge("backends_without_node", text, None, fleet.backends_without_node().count() as f64)?;

        let failing = || fleet.current_backends().filter(|status| !status.failures.is_empty());
        let text = "Nodes connected to this replica that could not program everything.";
        writer.gauge("nodes_with_failures", text, None, failing().count() as f64)?;

        let text = "Service ports that nodes connected to this replica could not program, summed over the nodes.";
        let failures = failing().map(|status| status.failures.len()).sum::<usize>();
        writer.gauge("failures", text, None, failures as f64)?;

        let text = "Nodes that have acknowledged a wrong digest to this replica within the last hour: their state \
                    differed and was repaired. A compromised node can claim that; several are a bug.";
        writer.gauge("nodes_repaired", text, None, fleet.differed() as f64)?;

        let text = "Nodes that this replica has rolled back within the last hour, because they claimed a newer source \
                    version and it did not catch up in time.";
        writer.gauge("nodes_rolled_back", text, None, fleet.rolled_back() as f64)?;

        let text = "Pods that end and to which some node may still send new connections; `fairlead status` says which.";
        let undrained = self.0.cluster.ending_pods().undrained_count(&fleet);
        writer.gauge("pods_not_drained", text, None, undrained as f64)?;

        let mut streams = BTreeMap::<_, usize>::new();
        for status in fleet.backends().chain(fleet.observers()) {
            let role = match status.role {
                Role::Backend => "backend",
                Role::Observer => "observer",
                Role::Shadow => "shadow",
            };
            *streams.entry([("role", role), ("mode", status.mode.name())]).or_default() += 1;
        }

        let text = "Open streams, by role (backend, observer or shadow) and by the mode in which they started.";
        writer.labelled_gauge("streams", text, None, streams.into_iter().map(|(labels, n)| (labels, n as f64)))?;

        let mut lags: Vec<_> = fleet.current_backends().map(|status| status.lag().as_secs_f64()).collect();
        let text = "For how long nodes connected to this replica have had a change to program: median (0.5), 0.99 and \
                    maximum (1); 0 for nodes that have programmed everything.";
        writer.labelled_gauge("node_lag", text, Some(Unit::Seconds), quantiles(&mut lags))
    }

    fn rebuild_queue(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let queue = &self.0.rebuild_queue;

        let text = "Nodes and administrators that are being sent a snapshot or a repair.";
        writer.gauge("rebuilds_running", text, None, queue.running() as f64)?;

        let text = "Streams that wait in the queue for a snapshot or a repair.";
        writer.gauge("rebuilds_waiting", text, None, queue.waiting() as f64)
    }

    fn watches(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let kinds = self.0.freshness.snapshot();
        let names: Vec<_> = kinds.iter().map(|row| row.kind.to_string()).collect();
        let rows = || kinds.iter().zip(&names).map(|(row, name)| (row, [("kind", name.as_str())]));

        let has_age = |row: &&KindFreshness| row.phase != WatchPhase::NotOffered;
        let text = "Time since the API server last confirmed the state of a kind with a list, event or bookmark. Above \
                    150 s the kind is compared with the API server; if it keeps growing while requests fail, nodes are \
                    served stale state.";
        let offered = rows().filter(|(row, _)| has_age(row));
        let ages = offered.filter_map(|(row, labels)| Some((labels, row.age()?.as_secs_f64())));
        writer.labelled_gauge("watch_age", text, Some(Unit::Seconds), ages)?;

        let text =
            "Complete lists from the API server, by kind; any after the first means that a watch was lost or stale.";
        writer.labelled_counter("watch_lists", text, rows().map(|(row, labels)| (labels, row.lists)))
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        self.cluster(&mut writer)?;
        self.nodes(&mut writer)?;
        self.rebuild_queue(&mut writer)?;
        self.watches(&mut writer)
    }
}

/// The median, the 99th percentile and the maximum; empty if there are no values.
fn quantiles(values: &mut [f64]) -> Vec<(Labels<'static, 1>, f64)> {
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        // Nearest rank: the smallest value that is at least as large as this share of the values.
        let rank = (quantile * values.len() as f64).ceil() as usize;
        values.get(rank.saturating_sub(1)).copied()
    };
    let quantiles = [("0.5", 0.5), ("0.99", 0.99), ("1", 1.0)];
    quantiles.into_iter().filter_map(|(name, quantile)| Some(([("quantile", name)], at(quantile)?))).collect()
}

//! What is looked up when somebody asks, so that it costs nothing when nobody does.

use std::{collections::BTreeMap, fmt, sync::Arc, time::UNIX_EPOCH};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};
use proto::model::{Revision, Role};
use runtime::metrics::{Labels, Writer};

use crate::{
    engine::{Shared, StreamStats},
    object::ObjectKind,
    source::{KindFreshness, WatchPhase},
    streams::Fleet,
};

use super::mode_name;

/// Looks everything up.
#[derive(Debug)]
pub(super) struct Scrape {
    shared: Arc<Shared>,
}

impl Scrape {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn cluster(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let (revision, service_ports, endpoints) = {
            let log = self.shared.log();
            (log.revision(), log.service_ports(), log.endpoints())
        };
        let index = self.shared.index();
        let objects = ObjectKind::ALL.map(|kind| (kind.to_string(), index.count(kind)));
        let problems: usize = index.problems().map(|(_, _, problems)| problems.len()).sum();
        drop(index);
        let tls = usize::from(self.shared.tls.get().is_some_and(|tls| tls.trouble().is_some()));
        let started = self.shared.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        writer.labelled_gauge(
            "info",
            "Always 1; its label is the version.",
            None,
            [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        )?;
        let text = "Unix time at which this run, and with it its epoch, began.";
        writer.gauge("started_timestamp", text, Some(Unit::Seconds), started.as_secs_f64())?;
        let text = "1 when every kind of object has been listed; nobody is served before.";
        writer.gauge("ready", text, None, f64::from(u8::from(self.shared.is_ready())))?;
        let text = "The present revision; it means something in this run of this replica only.";
        writer.gauge("revision", text, None, revision.0 as f64)?;
        let text = "Service ports that are in force.";
        writer.gauge("service_ports", text, None, service_ports as f64)?;
        let text = "Endpoints of all service ports, each counted for each service port that leads to it.";
        writer.gauge("endpoints", text, None, endpoints as f64)?;
        let text = "Objects of the cluster that are in force, by kind.";
        let objects = objects.iter().map(|(kind, count)| ([("kind", kind.as_str())], *count as f64));
        writer.labelled_gauge("objects", text, None, objects)?;
        let text = "Things wrong with objects of the cluster or with the files of TLS; `fairlead status --problems` lists them.";
        writer.gauge("problems", text, None, (problems + tls) as f64)
    }

    fn nodes(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let fleet = self.shared.streams.fleet();
        let revision = self.shared.log().revision();
        let text = "Nodes of the cluster, with a stream or without.";
        writer.gauge("nodes", text, None, fleet.nodes as f64)?;
        let text = "Nodes of the cluster that have no agent at this replica; with several replicas most have it at another one.";
        writer.gauge("nodes_without_stream", text, None, fleet.absent.len() as f64)?;
        let failing = || fleet.speakers().filter(|status| !status.failures.is_empty());
        let text = "Nodes with an agent here that could not program everything.";
        writer.gauge("nodes_with_failures", text, None, failing().count() as f64)?;
        let text = "Service ports that nodes with an agent here could not program, summed over the nodes.";
        let failures = failing().map(|status| status.failures.len()).sum::<usize>();
        writer.gauge("failures", text, None, failures as f64)?;
        let text = "The newest revision that is in the kernel of every node with an agent here.";
        let held = fleet.in_every_kernel().unwrap_or(revision);
        writer.gauge("revision_in_every_kernel", text, None, held.0 as f64)?;

        let mut streams = BTreeMap::<_, usize>::new();
        for status in fleet.agents.iter().chain(&fleet.observers) {
            let role = match status.role {
                Role::Backend => "agent",
                Role::Observer => "observer",
                Role::Shadow => "shadow",
            };
            *streams.entry([("role", role), ("mode", mode_name(status.mode))]).or_default() += 1;
        }
        let text = "Open streams, by role (agent, observer or shadow) and by the mode in which they started.";
        writer.labelled_gauge("streams", text, None, streams.into_iter().map(|(labels, n)| (labels, n as f64)))?;
        lags(writer, &fleet, revision)
    }

    fn work(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let StreamStats { rebuilds_running, rebuilds_waiting, rebuilds, chunks_encoded, chunks_sent, rollbacks } =
            self.shared.stream_stats();
        let text = "Streams that are being sent a snapshot or a repair.";
        writer.gauge("rebuilds_under_way", text, None, rebuilds_running as f64)?;
        let text = "Streams that wait for their turn to be sent a snapshot or a repair.";
        writer.gauge("rebuilds_waiting", text, None, rebuilds_waiting as f64)?;
        let text = "Snapshots and repairs that have been put together, at the start of streams and later.";
        writer.counter("rebuilds", text, rebuilds)?;
        let text =
            "Chunks of messages that were encoded. What many nodes are sent is encoded once: compare with pieces_sent.";
        writer.counter("pieces_encoded", text, chunks_encoded)?;
        let text = "Chunks of messages that were sent, each counted once for each stream.";
        writer.counter("pieces_sent", text, chunks_sent)?;
        let text = "Clients that knew more of the cluster than this replica and were told what it knows all the same, since it had not \
                    caught up in time.";
        writer.counter("set_backs", text, rollbacks)
    }

    fn watches(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let kinds = self.shared.freshness.snapshot();
        let names: Vec<_> = kinds.iter().map(|row| row.kind.to_string()).collect();
        let rows = || kinds.iter().zip(&names).map(|(row, name)| (row, [("kind", name.as_str())]));
        let age = |row: &KindFreshness| row.age.filter(|_| row.phase != WatchPhase::NotOffered);
        let text = "How long ago the API last confirmed what is known, by kind: by a list, an event or a bookmark. Above 150 s \
                    everything is listed anew; if it goes on growing, nodes are told old things. Absent before the first time.";
        let ages = rows().filter_map(|(row, labels)| Some((labels, age(row)?.as_secs_f64())));
        writer.labelled_gauge("watch_age", text, Some(Unit::Seconds), ages)?;
        let text = "Requests to the API that have failed since the last confirmation, by kind.";
        let failures = rows().map(|(row, labels)| (labels, f64::from(row.failures)));
        writer.labelled_gauge("watch_failures_in_a_row", text, None, failures)?;
        let text =
            "Complete lists from the API, by kind: beyond the first, something was lost or not confirmed for too long.";
        writer.labelled_counter("watch_lists", text, rows().map(|(row, labels)| (labels, row.lists)))
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer::new(encoder);
        self.cluster(&mut writer)?;
        self.nodes(&mut writer)?;
        self.work(&mut writer)?;
        self.watches(&mut writer)
    }
}

/// How far and how long nodes are behind, over all nodes with an agent.
fn lags(writer: &mut Writer<'_>, fleet: &Fleet, revision: Revision) -> fmt::Result {
    let mut revisions: Vec<_> =
        fleet.speakers().map(|status| revision.0.saturating_sub(status.held.0) as f64).collect();
    let mut seconds: Vec<_> = fleet.speakers().map(|status| status.lag().as_secs_f64()).collect();
    let text = "How many revisions nodes are behind, over all nodes with an agent here: median (0.5), 0.99 and the worst (1). A node \
                that holds nothing counts as behind by all.";
    writer.labelled_gauge("node_lag_revisions", text, None, quantiles(&mut revisions))?;
    let text = "For how long something that nodes were sent, or should have been, is not acknowledged, over all nodes with an agent \
                here; 0 for those that have everything.";
    writer.labelled_gauge("node_lag", text, Some(Unit::Seconds), quantiles(&mut seconds))
}

/// The median, the 99th percentile and the maximum; nothing of nothing.
fn quantiles(values: &mut [f64]) -> Vec<(Labels<'static, 1>, f64)> {
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        // The smallest value that so large a part is not above.
        let rank = (quantile * values.len() as f64).ceil() as usize;
        values.get(rank.saturating_sub(1)).copied()
    };
    let quantiles = [("0.5", 0.5), ("0.99", 0.99), ("1", 1.0)];
    quantiles.into_iter().filter_map(|(name, quantile)| Some(([("quantile", name)], at(quantile)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let values =
            |mut values: Vec<f64>| -> Vec<f64> { quantiles(&mut values).into_iter().map(|(_, value)| value).collect() };
        assert_eq!(values(Vec::new()), [0.0; 0]);
        assert_eq!(values(vec![3.0]), [3.0; 3]);
        assert_eq!(values((1..=200).rev().map(f64::from).collect()), [100.0, 198.0, 200.0]);
    }
}

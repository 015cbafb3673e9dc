//! The changes of EndpointSlices that the benchmark makes.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    cluster::{Reach, SliceId},
    cluster_api::ClusterApi,
    metrics::FleetMetrics,
};

/// Endpoints of the largest service that one change replaces.
const TOGETHER: u32 = 5;

/// A sequence of changes at equal intervals.
#[derive(Debug)]
pub(crate) struct Load {
    kind: Kind,
    events: u32,
    every: Duration,
}

#[derive(Debug)]
enum Kind {
    /// One pod after the other is replaced, in services all over the cluster.
    Pods,
    /// Service 0, slice by slice.
    Rollout(Vec<SliceId>),
}

impl Load {
    /// `per_second` pods are replaced; each is two changes.
    pub(crate) fn pods(per_second: u32, duration: Duration) -> Self {
        let events = 2 * per_second * duration.as_secs() as u32;
        Self { kind: Kind::Pods, events, every: duration / events }
    }

    /// All pods of service 0 are replaced within `duration`, [`TOGETHER`] at a time.
    pub(crate) fn rollout(api: &ClusterApi, duration: Duration) -> Self {
        let slices: Vec<_> = api.with(|cluster| cluster.slices().take_while(|id| id.service == 0).collect());
        let pods = api.with(|cluster| slices.iter().map(|id| cluster.pods(*id)).sum::<usize>());
        let events = (pods as u32).div_ceil(TOGETHER);
        Self { kind: Kind::Rollout(slices), events, every: duration / events }
    }

    /// Makes all changes and returns their number.
    pub(crate) async fn run(self, api: ClusterApi, metrics: Arc<FleetMetrics>) -> u32 {
        let start = Instant::now();
        let mut gone = Reach::Everyone;
        for number in 0..self.events {
            sleep_until(start + self.every * number).await;
            let id = match &self.kind {
                Kind::Pods => {
                    let services = api.with(|cluster| cluster.services());
                    SliceId { service: (number as usize / 2 * 7_919 + 1) % services, slice: 0 }
                }
                Kind::Rollout(slices) => slices[number as usize % slices.len()],
            };
            let reach = api.with(|cluster| match self.kind {
                Kind::Pods if number % 2 == 0 => {
                    gone = cluster.remove(id);
                    gone
                }
                Kind::Pods => cluster.add(id, gone),
                Kind::Rollout(_) => {
                    for _ in 0..TOGETHER {
                        let reach = cluster.remove(id);
                        cluster.add(id, reach);
                    }
                    Reach::Everyone
                }
            });
            let trigger = metrics.event(reach);
            api.put_slice(id, trigger);
        }
        self.events
    }
}

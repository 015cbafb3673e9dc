//! The changes: which slices, how often.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::api::Api;
use super::cluster::{Reach, SliceId};
use super::metrics::FleetMetrics;

/// How many endpoints of the largest service a controller replaces at a time.
const TOGETHER: u32 = 5;

/// A sequence of changes at equal distances.
#[derive(Debug)]
pub(crate) struct Load {
    kind: Kind,
    events: u32,
    every: Duration,
}

#[derive(Debug)]
enum Kind {
    /// One pod after the other goes and another one comes, in services all over the cluster.
    Pods,
    /// Service 0, slice by slice.
    Rollout(Vec<SliceId>),
}

impl Load {
    /// So many pods a second, each of which is two changes.
    pub(crate) fn pods(per_second: u32, spell: Duration) -> Self {
        let events = 2 * per_second * spell.as_secs() as u32;
        Self { kind: Kind::Pods, events, every: spell / events }
    }

    /// All pods of service 0 within a spell, some at a time.
    pub(crate) fn rollout(api: &Api, spell: Duration) -> Self {
        let slices: Vec<_> = api.with(|cluster| cluster.slices().take_while(|id| id.service == 0).collect());
        let pods = api.with(|cluster| slices.iter().map(|id| cluster.pods(*id)).sum::<usize>());
        let events = (pods as u32).div_ceil(TOGETHER);
        Self { kind: Kind::Rollout(slices), events, every: spell / events }
    }

    /// Makes all changes. Gives their number.
    pub(crate) async fn run(self, api: Api, metrics: Arc<FleetMetrics>) -> u32 {
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
            api.announce(id, metrics.event(reach));
        }
        self.events
    }
}

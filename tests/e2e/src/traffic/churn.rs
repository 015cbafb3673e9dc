//! New connections, one after the other, at a limited rate and for a limited time.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{Progress, Traffic};
use crate::{
    client::Probe,
    netns::Netns,
    wait::utc_now,
    wire::{Failure, Protocol},
};

/// New connections.
pub type Churn = Traffic<ChurnReport>;

/// The results of requests, each over a new connection.
#[derive(Clone, Debug, Default)]
pub struct ChurnReport {
    /// Requests made, including failed ones.
    pub attempts: u64,
    /// The number of requests that each pod answered.
    pub pods: BTreeMap<String, u64>,
    /// Requests without an answer: the time since the start, and the reason.
    pub failures: Vec<(Duration, Failure)>,
    /// The longest time to an answer.
    pub slowest: Duration,
}

// === impl Churn ===

impl Churn {
    pub(crate) fn start(
        netns: &Netns,
        probe: Probe,
        protocol: Protocol,
        to: SocketAddr,
        per_second: u32,
        bound: Duration,
    ) -> Self {
        let interval = super::pause(Duration::from_secs(1) / per_second);
        Self::spawn(netns, "churn", move |progress| run(probe, protocol, to, interval, bound, progress))
    }

    /// Waits until `count` more requests have been made; `false` after the deadline.
    #[must_use]
    pub fn wait_attempts(&self, count: u64, deadline: Duration) -> bool {
        let wanted = self.report().attempts + count;
        self.wait_until(deadline, |report| report.attempts >= wanted)
    }

    /// As [`Self::wait_attempts`] for each of these, of which the requests are counted from the same moment on: one
    /// after the other, as many would take many times as long.
    ///
    /// # Panics
    /// After the deadline.
    #[track_caller]
    pub fn wait_for_attempts(churns: &[Self], count: u64, deadline: Duration) {
        let wanted: Vec<_> = churns.iter().map(|churn| churn.report().attempts + count).collect();
        for (churn, wanted) in churns.iter().zip(wanted) {
            let are_made = churn.wait_until(deadline, |report| report.attempts >= wanted);
            assert!(are_made, "{:?}", churn.report());
        }
    }
}

// === impl ChurnReport ===

impl ChurnReport {
    /// The number of requests that `pod` answered.
    pub fn answered_by(&self, pod: &str) -> u64 {
        self.pods.get(pod).copied().unwrap_or_default()
    }
}

fn run(
    probe: Probe,
    protocol: Protocol,
    to: SocketAddr,
    interval: Duration,
    bound: Duration,
    progress: &Progress<ChurnReport>,
) {
    let start = Instant::now();
    while start.elapsed() < bound {
        let asked = Instant::now();
        let answer = probe.ask(protocol, to);
        let elapsed = asked.elapsed();
        progress.update(|report| {
            report.attempts += 1;
            match answer {
                Ok(reply) => {
                    report.slowest = report.slowest.max(elapsed);
                    *report.pods.entry(reply.pod).or_default() += 1;
                }
                Err(failure) => {
                    eprintln!("{} {protocol} request to {to}: {failure}, after {elapsed:?}", utc_now());
                    report.failures.push((asked - start, failure));
                }
            }
        });
        if !progress.pause_until(asked + interval) {
            return;
        }
    }
}

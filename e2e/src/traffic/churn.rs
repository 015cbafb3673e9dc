//! New connections all the time, one after the other, at a bounded rate and for a bounded time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Progress;
use crate::client::Probe;
use crate::netns::Netns;
use crate::wire::{Failure, Protocol};

/// A running churn.
#[derive(Debug)]
pub struct Churn {
    progress: Arc<Progress<ChurnReport>>,
    thread: Option<JoinHandle<()>>,
}

/// What a churn has seen.
#[derive(Clone, Debug, Default)]
pub struct ChurnReport {
    /// Requests made, including failed ones.
    pub attempts: u64,
    /// Who answered how many.
    pub pods: BTreeMap<String, u64>,
    /// Those that got no answer: when, counted from the start, and why.
    pub failures: Vec<(Duration, Failure)>,
    /// The longest that an answered one took.
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
        let progress = Arc::new(Progress::default());
        let thread = netns.spawn("churn", {
            let progress = Arc::clone(&progress);
            move || {
                run(probe, protocol, to, Duration::from_secs(1) / per_second, bound, &progress);
                progress.end();
            }
        });
        Self { progress, thread: Some(thread) }
    }

    /// Waits for `count` more requests to be through; `false` if they are not within `deadline`.
    #[must_use]
    pub fn wait_attempts(&self, count: u64, deadline: Duration) -> bool {
        let wanted = self.progress.report().attempts + count;
        self.progress.wait_until(deadline, |report| report.attempts >= wanted)
    }

    /// Waits until one of the requests from now on is answered by `pod`; `false` if none is within `deadline`.
    #[must_use]
    pub fn wait_pod(&self, pod: &str, deadline: Duration) -> bool {
        let before = self.progress.report().answered_by(pod);
        self.progress.wait_until(deadline, |report| report.answered_by(pod) > before)
    }

    /// Waits until it has seen `enough`; `false` if it has not within `deadline` or before its time was up.
    #[must_use]
    pub fn wait_until(&self, deadline: Duration, enough: impl FnMut(&ChurnReport) -> bool) -> bool {
        self.progress.wait_until(deadline, enough)
    }

    /// What it has seen so far.
    pub fn report(&self) -> ChurnReport {
        self.progress.report()
    }

    /// Stops it.
    pub fn finish(mut self) -> ChurnReport {
        self.join();
        self.progress.report()
    }

    fn join(&mut self) {
        self.progress.stop();
        if let Some(thread) = self.thread.take() {
            // It panics nowhere, and drop must not.
            let _ = thread.join();
        }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.join();
    }
}

// === impl ChurnReport ===

impl ChurnReport {
    /// How many requests `pod` answered.
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
        let began = Instant::now();
        let answer = probe.ask(protocol, to);
        let took = began.elapsed();
        progress.update(|report| {
            report.attempts += 1;
            match answer {
                Ok(reply) => {
                    report.slowest = report.slowest.max(took);
                    *report.pods.entry(reply.pod).or_default() += 1;
                }
                Err(failure) => report.failures.push((began - start, failure)),
            }
        });
        if !progress.pause_until(began + interval) {
            return;
        }
    }
}

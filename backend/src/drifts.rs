//! Drift: when it is repaired, and when it is logged.

use std::{mem, time::Duration};

use runtime::{
    Backoff,
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::time::Instant;
use tracing::{debug, info};

use crate::{Drift, SyncReport};

/// The first delay before a repair, because the other process may not be done. Commits wait as long.
const MIN_REPAIR_DELAY: Duration = Duration::from_millis(100);

/// The delay before repairs of changes that keep coming back.
const MAX_REPAIR_DELAY: Duration = Duration::from_secs(5);

/// The delay is short again if this many delays pass between a repair and the next change: a firewall that reloads each
/// minute is no process that keeps coming back. So a repair is late by a tenth of the time at most.
const BACKOFF_RESET_FACTOR: u32 = 10;

/// Without drift for this long, the incident is over.
const INCIDENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The changes of our kernel objects by other processes.
#[derive(Debug)]
pub(crate) struct Drifts {
    backoff: Backoff,
    /// The last delay.
    delay: Duration,
    /// When the last drift was repaired, or recorded while it is not; `None`: the incident is over.
    last: Option<Instant>,
    is_repaired: bool,
    /// Whether the next reconcile follows drift, or the last one did and nothing is written yet.
    repair_due: bool,
    /// Whether another process is the only reason for the writes of that reconcile, although no notification said so.
    pub(crate) is_suspected: bool,
    /// The changes of this incident, by process.
    incident: Repeated,
    /// The number of changes by other processes.
    pub(crate) count: u64,
}

impl Default for Drifts {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(MIN_REPAIR_DELAY, MAX_REPAIR_DELAY),
            delay: Duration::ZERO,
            last: None,
            is_repaired: true,
            repair_due: false,
            is_suspected: false,
            incident: Repeated::default(),
            count: 0,
        }
    }
}

impl Drifts {
    /// Records drift. Returns the delay before the repair.
    pub(crate) fn record(&mut self, drift: &Drift) -> Duration {
        self.end_incident();
        if self.is_repaired && self.last.is_some_and(|last| last.elapsed() > self.delay * BACKOFF_RESET_FACTOR) {
            self.backoff.reset();
        }

        self.last = Some(Instant::now());
        self.is_repaired = false;
        self.repair_due = true;
        self.is_suspected = *drift == Drift::Possible;
        self.delay = self.backoff.next_delay();

        let repair_in_ms = self.delay.as_millis();
        match drift {
            Drift::Possible => {
                debug!(repair_in_ms, "kernel notifications are incomplete, comparing the kernel with the state");
            }
            Drift::Outdated => debug!(repair_in_ms, "the node may have changed, comparing the kernel with the state"),
            Drift::Changed { object, process, pid } => {
                self.count += 1;
                warn_if_news!(
                    self.incident.failed(process),
                    object,
                    process,
                    pid,
                    repair_in_ms,
                    "another process changed our kernel objects, repairing"
                );
            }
        }
        self.delay
    }

    /// A call has succeeded. Returns whether it has repaired anything after drift.
    pub(crate) fn reported(&mut self, report: &SyncReport) -> bool {
        let is_repair = self.repair_due && report.writes > 0;
        if is_repair && self.is_suspected {
            self.found();
        }
        // The kernel may reject all transactions of the first call.
        self.repair_due &= report.writes == 0 && report.unfinished.is_some();
        if report.unfinished.is_none() {
            self.repaired();
        }
        is_repair
    }

    /// The kernel differed from the state after [`Drift::Possible`], and was repaired.
    fn found(&mut self) {
        self.count += 1;
        let process = "unknown";
        let occurrence = self.incident.failed(process);
        warn_if_news!(occurrence, process, "another process changed our kernel objects, repaired");
    }

    /// Everything is programmed: if there was drift, it is repaired now.
    fn repaired(&mut self) {
        if !mem::replace(&mut self.is_repaired, true) {
            self.last = Some(Instant::now());
        }
    }

    /// Logs the end of the incident if there was no drift for a while.
    pub(crate) fn end_incident(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() < INCIDENT_TIMEOUT) {
            return;
        }
        self.last = None;
        self.backoff.reset();
        if let Some(Recovery { count, duration }) = self.incident.recovered() {
            info!(changes = count, duration_ms = duration.as_millis(), "no more drift");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(drifts: &mut Drifts) -> Duration {
        let delay = drifts.record(&Drift::Changed { object: "table".into(), process: "nft".into(), pid: 1 });
        drifts.repaired();
        delay
    }

    #[tokio::test(start_paused = true)]
    async fn first_change_is_repaired_soon_and_repeated_changes_slowly() {
        let mut drifts = Drifts::default();
        assert!(changed(&mut drifts) <= 2 * MIN_REPAIR_DELAY);
        let begin = Instant::now();
        let mut repairs = 0;
        while begin.elapsed() < Duration::from_secs(600) {
            tokio::time::sleep(changed(&mut drifts)).await;
            repairs += 1;
        }
        assert!((100..400).contains(&repairs), "{repairs} in ten minutes");
        assert_eq!(drifts.count, repairs + 1);

        tokio::time::sleep(2 * INCIDENT_TIMEOUT).await;
        drifts.end_incident();
        assert_eq!(drifts.last, None);
        assert!(changed(&mut drifts) <= 2 * MIN_REPAIR_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_are_far_apart_are_all_repaired_soon() {
        let mut drifts = Drifts::default();
        for _ in 0..10 {
            assert!(changed(&mut drifts) <= 2 * MIN_REPAIR_DELAY);
            tokio::time::sleep(Duration::from_secs(12)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn possible_drift_is_not_counted_until_it_is_found() {
        let mut drifts = Drifts::default();
        drifts.record(&Drift::Possible);
        assert_eq!(drifts.count, 0);
        drifts.found();
        assert!(drifts.count == 1 && drifts.incident.is_failing());
    }
}

//! Somebody else changes what is ours: how soon it is repaired, and how often that is said.

use std::time::Duration;

use runtime::Backoff;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::Drift;

/// How long after a change it is repaired: at first, for whoever does it may not be done yet; and at most, when it is done again
/// and again. Commits wait as long, so that is short.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// After so long a time in which nothing was changed, the next change is another incident.
const QUIET: Duration = Duration::from_secs(60);

/// The changes that were seen.
#[derive(Debug)]
pub(crate) struct Drifts {
    backoff: Backoff,
    last: Option<Instant>,
    /// In this incident.
    times: u64,
    /// Since the start.
    count: u64,
}

impl Default for Drifts {
    fn default() -> Self {
        Self { backoff: Backoff::new(DELAYS.0, DELAYS.1), last: None, times: 0, count: 0 }
    }
}

impl Drifts {
    /// There is one more. Says how long to wait before it is repaired.
    pub(crate) fn seen(&mut self, drift: &Drift) -> Duration {
        let now = Instant::now();
        if self.last.replace(now).is_none_or(|last| now - last > QUIET) {
            self.backoff.reset();
            self.times = 0;
        }
        let delay = self.backoff.next_delay();
        match drift {
            Drift::Possible => debug!("the kernel is compared: announcements of changes were lost"),
            Drift::Changed { object: what, process: by, pid } => {
                self.times += 1;
                self.count += 1;
                // Two programs that undo each other's work say so ever more rarely.
                if self.times.is_power_of_two() {
                    let times = self.times;
                    warn!(what, by, pid, times, "somebody else changed what is programmed; it will be repaired");
                }
            }
        }
        delay
    }

    /// How many there were since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(drifts: &mut Drifts) -> Duration {
        drifts.seen(&Drift::Changed { object: "table".into(), process: "nft".into(), pid: 1 })
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_one_is_repaired_soon_and_a_fight_slowly() {
        let mut drifts = Drifts::default();
        assert!(seen(&mut drifts) <= 2 * DELAYS.0);
        let begin = Instant::now();
        let mut repairs = 0;
        while begin.elapsed() < Duration::from_secs(600) {
            tokio::time::sleep(seen(&mut drifts)).await;
            repairs += 1;
        }
        assert!((100..400).contains(&repairs), "{repairs} in ten minutes");
        assert_eq!(drifts.count(), repairs + 1);

        tokio::time::sleep(2 * QUIET).await;
        assert!(seen(&mut drifts) <= 2 * DELAYS.0);
        assert_eq!(drifts.times, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_nothing_is_not_counted() {
        let mut drifts = Drifts::default();
        drifts.seen(&Drift::Possible);
        assert_eq!(drifts.count(), 0);
    }
}

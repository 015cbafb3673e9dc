//! How long the thread rests after a pass over the conntrack table. The kernel takes a lock for each bucket, so that a
//! pass over an empty table of 262,144 buckets takes 10 ms, however small the change is that it follows. Changes that
//! come during a rest share the next pass.

use std::time::Duration;

/// The delay after the first pass that failed; each further failure doubles it.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The rest after each pass of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// A multiple of the duration of the pass, which gives passes their share of a core.
    pub(super) factor: u32,
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

impl Rest {
    /// The rest after a pass that took this time. `failures`: the number of passes that failed since one succeeded.
    pub(super) fn after(self, took: Duration, failures: u32) -> Duration {
        let shortest = match failures.checked_sub(1) {
            None => self.shortest,
            Some(doublings) => RETRY_DELAY.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)),
        };
        took.saturating_mul(self.factor).max(shortest).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::{half_open, resets, udp};

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn passes_take_a_share_of_a_core() {
        for (rest, share) in [(half_open::REST, 0.01), (udp::REST, 0.05), (resets::REST, 0.1)] {
            let took = ms(60);
            let rest = rest.after(took, 0);
            assert!(took.as_secs_f64() / (took + rest).as_secs_f64() <= share, "{rest:?}");
        }
    }

    /// A client repeats its SYN after 1, 3 and 7 s.
    #[test]
    fn large_tables_are_listed_every_seven_seconds() {
        let large = Duration::from_secs(4);
        assert_eq!([half_open::REST, udp::REST].map(|rest| rest.after(large, 0)), [ms(7000); 2]);
        // Connections to endpoints that are gone have waited for seconds.
        assert_eq!(resets::REST.after(large, 0), ms(40_000));
    }

    #[test]
    fn the_thread_rests_longer_than_it_works_and_backs_off() {
        assert_eq!([ms(50), ms(250)].map(|took| resets::REST.after(took, 0)), [ms(1000), ms(2500)]);
        let failed: Vec<_> = (1..40).map(|failures| resets::REST.after(ms(1), failures).as_secs()).collect();
        assert_eq!(failed[..4], [2, 4, 8, 16]);
        assert_eq!(failed.iter().max(), Some(&600));
        assert_eq!(udp::REST.after(ms(1), 40), ms(7000));
    }
}

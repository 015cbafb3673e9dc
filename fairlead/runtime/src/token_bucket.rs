//! A token bucket, stored as the time at which it is full again.

use std::time::Duration;

use tokio::time::Instant;

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How often in a row after a quiet period.
    pub burst: u32,
    /// The time after which it may happen once more. Zero: no limit.
    pub every: Duration,
}

/// The tokens left under a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// A bucket with all tokens.
    #[must_use]
    pub fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// The time at which the next one is available.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.max(now) + rate.every;
        let latest = now + rate.every * rate.burst.max(1);
        if full_at > latest {
            return Err(now + (full_at - latest));
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Whether it has all tokens.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, every: Duration::from_secs(2) };

    #[test]
    fn tokens_are_available_in_a_burst_and_then_at_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        for _ in 0..3 {
            bucket.take(RATE, start).unwrap();
        }
        let next = start + RATE.every;
        assert_eq!(bucket.take(RATE, start), Err(next));
        assert_eq!(bucket.take(RATE, next - Duration::from_millis(1)), Err(next));
        bucket.take(RATE, next).unwrap();
        assert_eq!(bucket.take(RATE, next), Err(next + RATE.every));
    }

    #[test]
    fn long_quiet_period_allows_one_burst_only() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        bucket.take(RATE, start).unwrap();
        assert!(!bucket.is_full(start + Duration::from_secs(1)) && bucket.is_full(start + RATE.every));
        let later = start + Duration::from_secs(3600);
        let taken = (0..10).filter(|_| bucket.take(RATE, later).is_ok()).count();
        assert_eq!(taken, 3);
    }

    #[test]
    fn zero_interval_means_no_limit() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        let rate = Rate { burst: 1, every: Duration::ZERO };
        assert!((0..100).all(|_| bucket.take(rate, start).is_ok()));
    }
}

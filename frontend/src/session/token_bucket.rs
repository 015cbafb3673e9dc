//! So many at once, and so many in a time: a bucket of tokens, kept as the moment when it is full again.

use std::time::Duration;

use tokio::time::Instant;

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So often at once, after a quiet time.
    pub burst: u32,
    /// And once more after each such time. Zero: as often as one likes.
    pub every: Duration,
}

/// What is left of a [`Rate`].
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// Nothing is missing from then on.
    full_at: Instant,
}

impl TokenBucket {
    pub(super) fn full(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes one; if there is none, says when there is.
    pub(super) fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.max(now) + rate.every;
        let most = now + rate.every * rate.burst.max(1);
        if full_at > most {
            return Err(now + (full_at - most));
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Whether nothing is missing, so that it need not be remembered.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, every: Duration::from_secs(2) };

    #[test]
    fn a_burst_and_then_one_at_a_time() {
        let start = Instant::now();
        let mut token_bucket = TokenBucket::full(start);
        for _ in 0..3 {
            token_bucket.take(RATE, start).unwrap();
        }
        let next = start + RATE.every;
        assert_eq!(token_bucket.take(RATE, start), Err(next));
        assert_eq!(token_bucket.take(RATE, next - Duration::from_millis(1)), Err(next));
        token_bucket.take(RATE, next).unwrap();
        assert_eq!(token_bucket.take(RATE, next), Err(next + RATE.every));
    }

    #[test]
    fn a_long_quiet_time_is_worth_one_burst() {
        let start = Instant::now();
        let mut token_bucket = TokenBucket::full(start);
        token_bucket.take(RATE, start).unwrap();
        assert!(!token_bucket.is_full(start + Duration::from_secs(1)) && token_bucket.is_full(start + RATE.every));
        let later = start + Duration::from_secs(3600);
        let taken = (0..10).filter(|_| token_bucket.take(RATE, later).is_ok()).count();
        assert_eq!(taken, 3);
    }

    #[test]
    fn nothing_is_missing_where_there_is_no_limit() {
        let start = Instant::now();
        let mut token_bucket = TokenBucket::full(start);
        let rate = Rate { burst: 1, every: Duration::ZERO };
        assert!((0..100).all(|_| token_bucket.take(rate, start).is_ok()));
    }
}

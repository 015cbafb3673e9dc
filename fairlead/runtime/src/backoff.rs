//! Delays between retries: exponential backoff with jitter.

use std::time::Duration;

use fastrand::Rng;

/// Exponential backoff with full jitter: each delay is drawn uniformly between `min` and a ceiling that doubles up to
/// `max`.
///
/// The ceiling starts at `2 * min`, not at `min`: when a frontend goes away, all its backends reconnect at the same
/// moment, so the first retry already needs jitter.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    ceiling: Duration,
    rng: Rng,
}

impl Backoff {
    /// Delays from `min` to `max`; a `max` below `min` counts as `min`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self::with_rng(min, max, Rng::new())
    }

    fn with_rng(min: Duration, max: Duration, rng: Rng) -> Self {
        let mut backoff = Self { min, max: max.max(min), ceiling: min, rng };
        backoff.reset();
        backoff
    }

    /// The delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.min + (self.ceiling - self.min).mul_f64(self.rng.f64());
        self.ceiling = self.ceiling.saturating_mul(2).min(self.max);
        delay
    }

    /// Starts from short delays again, after a success.
    pub fn reset(&mut self) {
        self.ceiling = self.min.saturating_mul(2).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(10);

    /// The first `N` delays of a thousand processes.
    fn delays<const N: usize>() -> Vec<[Duration; N]> {
        (0..1000)
            .map(|seed| {
                let mut backoff = Backoff::with_rng(MIN, MAX, Rng::with_seed(seed));
                std::array::from_fn(|_| backoff.next_delay())
            })
            .collect()
    }

    #[test]
    fn delays_fill_the_range_up_to_a_doubling_ceiling() {
        let all = delays::<10>();
        for (n, factor) in [2, 4, 8, 16, 32, 64, 100, 100, 100, 100].into_iter().enumerate() {
            let ceiling = factor * MIN;
            let nth = all.iter().map(|delays| delays[n]);
            let (low, high) = (nth.clone().min().unwrap(), nth.max().unwrap());
            let tenth = (ceiling - MIN) / 10;
            assert!(MIN <= low && low < MIN + tenth, "delay {n}: {low:?}");
            assert!(ceiling - tenth < high && high <= ceiling, "delay {n}: {high:?}");
        }
    }

    #[test]
    fn reset_starts_over() {
        for seed in 0..1000 {
            let mut backoff = Backoff::with_rng(MIN, MAX, Rng::with_seed(seed));
            (0..100).for_each(|_| {
                backoff.next_delay();
            });
            backoff.reset();
            assert!(backoff.next_delay() <= 2 * MIN);
        }
    }

    #[test]
    fn delays_stay_within_extreme_bounds() {
        let mut forever = Backoff::with_rng(MIN, Duration::MAX, Rng::with_seed(0));
        assert!((0..200).all(|_| forever.next_delay() >= MIN));
        let mut fixed = Backoff::new(MAX, MIN);
        assert!((0..10).all(|_| fixed.next_delay() == MAX));
    }
}

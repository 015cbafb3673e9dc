//! The size of transactions. It is limited because no other process can change the ruleset while a transaction is
//! executed, and packets for which a program has to change the ruleset may have to wait, too.

use std::time::Duration;

use backend::driver::MAX_TRANSACTION_WRITES;

/// The time that a transaction should take in the kernel; no transaction takes twice as long.
const TARGET_DURATION: Duration = Duration::from_millis(50);

/// The smallest size. With fewer elements, the fixed cost of a transaction outweighs the cost of its elements.
const MIN_WRITES: usize = 500;

/// The largest factor between two transactions: elements cost more when there are many.
const MAX_FACTOR: usize = 2;

/// How many elements the next transaction contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchSizer {
    elements: usize,
}

impl Default for BatchSizer {
    fn default() -> Self {
        Self { elements: MAX_TRANSACTION_WRITES }
    }
}

impl BatchSizer {
    /// Starts with this many elements.
    #[cfg(test)]
    pub(crate) fn of(elements: usize) -> Self {
        Self { elements }
    }

    /// The budget of the next transaction.
    pub(crate) fn budget(self) -> usize {
        self.elements
    }

    /// Adjusts the size to the duration of a transaction in the kernel. Transactions that were not full are ignored.
    pub(crate) fn measured(&mut self, elements: usize, took: Duration) {
        if elements < self.elements || took.is_zero() {
            return;
        }
        let fitting = (elements as f64 * TARGET_DURATION.div_duration_f64(took)) as usize;
        let min = (self.elements / MAX_FACTOR).max(MIN_WRITES);
        let max = self.elements.saturating_mul(MAX_FACTOR).min(MAX_TRANSACTION_WRITES);
        self.elements = fitting.clamp(min, max.max(min));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_converge_to_the_target_duration() {
        for cost_us in [7, 20, 60] {
            let mut sizer = BatchSizer::default();
            for _ in 0..10 {
                let elements = sizer.budget();
                sizer.measured(elements, Duration::from_micros(elements as u64 * cost_us));
            }
            let took = Duration::from_micros(sizer.elements as u64 * cost_us);
            assert!(took.abs_diff(TARGET_DURATION) < TARGET_DURATION / 10, "{sizer:?}: {took:?}");
        }
    }

    #[test]
    fn transactions_have_a_largest_size() {
        let mut sizer = BatchSizer::default();
        (0..10).for_each(|_| sizer.measured(sizer.budget(), Duration::from_micros(10)));
        assert_eq!(sizer.budget(), MAX_TRANSACTION_WRITES);
    }

    #[test]
    fn a_transaction_that_is_not_full_changes_nothing() {
        let mut sizer = BatchSizer::default();
        sizer.measured(10, Duration::from_secs(1));
        sizer.measured(MAX_TRANSACTION_WRITES, Duration::ZERO);
        assert_eq!(sizer, BatchSizer::default());
    }
}

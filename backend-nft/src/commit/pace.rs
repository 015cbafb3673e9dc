//! How large transactions are: nobody else may change the ruleset while one is executed, and packets that need a verdict from a
//! program may have to wait too.

use std::time::Duration;

use crate::plan::Room;

/// So long a transaction is to take in the kernel; never twice as long.
const TARGET: Duration = Duration::from_millis(50);
/// Elements of the first transaction, before anything is known of this machine.
const FIRST: usize = 8_000;
/// With fewer elements the cost of each transaction outweighs theirs.
const LEAST: usize = 500;
/// How much faster they grow or shrink at most: an element costs more when there are many.
const STEP: usize = 2;

/// How many elements the next transaction holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    elements: usize,
    least: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { elements: FIRST, least: LEAST }
    }
}

impl Pace {
    /// Starts with so few elements, and never has fewer.
    #[cfg(test)]
    pub(crate) fn of(elements: usize) -> Self {
        Self { elements, least: elements }
    }

    /// That of the next transaction.
    pub(crate) fn room(self) -> Room {
        Room::Elements(self.elements)
    }

    /// So many elements have taken so long in the kernel. What did not fill a transaction says little.
    pub(crate) fn took(&mut self, elements: usize, took: Duration) {
        if elements < self.elements || took.is_zero() {
            return;
        }
        let fitting = (elements as f64 * TARGET.div_duration_f64(took)) as usize;
        let (least, most) = ((self.elements / STEP).max(self.least), self.elements.saturating_mul(STEP));
        self.elements = fitting.clamp(least, most.max(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_come_to_take_as_long_as_they_should() {
        // Microseconds for each element.
        for cost in [1, 2, 5, 60] {
            let mut pace = Pace::default();
            for _ in 0..10 {
                let Room::Elements(elements) = pace.room() else { panic!("{pace:?}") };
                pace.took(elements, Duration::from_micros(elements as u64 * cost));
            }
            let took = Duration::from_micros(pace.elements as u64 * cost);
            assert!(took.abs_diff(TARGET) < TARGET / 10, "{pace:?}: {took:?}");
        }
    }

    #[test]
    fn one_that_is_not_full_says_nothing() {
        let mut pace = Pace::default();
        pace.took(10, Duration::from_secs(1));
        pace.took(FIRST, Duration::ZERO);
        assert_eq!(pace, Pace::default());
    }
}

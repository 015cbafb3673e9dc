//! The steps of a simulation. Each has a seed of its own, so that it is the same without the others.

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;

/// How much longer pauses without changes are in simulations that last for days: 10 minutes become half a day.
const LONG: u64 = 72;

/// A step: a change, a fault, or the end of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) number: usize,
    /// The time before it.
    pub(crate) pause: Duration,
    pub(crate) seed: u64,
    /// Whether it happens; if not, only its time passes.
    pub(crate) happens: bool,
}

/// Whether days pass in the simulation of this seed while no object changes. That takes seconds.
#[must_use]
pub fn lasts_for_days(seed: u64) -> bool {
    seed % 8 == 3
}

/// The steps of the phases of a simulation.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Changes and faults.
    pub(crate) steps: Vec<Step>,
    /// Disturbances that change no object.
    pub(crate) quiet: Vec<Step>,
    /// Changes without faults.
    pub(crate) changes: Vec<Step>,
}

impl Schedule {
    /// `is_long`: days pass while no object changes. `only`: the steps that happen; `None`: all.
    pub(crate) fn new(rng: &mut Rng, is_large: bool, is_long: bool, only: Option<&BTreeSet<usize>>) -> Self {
        let mut number = 0;
        let mut step = |rng: &mut Rng, micros: u64| {
            let happens = only.is_none_or(|only| only.contains(&number));
            number += 1;
            Step { number: number - 1, pause: Duration::from_micros(micros), seed: rng.u64(..), happens }
        };
        let steps = if is_large { rng.usize(10..50) } else { rng.usize(20..200) };
        let steps = (0..steps).map(|_| {
            let pause = match rng.u8(0..10) {
                0..6 => rng.u64(0..50_000),
                6..9 => rng.u64(0..5_000_000),
                _ => rng.u64(0..400_000_000),
            };
            step(rng, pause)
        });
        let steps = steps.collect();
        let quiet = if is_large { rng.usize(2..10) } else { rng.usize(10..50) };
        let quiet = (0..quiet).map(|_| {
            let pause = if rng.bool() { rng.u64(0..20_000_000) } else { rng.u64(0..600_000_000) };
            step(rng, if is_long { pause * LONG } else { pause })
        });
        let quiet = quiet.collect();
        let changes = (0..3).map(|_| {
            let pause = rng.u64(0..60_000_000);
            step(rng, pause)
        });
        Self { steps, quiet, changes: changes.collect() }
    }

    /// The number of all steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len() + self.quiet.len() + self.changes.len()
    }
}

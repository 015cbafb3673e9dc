//! A cluster in simulated time. Frontends and backends are the real code; the API server, the network, the disks and
//! the kernels around them are simulated. One seed decides everything, so that a failure can be replayed.
//!
//! ```text
//!   objects ─▶ API server ──▶ frontends ──▶ network ──▶ backends ──▶ kernels
//!      ▲           ▲              ▲            ▲          ▲   └▶ disks  ▲
//!      └───────────┴── world: changes and faults, from the seed ────────┘
//!                                               └ oracle: what must always be true
//! ```
//!
//! The runtime has one thread and a paused clock, which advances to the next timer when nothing is ready. A simulation
//! has a thread of its own, whose random numbers all follow from the seed ([`mod@entropy`]), and whose wall clock
//! follows the simulated time ([`mod@clock`]).

mod clock;
mod disk;
mod drains;
mod entropy;
mod kernel;
mod network;
mod objects;
mod oracle;
mod probe;
mod processes;
mod reference;
mod schedule;
mod shrink;
mod state_file;
mod trace;
mod world;

use std::{collections::BTreeSet, thread, time::Duration};

use anyhow::{Result, anyhow};
use tokio::runtime::Builder;

pub use entropy::simulate as fix_random_numbers;
pub use schedule::lasts_for_days;
pub use shrink::shrink;
use trace::Trace;
use world::World;

/// What a simulation does.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// The steps that happen; `None`: all.
    pub only: Option<BTreeSet<usize>>,
    /// Whether the trace is printed.
    pub prints: bool,
    /// A line of the trace with this text is a violation.
    pub forbidden: Option<String>,
}

/// The result of a simulation.
#[derive(Debug)]
pub struct Outcome {
    /// The first invariant that was violated.
    pub violation: Option<String>,
    /// A hash of the trace, and its number of lines. The same seed gives the same.
    pub trace: (u64, u64),
    /// The last lines of the trace.
    pub last: Vec<String>,
    /// The simulated time.
    pub simulated: Duration,
    /// The number of steps, whether they happened or not.
    pub steps: usize,
}

/// Runs a simulation.
///
/// # Errors
/// When it panicked outside of a task.
pub fn run(options: Options) -> Result<Outcome> {
    let Options { seed, only, prints, forbidden } = options;
    let simulation = move || {
        entropy::simulate(seed);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let outcome = runtime.block_on(async {
            clock::simulate();
            let trace = Trace::new(prints, forbidden);
            let world = World::new(seed, only.as_ref(), trace.clone());
            let steps = world.steps();
            world.run().await;
            let simulated = trace.elapsed();
            let (violation, hash, lines, last) = trace.end();
            clock::stop();
            Outcome { violation, trace: (hash, lines), last, simulated, steps }
        });
        Ok(outcome)
    };
    let thread = thread::Builder::new().name(format!("seed {seed}")).spawn(simulation)?;
    thread.join().map_err(|_| anyhow!("the simulation of seed {seed} panicked"))?
}

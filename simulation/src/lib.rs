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
//! has a thread of its own, whose random numbers all follow from the seed ([`mod@entropy`]).

mod disk;
mod entropy;
mod kernel;
mod network;
mod objects;
mod oracle;
mod probe;
mod processes;
mod trace;
mod world;

use std::{thread, time::Duration};

use anyhow::{Result, anyhow};
use tokio::runtime::Builder;

use trace::Trace;
use world::World;

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
}

/// Runs a simulation. Prints its trace if asked to.
///
/// # Errors
/// When it panicked outside of a task.
pub fn run(seed: u64, prints: bool) -> Result<Outcome> {
    let simulation = move || {
        entropy::simulate(seed);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
        Ok(runtime.block_on(async {
            let trace = Trace::new(prints);
            World::new(seed, trace.clone()).run().await;
            let simulated = trace.elapsed();
            let (violation, hash, lines, last) = trace.end();
            Outcome { violation, trace: (hash, lines), last, simulated }
        }))
    };
    let thread = thread::Builder::new().name(format!("seed {seed}")).spawn(simulation)?;
    thread.join().map_err(|_| anyhow!("the simulation of seed {seed} panicked"))?
}

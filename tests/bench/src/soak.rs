//! `make soak`: a cluster under load for hours. What grows with time, or breaks a connection, fails it.
//!
//! ```text
//!   manifests, changed all the time ─▶ two frontends ─TLS─▶ backends of ten nodes (three kinds) ─▶ kernels
//!                                        ▲      ▲                  connections of all ages through them
//!                        synthetic streams      hostile clients
//!        restarts of one frontend and of five backends; samples of everything ─▶ CSV ─▶ slopes
//! ```
//!
//! | module | is |
//! |---|---|
//! | `stage` | the processes: frontends, backends, synthetic streams |
//! | `traffic` | connections of all ages |
//! | `hostile` | silent connections, random tokens, garbage |
//! | `sample` | what is measured, and the CSV |
//! | `slope` | whether a series of samples grows |

mod hostile;
mod sample;
mod slope;
pub(crate) mod stage;
mod traffic;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use hostile::Hostile;
use sample::Recorder;
use stage::Stage;
use traffic::Connections;

/// The share of the time at the beginning that is not judged: allocators and caches grow to their working size.
const WARM_UP: f64 = 0.3;
/// How much memory a process may grow without a leak, in kB: a median is off by less.
const NOISE_KB: f64 = 4096.0;
/// The time between two changes of a Service.
const CHANGE_EVERY: Duration = Duration::from_secs(2);
/// The time between two restarts: of a frontend, or of a backend.
const RESTART_EVERY: Duration = Duration::from_secs(20);
/// All streams reconnect about this often in a run, or each hour: what that costs must not add up. Before it is judged
/// they have done so a few times: buffers that were allocated, but never filled, take no memory at first.
const RECONNECTIONS: u32 = 16;
/// The default of a frontend.
pub(crate) const MAX_STREAM_AGE: Duration = Duration::from_secs(3600);
/// The time between two samples in a run of an hour or more. Shorter runs sample more often.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);
/// The fewest samples of a run.
const SAMPLES: u32 = 60;

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct SoakOptions {
    /// For how long.
    pub(crate) duration: Duration,
    /// How many synthetic streams.
    pub(crate) streams: u32,
    /// Where the samples are written.
    pub(crate) csv: PathBuf,
}

/// Runs the soak, prints a table, and fails when anything has grown or broken.
pub(crate) fn run(options: &SoakOptions) -> Result<()> {
    runtime::raise_file_limit()?;
    let mut stage = Stage::start(options.streams, MAX_STREAM_AGE.min(options.duration / RECONNECTIONS))?;
    let mut connections = Connections::open(&stage)?;
    let hostile = Hostile::start(&stage);
    let mut recorder = Recorder::new(&options.csv)?;
    let started = Instant::now();
    let every = SAMPLE_EVERY.min(options.duration / SAMPLES);
    let mut due = Due { change: started, restart: started + RESTART_EVERY, sample: started };
    let (mut changes, mut restarts) = (0, 0);
    while started.elapsed() < options.duration {
        let now = Instant::now();
        if now >= due.change {
            stage.change(changes);
            (changes, due.change) = (changes + 1, now + CHANGE_EVERY);
        }
        if now >= due.sample {
            recorder.record(started.elapsed(), &stage.sample()?)?;
            connections.renew(&stage)?;
            due.sample = now + every;
        }
        if now >= due.restart {
            stage.restart(restarts)?;
            (restarts, due.restart) = (restarts + 1, Instant::now() + RESTART_EVERY);
        }
        std::thread::sleep(CHANGE_EVERY / 40);
    }
    let traffic = connections.finish();
    let hostile = hostile.finish();
    stage.check()?;
    println!("{:.2} h, {} synthetic streams, {changes} changes, {restarts} restarts", hours(started), options.streams);
    println!("hostile clients: {hostile}");
    println!("connections: {traffic}");
    println!("synthetic streams that ended without a request to reconnect: {}", stage.broken_streams());
    let growing = recorder.print(WARM_UP);
    println!("samples: {}", options.csv.display());
    stage.stop()?;
    ensure!(traffic.broken.is_empty(), "connections broke: {:?}", traffic.broken);
    ensure!(growing.is_empty(), "grows with time: {}", growing.join(", "));
    Ok(())
}

fn hours(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / 3600.0
}

/// When something happens next.
#[derive(Debug)]
struct Due {
    change: Instant,
    restart: Instant,
    sample: Instant,
}

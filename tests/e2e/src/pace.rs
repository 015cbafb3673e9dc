//! How long tests wait on this machine.
//!
//! A test says how long it waits on a quiet machine. Beside other work, and in a guest kernel, the same takes longer,
//! so the bound is multiplied by how much longer a known job takes here. The job is measured once in a run of nextest,
//! and once in each guest; later work shows in the load of the machine.

use std::{
    env, fs,
    hint::black_box,
    path::PathBuf,
    process::Command,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use crate::fork;

/// What the job takes on a quiet machine with two CPUs of 2020.
const QUIET: Duration = Duration::from_millis(60);
/// Programs that the job starts, one after the other.
const STARTS: u32 = 20;
/// Numbers that the job mixes, in a build without optimisation.
const NUMBERS: u64 = 1_000_000;
/// The largest factor: a hang must end at some time.
const MAX: f64 = 30.0;

/// How long to wait here for what takes at most `bound` on a quiet machine.
#[must_use]
pub fn patience(bound: Duration) -> Duration {
    static FACTOR: LazyLock<f64> = LazyLock::new(factor);
    bound.mul_f64(FACTOR.max(load()).min(MAX))
}

/// How many threads have wanted to run for each CPU in the last minute.
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Option<f64> = text.split(' ').next().and_then(|load| load.parse().ok());
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    load.unwrap_or_default() / cpus as f64
}

fn factor() -> f64 {
    let Ok(run) = env::var("NEXTEST_RUN_ID") else { return measured() };
    let file = env::temp_dir().join(format!("fairlead-pace-{run}"));
    let known = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok());
    known.unwrap_or_else(|| {
        let factor = measured();
        // Written at once, so that no reader finds half of it. If it cannot be written, each test measures.
        let new = PathBuf::from(format!("{}.{}", file.display(), std::process::id()));
        let _ = fs::write(&new, factor.to_string()).and_then(|()| fs::rename(&new, &file));
        factor
    })
}

/// Starts programs and computes, as tests do. Never less than 1.
fn measured() -> f64 {
    let start = Instant::now();
    for _ in 0..STARTS {
        let _ = fork::spawn(&mut Command::new("true")).and_then(|mut child| child.wait());
    }
    let mixed = (0..NUMBERS).fold(0_u64, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
    black_box(mixed);
    (start.elapsed().as_secs_f64() / QUIET.as_secs_f64()).clamp(1.0, MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_never_shorter_and_bounded() {
        let second = Duration::from_secs(1);
        assert!((second..=second.mul_f64(MAX)).contains(&patience(second)));
    }
}

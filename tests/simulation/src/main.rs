//! Runs simulations, and reports the seeds that violate an invariant.

use std::{
    env,
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use simulation::{Options, Outcome};

/// Simulates clusters, each from a seed, and checks what must always be true.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run this seed only, and print its trace
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --seed: only these of its steps happen
    #[arg(long, value_name = "STEPS", value_delimiter = ',', num_args = 0..)]
    only: Option<Vec<usize>>,
    /// With --seed: find few steps that still fail
    #[arg(long)]
    shrink: bool,
    /// A line of the trace with this text is a violation
    #[arg(long, value_name = "TEXT")]
    forbidden: Option<String>,
    /// The first seed; without it, a random one
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Run this many seeds
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    seeds: u64,
    /// Start no seed after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Leave out seeds that last for days (those that leave 3 when divided by 8)
    #[arg(long)]
    short: bool,
    /// Run this many at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Run each seed twice, and compare the traces
    #[arg(long)]
    twice: bool,
    /// Start no seed after one has failed
    #[arg(long)]
    fail_fast: bool,
    /// With --seed: print the end of the trace if it fails, and nothing else of it
    #[arg(long)]
    quiet: bool,
    /// Print the logs of frontends and backends
    #[arg(long)]
    logs: bool,
}

/// What a process reports of a seed.
#[derive(Debug, PartialEq, Eq)]
struct SeedResult {
    /// Seed, hash and length of the trace, simulated seconds, number of steps.
    line: String,
    /// The violation, and the end of the trace.
    failure: Option<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.logs {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time().init();
    }
    match arguments.seed {
        Some(seed) if arguments.shrink => shrink(seed, &arguments),
        Some(seed) => simulate(seed, arguments),
        None => many(&arguments),
    }
}

/// Runs one seed in this process.
fn simulate(seed: u64, Arguments { only, forbidden, quiet, .. }: Arguments) -> Result<()> {
    let only = only.map(|only| only.into_iter().collect());
    let outcome = simulation::run(Options { seed, only, prints: !quiet, forbidden })?;
    let Outcome { violation, trace: (hash, lines), last, simulated, steps } = outcome;
    println!("{seed} {hash:016x} {lines} {} {steps}", simulated.as_secs());
    match violation {
        Some(violation) if quiet => bail!("seed {seed}: {violation}\n{}", last.join("\n")),
        Some(violation) => bail!("seed {seed}: {violation}"),
        None => Ok(()),
    }
}

/// Runs each seed in a process of its own: tokio's random numbers also depend on how many runtimes a process has had.
fn many(arguments: &Arguments) -> Result<()> {
    let from = arguments.from.unwrap_or_else(|| fastrand::u64(..1 << 48));
    println!("seeds from {from}");
    let [next, seeds, seconds, failed] = [const { AtomicU64::new(0) }; 4];
    let deadline = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let is_over = || {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
            || (arguments.fail_fast && failed.load(Ordering::Relaxed) > 0)
    };
    let run = || {
        while !is_over() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= arguments.seeds {
                return;
            }
            let seed = from + number;
            if arguments.short && simulation::lasts_for_days(seed) {
                continue;
            }
            seeds.fetch_add(1, Ordering::Relaxed);
            match simulated_seconds(seed, arguments) {
                Ok(simulated) => drop(seconds.fetch_add(simulated, Ordering::Relaxed)),
                Err(error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    println!("{error:#}");
                }
            }
        }
    };
    thread::scope(|scope| (0..arguments.threads).for_each(|_| drop(scope.spawn(run))));
    let (seeds, hours, failed) = (seeds.into_inner(), seconds.into_inner() / 3600, failed.into_inner());
    println!("{seeds} seeds, {hours} simulated hours, {failed} failed");
    if failed > 0 {
        bail!("replay a seed with --seed N, cut its steps with --seed N --shrink");
    }
    Ok(())
}

/// Runs a seed in a process, once or twice. An error is a violation, or another trace the second time.
fn simulated_seconds(seed: u64, arguments: &Arguments) -> Result<u64> {
    let result = in_process(seed, arguments, None)?;
    if arguments.twice && result != in_process(seed, arguments, None)? {
        bail!("seed {seed}: another trace the second time, after {result:?}");
    }
    match result.failure {
        Some(failure) => bail!("{failure}"),
        None => result.number(3),
    }
}

/// Runs a seed in a process.
fn in_process(seed: u64, arguments: &Arguments, only: Option<&[usize]>) -> Result<SeedResult> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--quiet", "--seed", &seed.to_string()]).env("RUST_BACKTRACE", "0");
    if let Some(forbidden) = &arguments.forbidden {
        command.args(["--forbidden", forbidden]);
    }
    if let Some(only) = only {
        command.arg("--only").args(only.iter().map(ToString::to_string));
    }
    let Output { status, stdout, stderr } = command.output()?;
    let failure = (!status.success()).then(|| format!("seed {seed}: {status}\n{}", String::from_utf8_lossy(&stderr)));
    Ok(SeedResult { line: String::from_utf8(stdout)?, failure })
}

/// Prints the fewest steps with which a seed fails.
fn shrink(seed: u64, arguments: &Arguments) -> Result<()> {
    let whole = in_process(seed, arguments, None)?;
    if whole.failure.is_none() {
        bail!("seed {seed} does not fail");
    }
    let steps = whole.number(4)?;
    let fails = |steps: &[usize]| Ok(in_process(seed, arguments, Some(steps))?.failure.is_some());
    let kept = simulation::shrink(usize::try_from(steps)?, fails)?;
    let list = kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let failure = in_process(seed, arguments, Some(&kept))?.failure.unwrap_or_default();
    println!("{failure}\nseed {seed} fails with {} of {steps} steps: --seed {seed} --only {list}", kept.len());
    Ok(())
}

impl SeedResult {
    fn number(&self, column: usize) -> Result<u64> {
        let number = self.line.split_whitespace().nth(column).and_then(|number| number.parse().ok());
        number.ok_or_else(|| anyhow!("unexpected output: {self:?}"))
    }
}

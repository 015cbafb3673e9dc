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
use simulation::Outcome;

/// Simulates clusters, each from a seed, and checks what must always be true.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run this seed only, and print its trace
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The first seed; without it, a random one
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Run this many seeds
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    seeds: u64,
    /// Start no seed after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    seconds: u64,
    /// Run this many at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Run each seed twice, and compare the traces
    #[arg(long)]
    twice: bool,
    /// With --seed: print the trace only if it fails
    #[arg(long)]
    quiet: bool,
    /// Print the logs of frontends and backends
    #[arg(long)]
    logs: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.logs {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time().init();
    }
    match arguments.seed {
        Some(seed) => simulate(seed, arguments.quiet),
        None => many(&arguments),
    }
}

/// Runs one seed in this process.
fn simulate(seed: u64, quiet: bool) -> Result<()> {
    let Outcome { violation, trace: (hash, lines), last, simulated } = simulation::run(seed, !quiet)?;
    println!("{seed} {hash:016x} {lines} {}", simulated.as_secs());
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
    let (next, seconds, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let deadline = Instant::now() + Duration::from_secs(arguments.seconds);
    let run = || {
        while Instant::now() < deadline {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= arguments.seeds {
                next.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            match in_process(from + number, arguments.twice) {
                Ok(simulated) => drop(seconds.fetch_add(simulated, Ordering::Relaxed)),
                Err(error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    println!("{error:#}");
                }
            }
        }
    };
    thread::scope(|scope| (0..arguments.threads).for_each(|_| drop(scope.spawn(run))));
    let (seeds, hours, failed) = (next.into_inner(), seconds.into_inner() / 3600, failed.into_inner());
    println!("{seeds} seeds, {hours} simulated hours, {failed} failed");
    if failed > 0 {
        bail!("replay a seed with --seed N");
    }
    Ok(())
}

/// Runs a seed in a process, once or twice, and returns the simulated time in seconds.
fn in_process(seed: u64, twice: bool) -> Result<u64> {
    let run = || -> Result<String> {
        let mut command = Command::new(env::current_exe()?);
        let Output { status, stdout, stderr } =
            command.args(["--quiet", "--seed", &seed.to_string()]).env("RUST_BACKTRACE", "0").output()?;
        if !status.success() {
            bail!("seed {seed}: {status}\n{}", String::from_utf8_lossy(&stderr));
        }
        Ok(String::from_utf8(stdout)?)
    };
    let result = run()?;
    if twice {
        let again = run()?;
        if again != result {
            bail!("seed {seed}: another trace the second time: {result} {again}");
        }
    }
    let simulated = result.split_whitespace().nth(3).and_then(|seconds| seconds.parse().ok());
    simulated.ok_or_else(|| anyhow!("seed {seed}: unexpected output {result:?}"))
}

//! Compares the backends, and kube-proxy, on random clusters until a time has passed.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Parser;
use differential::{Cluster, Comparison, Method};

/// Programs random clusters with each backend, and compares what happens to packets.
#[derive(Debug, Parser)]
struct Arguments {
    /// Compare the cluster of this seed only, and print it
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The first seed; without it, a random one
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Compare this many clusters
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    clusters: u64,
    /// Start no comparison after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Compare with this binary, too, in its modes nftables and iptables
    #[arg(long, value_name = "PATH")]
    kube_proxy: Option<PathBuf>,
    /// Send packets to pods, instead of evaluating the rules
    #[arg(long)]
    packets: bool,
    /// Stop after this many clusters with unknown differences
    #[arg(long, value_name = "N", default_value_t = 3)]
    failures: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (first, count) = match arguments.seed {
        Some(seed) => {
            print!("{}", Cluster::random(seed).text());
            (seed, 1)
        }
        None => (arguments.from.unwrap_or_else(|| fastrand::u64(..1 << 40)), arguments.clusters),
    };
    let method = if arguments.packets { Method::Packets } else { Method::Trace };
    println!("first seed: {first}");
    let mut comparison = Comparison::start(method, arguments.kube_proxy.as_deref())?;
    let (begun, mut failures) = (Instant::now(), 0);
    for seed in (first..).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        if begun.elapsed() >= Duration::from_secs(arguments.seconds) || failures >= arguments.failures {
            break;
        }
        if let Some(difference) = comparison.compare(seed)? {
            failures += 1;
            println!("{difference}");
        }
    }
    print!("{}", comparison.summary());
    if failures > 0 {
        bail!(
            "{failures} clusters have differences that docs/semantics.md does not describe; --seed N shows one again"
        );
    }
    Ok(())
}

//! `fairlead connections`: whose connections this node's kernel tracks; and `kubectl fairlead connections`, which asks
//! all nodes.
//!
//! ```text
//!   fairlead connections ─────────▶ one pass over this node's table ──▶ Report ──▶ table | document
//!   kubectl fairlead connections ─▶ kubectl exec in each backend's pod ──▶ Reports ──▶ their sum ──▶ the same
//! ```

mod cluster;
mod table;

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backend::StoredState;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    cli::{ConnectionsArgs, node_name},
    connections::{self, Report},
    exit_code::ExitCode,
    kubectl,
    print::{self, OutputClosed, OutputFormat},
};

/// How long `--watch` rests after a pass, which takes two seconds if the table has a million entries.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// How often progress is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Counts once, or until the command is interrupted.
pub(crate) async fn run(args: ConnectionsArgs) -> Result<ExitCode> {
    let first = count(&args).await?;
    if !args.watch {
        return Ok(first);
    }
    loop {
        sleep(WATCH_INTERVAL).await;
        if args.output.format == OutputFormat::Table {
            print::line("")?;
        }
        // It may be the last one that fails: a state file of a backend that restarts, or an API server.
        if let Err(error) = count(&args).await {
            if error.is::<OutputClosed>() {
                return Err(error);
            }
            print::error(format_args!("{error:#}"));
        }
    }
}

async fn count(args: &ConnectionsArgs) -> Result<ExitCode> {
    if kubectl::is_plugin_process() { cluster::run(args).await } else { of_this_node(args).await }
}

async fn of_this_node(args: &ConnectionsArgs) -> Result<ExitCode> {
    let file = args.state_dir.join("state");
    let node = node_name(args.node_name.as_deref())?;
    let query = args.query()?;

    let counted = spawn_blocking(move || {
        let stored = StoredState::read(&file, &node).with_context(|| {
            format!("cannot read {}: run this on a node with a backend, or set --state-dir", file.display())
        })?;
        connections::count(&stored.state, &query, progress())
    });
    let report = counted.await.context("the pass was cancelled")??;

    print_report(args, &report, &format!("{} on this node", table::tracked(&report)))?;
    Ok(ExitCode::Success)
}

/// Prints how far a pass is, if that takes long.
fn progress() -> impl FnMut(u64) {
    let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or_default();
    let mut timer = ProgressTimer::start();
    move |read| {
        // The clock is not free.
        if read.is_multiple_of(1024) && timer.is_due() {
            print::error(format_args!("read {read} of {} entries of the conntrack table", count.trim()));
        }
    }
}

/// When to print progress next.
struct ProgressTimer {
    next: Instant,
}

impl ProgressTimer {
    fn start() -> Self {
        Self { next: Instant::now() + PROGRESS_INTERVAL }
    }

    /// Whether progress is to be printed now.
    fn is_due(&mut self) -> bool {
        let is_due = Instant::now() >= self.next;
        if is_due {
            *self = Self::start();
        }
        is_due
    }
}

/// `heading`: where the counts come from.
fn print_report(args: &ConnectionsArgs, report: &Report, heading: &str) -> Result<()> {
    if args.watch {
        print::next_value(args.output, report, || print::text(table::text(report, heading)))
    } else {
        print::value(args.output, report, || table::text(report, heading))
    }
}

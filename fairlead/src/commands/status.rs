//! `fairlead status`: all nodes as all frontends see them, and an exit code that says whether all is well.
//!
//! ```text
//!   frontends ──StatusResponse──▶ join: one row a node, its state ──▶ table | json | yaml, exit code
//! ```

mod join;
mod json;
mod table;
#[cfg(test)]
mod tests;

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use proto::v1::StatusRequest;
use runtime::Shutdown;
use tokio::time::{Instant, sleep};

use self::join::{Limits, Overview};
use crate::cli::StatusArgs;
use crate::print;

/// How long a frontend may take to connect and answer, besides what it is asked to wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often is asked again while nodes are missing, of which no frontend can tell when they come.
const ASK_INTERVAL: Duration = Duration::from_millis(300);
/// Not everything is as it should be.
const NOT_WELL: u8 = 2;

/// Asks, prints, and says by the exit code whether all is well.
pub(crate) async fn run(args: StatusArgs, mut shutdown: Shutdown) -> Result<ExitCode> {
    let overview = tokio::select! {
        () = shutdown.recv() => bail!("interrupted"),
        overview = look(&args) => overview?,
    };
    print::value(args.output, &json::of(&overview), || table::render(&overview, &args))?;
    for (address, error) in &overview.silent {
        eprintln!("fairlead: {address} cannot be asked: {error:#}");
    }
    Ok(match overview {
        _ if !overview.silent.is_empty() => ExitCode::FAILURE,
        _ if overview.is_well() => ExitCode::SUCCESS,
        _ => ExitCode::from(NOT_WELL),
    })
}

/// Asks all frontends, until all is well if that is to be waited for.
async fn look(args: &StatusArgs) -> Result<Overview> {
    let grpc = args.frontend.grpc(None)?;
    let node = args.node.clone().unwrap_or_default();
    let ask = async |wait: Duration| -> Result<Vec<_>> {
        let wait_millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        grpc.status(&StatusRequest { wait_millis, node: node.clone(), ..StatusRequest::default() }, PATIENCE).await
    };
    let mut limits = Limits::new(args.max_lag, args.node.clone());
    let mut overview = Overview::of(ask(Duration::ZERO).await?, &limits);
    let Some(wait) = args.wait else { return Ok(overview) };
    limits.want(&overview);
    let deadline = Instant::now() + wait;
    loop {
        // What is committed now may be under way, whatever lag is put up with otherwise.
        overview = Overview::of(ask(deadline.saturating_duration_since(Instant::now())).await?, &limits);
        if overview.is_well() || !overview.silent.is_empty() || Instant::now() + ASK_INTERVAL > deadline {
            return Ok(overview);
        }
        sleep(ASK_INTERVAL).await;
    }
}

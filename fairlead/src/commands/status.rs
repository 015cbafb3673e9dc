//! `fairlead status`: the state of all nodes, merged from all frontends.
//!
//! ```text
//!   frontends ──StatusResponse──▶ join: a row per node, with its state ──▶ table | json | yaml, exit code
//! ```

mod join;
mod json;
mod table;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Error, Result};
use backend::Grpc;
use proto::v1::{StatusRequest, StatusResponse};
use tokio::time::{Instant, sleep};

use self::join::Overview;
use super::view::RESPONSE_TIMEOUT;
use crate::{cli::StatusArgs, exit_code::ExitCode, print};

/// The poll interval while nodes are missing: frontends cannot wait for nodes without a stream.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Queries all frontends, and prints the merged state. `others`: frontends that have no address.
pub(crate) async fn run(args: StatusArgs, others: Vec<(String, Error)>) -> Result<ExitCode> {
    let mut overview = query(&args, !others.is_empty()).await?;
    overview.unreachable.extend(others);

    print::value(args.output, &json::of(&overview, &args), || table::render(&overview, &args))?;
    for (address, error) in &overview.unreachable {
        print::error(format_args!("cannot query {address}: {error:#}"));
    }

    if is_incomplete(&overview, &args) {
        return Ok(ExitCode::CouldNotRun);
    }
    Ok(ExitCode::of_check(is_as_wanted(&overview, &args)))
}

/// Whether a frontend that could not be queried might know more. A node is connected to one frontend: if another
/// frontend reports it as healthy, an address without a frontend does not matter.
fn is_incomplete(overview: &Overview, args: &StatusArgs) -> bool {
    !overview.unreachable.is_empty() && (args.node.is_none() || overview.frontends.is_empty() || !overview.is_healthy())
}

/// Whether the overview shows what the command asks for: healthy nodes, and with `--wait` the streams of all of them.
fn is_as_wanted(overview: &Overview, args: &StatusArgs) -> bool {
    overview.is_healthy() && !is_incomplete(overview, args) && (args.wait.is_none() || overview.has_all_nodes())
}

/// Queries all frontends; with `--wait` until all nodes are in sync. `has_others`: frontends that have no address.
async fn query(args: &StatusArgs, has_others: bool) -> Result<Overview> {
    let grpc = args.frontend.grpc()?;
    let answers = ask(&grpc, args, Duration::ZERO).await?;
    let now = Overview::of(answers, args, &BTreeMap::new());
    let Some(wait) = args.wait else { return Ok(now) };

    // Every node must have the current revision, also with `--max-lag`.
    let required = now.revisions();
    let deadline = Instant::now() + wait;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let answers = ask(&grpc, args, left).await?;
        let overview = Overview::of(answers, args, &required);

        let cannot_succeed = (has_others || !overview.unreachable.is_empty()) && args.node.is_none();
        if is_as_wanted(&overview, args) || cannot_succeed || Instant::now() + POLL_INTERVAL > deadline {
            return Ok(overview);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The answers of all frontends, each with its address. They wait this long for connected nodes that are behind.
async fn ask(grpc: &Grpc, args: &StatusArgs, wait: Duration) -> Result<Vec<(String, Result<StatusResponse>)>> {
    let wait_millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let node = args.node.clone().unwrap_or_default();
    grpc.status(&StatusRequest { wait_millis, node, ..StatusRequest::default() }, RESPONSE_TIMEOUT).await
}

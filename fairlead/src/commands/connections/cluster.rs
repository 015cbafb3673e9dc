//! `kubectl fairlead connections`: runs the command in the pods of all backends, and adds their reports.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};
use futures::{StreamExt as _, stream};

use super::{PROGRESS_INTERVAL, print, table};
use crate::{
    cli::ConnectionsArgs,
    connections::{Grouping, Report},
    exit_code::ExitCode,
    kubectl::{self, BackendPod},
    print as output,
};

/// How many nodes are asked at a time: each is a process of kubectl, and a connection of the API server.
const CONCURRENT: usize = 16;
/// How long a node may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks all nodes, and prints the sum of what they answer. A node that does not answer is a problem, no failure.
pub(super) async fn run(args: &ConnectionsArgs) -> Result<ExitCode> {
    let pods = kubectl::backend_pods().await?;
    let command = command(args)?;
    let command: Vec<_> = command.iter().map(String::as_str).collect();

    let asked = stream::iter(&pods).map(|pod| ask(pod, &command)).buffer_unordered(CONCURRENT);
    let mut answers = std::pin::pin!(asked);
    let mut sum = None;
    let mut answered = 0;
    let mut unanswered = Vec::new();
    let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
    while let Some((pod, answer)) = answers.next().await {
        match answer {
            Ok(report) => {
                answered += 1;
                add(&mut sum, report);
            }
            Err(error) => unanswered.push((pod, error)),
        }
        if Instant::now() >= next_progress {
            output::error(format_args!("{answered} of {} nodes have answered", pods.len()));
            next_progress = Instant::now() + PROGRESS_INTERVAL;
        }
    }

    for (pod, error) in &unanswered {
        output::error(format_args!("node {} is missing (pod {}): {error:#}", pod.node, pod.name));
    }
    let Some(report) = sum else { bail!("no node has answered") };
    let source = format!("{} of {answered} of {} nodes", table::entries(&report), pods.len());
    print(args, &report, &source)?;
    Ok(ExitCode::of_check(unanswered.is_empty()))
}

fn add(sum: &mut Option<Report>, report: Report) {
    match sum {
        Some(sum) => sum.add(report),
        None => *sum = Some(report),
    }
}

/// The command that runs in each pod.
fn command(args: &ConnectionsArgs) -> Result<Vec<String>> {
    let by = match args.grouping() {
        Grouping::Service => "service",
        Grouping::Endpoint => "endpoint",
        Grouping::Client => "client",
    };
    let mut command: Vec<_> = ["fairlead", "connections", "--output", "json", "--by", by].map(str::to_owned).into();
    if let Some(service) = args.service.clone() {
        command.push(service.in_namespace(args.namespace.as_deref())?.to_string());
    }
    Ok(command)
}

async fn ask<'a>(pod: &'a BackendPod, command: &[&str]) -> (&'a BackendPod, Result<Report, Error>) {
    let answer = async {
        let printed = tokio::time::timeout(TIMEOUT, kubectl::exec(pod, command)).await;
        let printed = printed.with_context(|| format!("it has not answered within {} s", TIMEOUT.as_secs()))??;
        serde_json::from_slice(&printed).context("it has not answered with a report: is its version the same?")
    };
    (pod, answer.await)
}

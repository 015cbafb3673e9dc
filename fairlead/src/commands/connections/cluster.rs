//! `kubectl fairlead connections`: runs the command in the pods of all backends, and adds their reports.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use anyhow::{Context as _, Error, Result, bail};
use clap::ValueEnum as _;
use futures::{StreamExt as _, stream};

use super::{ProgressTimer, print_report, table};
use crate::{
    cli::{ConnectionsArgs, SHOWN_NODES},
    connections::{Query, Report, Sum},
    exit_code::ExitCode,
    kubectl::{self, BackendPod},
    print,
};

/// How many nodes are asked at a time: each is a process of kubectl, and a connection of the API server.
const CONCURRENT: usize = 16;
/// How long a node may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks all nodes, and prints the sum of what they answer. A node that does not answer is reported, and makes the exit
/// code 1.
pub(super) async fn run(args: &ConnectionsArgs) -> Result<ExitCode> {
    let pods = kubectl::backend_pods().await?;
    let query = args.query()?;
    let command = command(&query)?;
    let command: Vec<_> = command.iter().map(String::as_str).collect();

    let mut sum = Sum::new(query.by);
    let mut answered = 0;
    let mut missing = BTreeMap::<String, Vec<&str>>::new();
    let mut timer = ProgressTimer::start();
    let asked = stream::iter(&pods).map(|pod| ask(pod, &command)).buffer_unordered(CONCURRENT);
    let mut answers = pin!(asked);
    while let Some((pod, answer)) = answers.next().await {
        match answer {
            Ok(report) => {
                answered += 1;
                sum.add(report);
            }
            Err(error) => missing.entry(format!("{error:#}")).or_default().push(&pod.node),
        }
        if timer.is_due() {
            print::error(format_args!("{answered} of {} nodes have answered", pods.len()));
        }
    }

    for (error, nodes) in &missing {
        print::error(format_args!("{} missing: {error}", named(nodes)));
    }
    if answered == 0 {
        bail!("no node has answered");
    }
    let report = sum.finish();
    let heading = format!("{} on {answered} of {} nodes", table::tracked(&report), pods.len());
    print_report(args, &report, &heading)?;
    Ok(ExitCode::of_check(missing.is_empty()))
}

/// `node node-a is`, or `4,999 nodes (node-a, node-b, ...) are`.
fn named(nodes: &[&str]) -> String {
    match nodes {
        [node] => format!("node {node} is"),
        nodes => {
            let first = nodes.iter().take(SHOWN_NODES).copied().collect::<Vec<_>>().join(", ");
            let more = if nodes.len() > SHOWN_NODES { ", ..." } else { "" };
            format!("{} nodes ({first}{more}) are", nodes.len())
        }
    }
}

/// The command that runs in each pod.
fn command(query: &Query) -> Result<Vec<String>> {
    let by = query.by.to_possible_value().context("--by has no name for this group")?;
    let arguments = ["fairlead", "connections", "--output", "json", "--by", by.get_name()];

    let mut command: Vec<_> = arguments.map(str::to_owned).into();
    command.extend(query.service.as_ref().map(ToString::to_string));
    Ok(command)
}

async fn ask<'a>(pod: &'a BackendPod, command: &[&str]) -> (&'a BackendPod, Result<Report, Error>) {
    let answer = async {
        if !pod.is_running {
            bail!("the pod of its backend does not run");
        }
        let printed = tokio::time::timeout(TIMEOUT, kubectl::exec(pod, command)).await;
        let printed = printed.with_context(|| format!("it has not answered within {} s", TIMEOUT.as_secs()))??;
        serde_json::from_slice(&printed).context("it has not answered with a report: is its version the same?")
    };
    (pod, answer.await)
}

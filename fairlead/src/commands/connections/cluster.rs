//! `kubectl fairlead connections`: runs the command in the pods of all backends, and adds their reports.

use std::{
    collections::BTreeMap,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, bail};
use futures::{StreamExt as _, stream};

use super::{PROGRESS_INTERVAL, print_report, table};
use crate::{
    cli::{ConnectionsArgs, SHOWN_NODES},
    connections::{Grouping, Report, Sum},
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
    let command = command(args)?;
    let command: Vec<_> = command.iter().map(String::as_str).collect();

    let mut sum = Sum::new(args.grouping());
    let mut answered = 0;
    let mut missing = BTreeMap::<String, Vec<&str>>::new();
    let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
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
        if Instant::now() >= next_progress {
            print::error(format_args!("{answered} of {} nodes have answered", pods.len()));
            next_progress = Instant::now() + PROGRESS_INTERVAL;
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
        if !pod.is_running {
            bail!("the pod of its backend does not run");
        }
        let printed = tokio::time::timeout(TIMEOUT, kubectl::exec(pod, command)).await;
        let printed = printed.with_context(|| format!("it has not answered within {} s", TIMEOUT.as_secs()))??;
        serde_json::from_slice(&printed).context("it has not answered with a report: is its version the same?")
    };
    (pod, answer.await)
}

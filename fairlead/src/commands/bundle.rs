//! `fairlead bundle`: everything that helps to find out what is wrong with a node, in one file, without secrets.
//!
//! ```text
//!   kernel, files, agent, frontend ──gather──▶ texts ──redact──▶ archive: one file each, manifest.json
//! ```

mod archive;
mod gather;
mod redact;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use runtime::Shutdown;
use tokio::time::timeout;

use self::{archive::Archive, redact::Addresses};
use super::{
    check,
    view::{Event, View},
};
use crate::{
    cli::{BundleArgs, CheckArgs, Output, ViewArgs},
    print,
};

/// How long the frontend may take for its first commit.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the agent is asked for.
const ANSWERS: [(&str, &str); 4] = [
    ("/metrics", "agent/metrics.txt"),
    ("/statusz", "agent/statusz.txt"),
    ("/configz", "agent/configz.json"),
    ("/healthz", "agent/healthz.txt"),
];

/// Gathers, writes, and says what was left out.
pub(crate) async fn run(args: BundleArgs, mut shutdown: Shutdown) -> Result<()> {
    let check = check_args(&args);
    let node = args.here.node()?;
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("fairlead-bundle-{node}.tar.gz")));
    if path.exists() {
        bail!("{} is there already: give another name with --output", path.display());
    }
    let addresses = if args.redact_ips { Addresses::Replaced } else { Addresses::Shown };
    let archive = tokio::select! {
        () = shutdown.recv() => bail!("interrupted"),
        archive = gather(&args, &check, &node, addresses) => archive?,
    };
    let (files, left_out) = archive.write(&path, &node, addresses)?;
    print::line(format_args!("{}: {files} files", path.display()))?;
    for left_out in left_out {
        print::line(format_args!("left out: {left_out}"))?;
    }
    Ok(())
}

async fn gather(args: &BundleArgs, check: &CheckArgs, node: &str, addresses: Addresses) -> Result<Archive> {
    let mut archive = Archive::new(addresses);
    archive.add("version.txt", Ok(format!("fairlead {}\nnode {node}\n", env!("CARGO_PKG_VERSION"))));
    archive.add("processes.txt", gather::processes());
    let checked = check::look(check).await;
    archive.add("check.txt", checked.map(|report| report.text()));
    archive.add("settings.txt", Ok(gather::settings()));
    for path in gather::KERNEL_FILES {
        archive.add(format!("kernel{path}"), gather::file(path));
    }
    match gather::nft() {
        Ok(tables) => tables.into_iter().for_each(|(name, text)| archive.add(name, Ok(text))),
        Err(error) => archive.add("nft", Err(error)),
    }
    match iptables::save_all().await {
        Ok(saved) => {
            saved
                .into_iter()
                .for_each(|saved| archive.add(format!("iptables/{}.txt", saved.program.name), Ok(saved.text)));
        }
        Err(error) => archive.add("iptables", Err(error)),
    }
    archive.add("ipvs.txt", gather::ipvs().await);
    archive.add("state.json", gather::state(&args.here.state_dir, node));
    archive.add("frontend.json", told(args, node).await);
    for (path, name) in ANSWERS {
        archive.add(name, gather::ask(args.agent, path).await);
    }
    Ok(archive)
}

/// What the frontend tells this node.
async fn told(args: &BundleArgs, node: &str) -> Result<String> {
    let of = ViewArgs { frontend: args.here.frontend.clone(), node: Some(node.to_owned()), output: Output::Json };
    let follow = async {
        let mut view = View::open(&of).await?;
        while !matches!(view.next().await?, Event::Batch(batch) if batch.commit) {}
        anyhow::Ok(serde_json::to_string_pretty(&gather::to_json(&view.state))?)
    };
    timeout(PATIENCE, follow).await.with_context(|| format!("no answer within {PATIENCE:?}"))?
}

fn check_args(args: &BundleArgs) -> CheckArgs {
    CheckArgs { pre: false, here: args.here.clone(), kubeconfig: None, output: Output::Table }
}

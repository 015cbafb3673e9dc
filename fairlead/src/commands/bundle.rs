//! `fairlead bundle`: collects diagnostics of a node in one archive, without secrets.
//!
//! ```text
//!   kernel, files, backend, frontend ──collect──▶ texts ──redact──▶ archive: one file each, manifest.json
//! ```

mod archive;
mod collect;
mod redact;

use std::path::PathBuf;

use anyhow::{Result, bail};
use runtime::Shutdown;

use self::{archive::Archive, redact::Addresses};
use super::{check, view};
use crate::{
    cli::{BundleArgs, CheckArgs, OutputArgs, OutputFormat, ViewArgs},
    print,
};

/// HTTP paths of the backend, and the files in the archive with the responses.
const BACKEND_FILES: [(&str, &str); 4] = [
    ("/metrics", "backend/metrics.txt"),
    ("/statusz", "backend/statusz.txt"),
    ("/configz", "backend/configz.json"),
    ("/healthz", "backend/healthz.txt"),
];

/// Writes the archive, and prints which files were left out.
pub(crate) async fn run(args: BundleArgs, mut shutdown: Shutdown) -> Result<()> {
    let check = check_args(&args);
    let node = args.here.node()?;
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("fairlead-bundle-{node}.tar.gz")));
    if path.exists() {
        bail!("{} already exists: set another file with --output", path.display());
    }
    let addresses = if args.redact_ips { Addresses::Replaced } else { Addresses::Shown };
    let archive = tokio::select! {
        () = shutdown.recv() => bail!("interrupted"),
        archive = collect(&args, &check, &node, addresses) => archive?,
    };
    let (files, left_out) = archive.write(&path, &node, addresses)?;
    print::line(format_args!("{}: {files} files", path.display()))?;
    for left_out in left_out {
        print::line(format_args!("left out: {left_out}"))?;
    }
    Ok(())
}

async fn collect(args: &BundleArgs, check: &CheckArgs, node: &str, addresses: Addresses) -> Result<Archive> {
    let mut archive = Archive::new(addresses);
    archive.add("version.txt", Ok(format!("fairlead {}\nnode {node}\n", env!("CARGO_PKG_VERSION"))));
    archive.add("processes.txt", collect::processes());
    let checked = check::inspect(check).await;
    archive.add("check.txt", checked.map(|report| report.text()));
    archive.add("sysctls.txt", Ok(collect::sysctls()));
    for path in collect::KERNEL_FILES {
        archive.add(format!("kernel{path}"), collect::file(path));
    }
    match collect::nft() {
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
    archive.add("ipvs.txt", collect::ipvs().await);
    archive.add("state.json", collect::state(&args.here.state_dir, node));
    archive.add("frontend.json", frontend_view(args, node).await);
    for (path, name) in BACKEND_FILES {
        archive.add(name, collect::http_get(args.backend_address, path).await);
    }
    Ok(archive)
}

/// The frontend's view of this node.
async fn frontend_view(args: &BundleArgs, node: &str) -> Result<String> {
    let output = OutputArgs { format: OutputFormat::Json };
    let args = ViewArgs { frontend: args.here.frontend.clone(), node: Some(node.to_owned()), output };
    let state = view::committed_in_time(&args).await?;
    Ok(serde_json::to_string_pretty(&collect::to_json(&state))?)
}

fn check_args(args: &BundleArgs) -> CheckArgs {
    CheckArgs {
        pre: false,
        here: args.here.clone(),
        kubeconfig: None,
        output: OutputArgs { format: OutputFormat::Table },
    }
}

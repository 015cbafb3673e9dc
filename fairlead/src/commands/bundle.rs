//! `fairlead bundle`: collects diagnostics of a node in one archive, without secrets.
//!
//! ```text
//!   kernel, files, backend, frontend ──collect──▶ texts ──redact──▶ archive: one file each, manifest.json
//! ```

mod archive;
mod collect;
mod redact;

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use iptables::SavedRules;
use nix::unistd::{AccessFlags, access};

use self::archive::Archive;
use super::{check, view};
use crate::{
    cli::{BundleArgs, HttpAddress},
    print,
    running_backend::RunningBackend,
};

/// HTTP paths of the backend, and the files in the archive with the responses.
const BACKEND_FILES: [(&str, &str); 4] = [
    ("/metrics", "backend/metrics.txt"),
    ("/statusz", "backend/statusz.json"),
    ("/configz", "backend/configz.json"),
    ("/healthz", "backend/healthz.txt"),
];

/// Writes the archive, and prints which files were left out.
pub(crate) async fn run(args: BundleArgs, running: Option<RunningBackend>) -> Result<()> {
    let node = args.inspected.node()?;
    let path = args.output.clone().unwrap_or_else(|| default_path(&args, &node));
    if path.exists() {
        bail!("{} already exists: set another file with --output", path.display());
    }
    let (files, left_out) = collect(&args, &node, running.as_ref()).await?.write(&path, &node)?;
    print::line(format_args!("{}: {files} files", path.display()))?;
    for left_out in left_out {
        print::line(format_args!("left out: {left_out}"))?;
    }
    Ok(())
}

/// In the current directory, or if that is read-only, as in a container, in the state directory.
fn default_path(args: &BundleArgs, node: &str) -> PathBuf {
    let name = format!("fairlead-bundle-{node}.tar.gz");
    match access(".", AccessFlags::W_OK) {
        Ok(()) => PathBuf::from(name),
        Err(_) => args.state_dir.join(name),
    }
}

async fn collect(args: &BundleArgs, node: &str, running: Option<&RunningBackend>) -> Result<Archive> {
    let mut archive = Archive::new(args.redact_ips);
    archive.add("version.txt", Ok(format!("fairlead {}\nnode {node}\n", env!("CARGO_PKG_VERSION"))));
    archive.add("processes.txt", collect::processes());
    let checked = check::inspect(&args.inspected, true, running).await;
    archive.add("check.txt", checked.map(|report| report.text()));
    archive.add("sysctls.txt", Ok(collect::sysctls()));
    for path in collect::KERNEL_FILES {
        archive.add(format!("kernel{path}"), collect::file(path));
    }
    for path in collect::ROUTE_FILES {
        let text =
            if args.redact_ips { Err(anyhow!("its addresses are hexadecimal numbers")) } else { collect::file(path) };
        archive.add(format!("kernel{path}"), text);
    }
    archive.add_all("nft", collect::nft());
    let saved = iptables::save_all().await;
    let files = |saved: Vec<SavedRules>| saved.into_iter().map(|saved| (saved.program.name, Ok(saved.text))).collect();
    archive.add_all("iptables", saved.map(files));
    archive.add("ipvs.txt", collect::ipvs().await);
    archive.add("state.json", collect::state(&args.state_dir, node));
    archive.add("frontend.json", frontend_view(args, node).await);
    let HttpAddress(backend) = args.inspected.running.backend_address;
    for (path, name) in BACKEND_FILES {
        archive.add(name, collect::backend_response(backend, path).await);
    }
    Ok(archive)
}

/// The frontend's view of this node.
async fn frontend_view(args: &BundleArgs, node: &str) -> Result<String> {
    let state = view::committed(&args.inspected.frontend, node).await?;
    Ok(serde_json::to_string_pretty(&collect::to_json(&state))?)
}

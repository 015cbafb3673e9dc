//! `make bench`: benchmarks of the real programs: time from an edit to the kernel, memory, restarts, bytes. The
//! benchmarks in the backend crates measure the kernel alone.
//!
//! ```text
//!   bench                       everything, as a table
//!   bench latency               one part: latency, node, wire, api or scale
//!   bench --kube-proxy PATH     beside kube-proxy in nftables mode; PATH is its binary
//!   bench -o json               as JSON
//! ```
//!
//! | module | measures |
//! |---|---|
//! | `latency` | from the edit of a file to the commit in the kernel |
//! | `node` | memory, cold starts, restarts of one backend |
//! | `wire` | bytes on a stream |
//! | `api` | a frontend on a Kubernetes API: start, memory |
//! | `scale` | a frontend with 5,000 nodes: memory, CPU time, bytes, latency |
//! | `peer` | Fairlead and kube-proxy beside each other |
//! | `manifests`, `api_server`, `lab`, `worker`, `report` | nothing; they are shared by the others |
//!
//! Requires root. The goals apply to two otherwise idle CPUs.

mod api;
mod api_server;
mod lab;
mod latency;
mod manifests;
mod node;
mod peer;
mod report;
mod scale;
mod wire;
mod worker;

use std::{env, path::Path, process::ExitCode};

use anyhow::{Result, bail};

use lab::Lab;
use report::Report;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = env::args().skip(1).collect::<Vec<_>>();
    let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
    let (output, parts) = match &arguments[..] {
        ["-o", "json", parts @ ..] | [parts @ .., "-o", "json"] => (Report::print_json as fn(&Report), parts),
        parts => (Report::print as fn(&Report), parts),
    };
    let mut report = Report::default();
    if let ["--kube-proxy", path] = parts {
        peer::measure(&mut report, Path::new(path))?;
        output(&report);
        return Ok(());
    }
    if let Some(unknown) = parts.iter().find(|part| !["latency", "node", "wire", "api", "scale"].contains(*part)) {
        bail!("unknown part {unknown:?}: use latency, node, wire, api or scale");
    }
    let wanted = |part| parts.is_empty() || parts.contains(&part);

    if wanted("latency") {
        latency::measure(&mut report, &Lab::new()?)?;
    }
    if wanted("node") {
        node::measure(&mut report, &Lab::new()?)?;
    }
    if wanted("wire") {
        wire::measure(&mut report)?;
    }
    if wanted("api") {
        api::measure(&mut report, &Lab::new()?)?;
    }
    if wanted("scale") {
        scale::measure(&mut report, &Lab::new()?)?;
    }
    output(&report);
    Ok(())
}

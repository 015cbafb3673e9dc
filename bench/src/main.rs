//! `make bench`: what Fairlead costs as a whole, with its real programs: time from an edit to the kernel, memory,
//! restarts, bytes. What the kernel alone takes is measured by the backend's own benchmark.
//!
//! ```text
//!   bench                       everything, as a table
//!   bench latency               one part: latency, node, wire, api or scale
//!   bench --kube-proxy PATH     beside kube-proxy in nftables mode: its binary
//!   bench -o json               for programs
//! ```
//!
//! | module | measures |
//! |---|---|
//! | `latency` | from the edit of a file to the commit in the kernel |
//! | `node` | memory, cold starts, restarts of one backend |
//! | `wire` | bytes on a stream |
//! | `api` | a frontend on a Kubernetes API: start, memory |
//! | `scale` | a frontend with 5,000 nodes: memory, processor time, bytes, latency |
//! | `peer` | Fairlead and kube-proxy beside each other |
//! | `manifests`, `lab`, `report` | nothing: what is measured on, where, and what comes out |
//!
//! Needs root. Goals are those of two otherwise idle processors.

mod api;
mod lab;
mod latency;
mod manifests;
mod node;
mod peer;
mod report;
mod scale;
mod wire;

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
    let words = arguments.iter().map(String::as_str).collect::<Vec<_>>();
    let (output, parts) = match &words[..] {
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
        bail!("there is no part {unknown:?}; there are: latency, node, wire, api, scale");
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

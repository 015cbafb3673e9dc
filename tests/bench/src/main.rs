//! `make bench`: benchmarks of the real programs: time from an edit to the kernel, memory, restarts, bytes. The
//! benchmarks in the backend crates measure the kernel alone.
//!
//! ```text
//!   bench                       everything but the adversary, as a table
//!   bench latency               one part: state, latency, node, changes, wire, api, scale or adversary
//!   bench scale --nodes 200     a smaller cluster
//!   bench scale --nodes 10000 --streams 5000   one of two replicas of a larger one
//!   bench scale --tls           each node over TLS, with a certificate of its own
//!   bench adversary --backend iptables
//!   bench peer PROGRAMS ETCD    beside kube-proxy in nftables mode, on a real API server; PROGRAMS is a directory
//!                               with kube-apiserver and kube-proxy; --services N, --endpoints N, LABEL=KUBE_PROXY
//!   bench resets                clients of a pod whose node goes; not a part of everything
//!   bench rollouts 200 5000     rollouts of ten pods beside 5,000 streams; not a part of everything
//!   bench soak HOURS STREAMS    not a measurement: what grows or breaks in that time fails it
//!   bench -o json               as JSON
//!   bench table FILE...         one table of goals from such files
//! ```
//!
//! | module | measures |
//! |---|---|
//! | `state` | the state of a node as a value: a commit of one endpoint |
//! | `latency` | from the edit of a file to the commit in the kernel |
//! | `node` | memory, cold starts, restarts of one backend |
//! | `changes` | the CPU time of a backend, by thread, while pods change, with conntrack tables of three sizes |
//! | `wire` | bytes on a stream |
//! | `api` | a frontend on a Kubernetes API: start, memory |
//! | `scale` | a frontend with 5,000 nodes: memory, CPU time, bytes, latency |
//! | `adversary` | a tenant's largest Services, and the delay of a bystander; fails if a cost is super-linear |
//! | `resets` | how long clients of a pod whose node goes wait for their reset |
//! | `rollouts` | failed connections of rollouts with and without the barrier, and the wait of each pod |
//! | `soak` | whether memory or kernel objects grow, or connections break, in hours of load |
//! | `peer` | Fairlead and kube-proxies beside each other, on a real API server |
//! | `summary` | nothing; it prints the table of goals |
//! | `manifests`, `api_server`, `credentials`, `lab`, `worker`, `report` | nothing; they are shared by the others |
//!
//! Requires root. The goals apply to two otherwise idle CPUs.

mod adversary;
mod api;
mod api_server;
mod changes;
mod credentials;
mod lab;
mod latency;
mod manifests;
mod node;
mod peer;
mod report;
mod resets;
mod rollouts;
mod scale;
mod soak;
mod state;
mod summary;
mod wire;
mod worker;

use std::{env, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use lab::Lab;
use peer::PeerOptions;
use report::Report;
use scale::ScaleOptions;
use soak::SoakOptions;

const PARTS: [&str; 8] = ["state", "latency", "node", "changes", "wire", "api", "scale", "adversary"];

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
    let (mut output, mut parts, mut nodes, mut streams, mut tls, mut backend) =
        (Report::print as fn(&Report), Vec::new(), scale::NODES, None, false, "nftables");
    let mut rest = &arguments[..];
    loop {
        rest = match rest {
            [] => break,
            ["-o", "json", more @ ..] => {
                output = Report::print_json;
                more
            }
            ["--nodes", number, more @ ..] => {
                nodes = number.parse().with_context(|| format!("--nodes {number}"))?;
                more
            }
            ["--streams", number, more @ ..] => {
                streams = Some(number.parse().with_context(|| format!("--streams {number}"))?);
                more
            }
            ["--tls", more @ ..] => {
                tls = true;
                more
            }
            ["--backend", name, more @ ..] => {
                backend = name;
                more
            }
            ["soak", hours, streams] => {
                let hours: f64 = hours.parse().with_context(|| format!("hours: {hours}"))?;
                let streams = streams.parse().with_context(|| format!("streams: {streams}"))?;
                let duration = Duration::try_from_secs_f64(hours * 3600.0).context("hours")?;
                let csv = env::current_exe().context("find this program")?.with_file_name("soak.csv");
                return soak::run(&SoakOptions { duration, streams, csv });
            }
            ["rollouts", count, streams] => {
                let count = count.parse().with_context(|| format!("rollouts: {count}"))?;
                let streams = streams.parse().with_context(|| format!("streams: {streams}"))?;
                let mut report = Report::default();
                rollouts::measure(&mut report, count, streams)?;
                output(&report);
                return Ok(());
            }
            ["resets-holder", vip, count, pod] => return resets::hold(vip, count, pod),
            ["resets"] => {
                let mut report = Report::default();
                resets::measure(&mut report)?;
                output(&report);
                return Ok(());
            }
            ["table", files @ ..] => return summary::print(files),
            ["peer", arguments @ ..] => {
                let mut report = Report::default();
                peer::measure(&mut report, &PeerOptions::parse(arguments)?)?;
                output(&report);
                return Ok(());
            }
            [part, more @ ..] if PARTS.contains(part) => {
                parts.push(*part);
                more
            }
            [unknown, ..] => bail!("unknown part {unknown:?}: use one of {}", PARTS.join(", ")),
        };
    }
    let mut report = Report::default();
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let mut super_linear = Vec::new();

    if wanted("state") {
        state::measure(&mut report)?;
    }
    if wanted("latency") {
        latency::measure(&mut report, &Lab::new()?)?;
    }
    if wanted("node") {
        node::measure(&mut report, &Lab::new()?)?;
        node::measure_many(&mut report, &Lab::new()?)?;
    }
    if wanted("changes") {
        changes::measure(&mut report)?;
    }
    if wanted("wire") {
        wire::measure(&mut report)?;
    }
    if wanted("api") {
        api::measure(&mut report, &Lab::new()?)?;
    }
    if wanted("scale") {
        let options = ScaleOptions { nodes, streams: streams.unwrap_or(nodes), tls };
        scale::measure(&mut report, &Lab::new()?, &options)?;
    }
    if parts.contains(&"adversary") {
        super_linear = adversary::measure(&mut report, backend)?;
    }
    output(&report);
    ensure!(super_linear.is_empty(), "cost grows faster than the inputs: {}", super_linear.join("; "));
    Ok(())
}

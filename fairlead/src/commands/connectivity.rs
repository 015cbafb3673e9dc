//! `fairlead test`: connects from this node to all VIPs that it serves, and compares the results with the frontend's
//! view.
//!
//! ```text
//!   stream ─▶ NodeState ─▶ plan: VIPs, expected results ─▶ probe: connect, find the endpoint ─▶ verdict ─▶ table
//! ```

mod plan;
mod probe;
#[cfg(test)]
mod tests;
mod verdict;

use std::{
    fmt::Display,
    net::{IpAddr, UdpSocket},
    sync::Mutex,
};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, stream};
use netlink::conntrack::ConntrackHandle;
use proto::{
    model::{IpFamily, ServicePortKey},
    state::ServiceName,
};
use serde::Serialize;

use self::{
    plan::probe_targets,
    probe::Prober,
    verdict::{ProbeResult, judge},
};
use super::{check::Level, view};
use crate::{cli::TestArgs, exit_code::ExitCode, print, running_backend::RunningBackend, table::TextTable};

/// How many VIPs are tested at the same time.
const MAX_CONCURRENT_PROBES: usize = 16;

/// The results of all probes.
#[derive(Debug, Serialize)]
struct ConnectivityReport {
    results: Vec<ProbeResult>,
    /// The number of VIPs beyond `--limit`.
    skipped: usize,
}

/// Probes all VIPs, and prints the results.
pub(crate) async fn run(args: TestArgs, running: Option<RunningBackend>) -> Result<ExitCode> {
    let report = probe_all(&args, running).await?;
    print::value(args.view.output, &report, || report.table())?;
    let failed = report.results.iter().any(|result| result.verdict == Level::Fail);
    Ok(ExitCode::of_check(!failed))
}

async fn probe_all(args: &TestArgs, running: Option<RunningBackend>) -> Result<ConnectivityReport> {
    let state = view::of_this_node(&args.view.frontend, &args.view.node_name()?, running.as_ref()).await?;

    let wanted = Wanted::new(args)?;
    let mut targets = probe_targets(&state, |service| wanted.contains(&service.port.key), source_towards);
    if targets.is_empty() && !args.services.is_empty() {
        bail!("none of these Services has a VIP: see `fairlead services`");
    }
    let skipped = targets.len().saturating_sub(args.limit.get());
    targets.truncate(args.limit.get());

    let conntrack = ConntrackHandle::open().context("cannot open a netlink socket for conntrack")?;
    let prober = Prober { conntrack: Mutex::new(conntrack), timeout: args.timeout };
    let probes = stream::iter(&targets).map(async |target| {
        let observations = prober.probe(target, args.count.get()).await;
        judge(target, &observations)
    });
    let results = probes.buffered(MAX_CONCURRENT_PROBES).collect().await;
    Ok(ConnectivityReport { results, skipped })
}

/// The Services that are tested.
struct Wanted {
    /// `None`: of all namespaces.
    namespace: Option<String>,
    /// Empty: all.
    services: Vec<ServiceName>,
}

impl Wanted {
    fn new(args: &TestArgs) -> Result<Self> {
        let namespace = args.namespace.namespace.clone();
        let mut services = Vec::new();
        for service in &args.services {
            services.push(service.clone().in_namespace(namespace.as_deref())?);
        }
        Ok(Self { namespace, services })
    }

    fn contains(&self, key: &ServicePortKey) -> bool {
        let is_in_namespace = self.namespace.as_ref().is_none_or(|namespace| **namespace == *key.namespace);
        is_in_namespace && (self.services.is_empty() || self.services.iter().any(|name| name.contains(key)))
    }
}

/// The source address of packets from this node to `address`. Sends nothing.
fn source_towards(address: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((IpFamily::of(&address).unspecified(), 0)).ok()?;
    socket.connect((address, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl ConnectivityReport {
    fn table(&self) -> String {
        let mut table = TextTable::new(&["RESULT", "SERVICE PORT", "VIP", "EXPECTED", "OBSERVED", "SLOWEST"]);
        for ProbeResult { verdict, service, address, expected, observed, slowest_us, .. } in &self.results {
            let slowest = format!("{:.1} ms", *slowest_us as f64 / 1_000.0);
            table.row([verdict as &dyn Display, service, address, expected, observed, &slowest]);
        }

        let failed = self.results.iter().filter(|result| result.verdict == Level::Fail).count();
        let mut text = format!("{table}{failed} of {} VIPs failed\n", self.results.len());
        if self.skipped > 0 {
            text += &format!("{} VIPs were skipped, see --limit\n", self.skipped);
        }
        text
    }
}

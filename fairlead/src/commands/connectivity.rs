//! `fairlead test`: real connections from this node to everything that it serves, held against what the frontend says.
//!
//! ```text
//!   stream ─▶ NodeState ─▶ plan: addresses, what should happen ─▶ probe: connect, ask conntrack who took it ─▶ verdict ─▶ table
//! ```

mod plan;
mod probe;
#[cfg(test)]
mod tests;
mod verdict;

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    process::ExitCode,
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, stream};
use netlink::conntrack::ConntrackHandle;
use runtime::Shutdown;
use serde::Serialize;
use tokio::time::timeout;

use self::{
    plan::targets,
    probe::Prober,
    verdict::{Row, Verdict, judge},
};
use super::view::{Event, View};
use crate::{cli::TestArgs, print, table::Table};

/// How long the frontend may take for the first commit.
const PATIENCE: Duration = Duration::from_secs(10);
/// Something was not as it should be.
const NOT_WELL: u8 = 2;

/// What `-o json` prints.
#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Row>,
    /// How many addresses were left out.
    left_out: usize,
}

/// Tries everything, prints, and says by the exit code whether all was well.
pub(crate) async fn run(args: TestArgs, mut shutdown: Shutdown) -> Result<ExitCode> {
    let report = tokio::select! {
        () = shutdown.recv() => bail!("interrupted"),
        report = look(&args) => report?,
    };
    print::value(args.view.output, &report, || report.table())?;
    let failed = report.rows.iter().any(|row| row.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::from(NOT_WELL) } else { ExitCode::SUCCESS })
}

async fn look(args: &TestArgs) -> Result<Report> {
    let mut view = View::open(&args.view).await?;
    let first = async {
        loop {
            if let Event::Batch(batch) = view.next().await?
                && batch.commit
            {
                return anyhow::Ok(());
            }
        }
    };
    timeout(PATIENCE, first).await.context("the frontend has said nothing yet")??;
    let wanted = |service: &backend::ServicePortState| {
        let key = &service.port.key;
        let is = |name: &crate::cli::ServiceName| *name.namespace == *key.namespace && *name.name == *key.name;
        args.services.is_empty() || args.services.iter().any(is)
    };
    let mut targets = targets(&view.state, wanted, source_towards);
    if targets.is_empty() && !args.services.is_empty() {
        bail!("no such Service has an address that could be tried: see `fairlead services`");
    }
    let left_out = targets.len().saturating_sub(args.most.get());
    targets.truncate(args.most.get());
    let conntrack = ConntrackHandle::open().context("open connection tracking")?;
    let prober = Prober { conntrack: Mutex::new(conntrack), patience: args.timeout, http: args.http.clone() };
    let tried = stream::iter(&targets).map(async |target| {
        let seen = prober.try_out(target, args.count.get()).await;
        judge(target, &seen)
    });
    let rows = tried.buffered(args.at_once.get()).collect().await;
    Ok(Report { rows, left_out })
}

/// Which of its addresses this node takes. Nothing is sent.
fn source_towards(address: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((address, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

// === impl Report ===

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new(&["RESULT", "SERVICE PORT", "ADDRESS", "EXPECTED", "SEEN", "SLOWEST"]);
        for row in &self.rows {
            let verdict = match row.verdict {
                Verdict::Ok => "OK",
                Verdict::Warn => "WARN",
                Verdict::Fail => "FAIL",
            };
            let slowest = format!("{:.1} ms", row.slowest_us as f64 / 1_000.0);
            let (service, address) = (row.service.clone(), row.address.clone());
            table.row([verdict.to_owned(), service, address, row.expected.clone(), row.seen.clone(), slowest]);
        }
        let failed = self.rows.iter().filter(|row| row.verdict == Verdict::Fail).count();
        let mut text = format!("{table}{failed} of {} addresses are not as they should be.\n", self.rows.len());
        if self.left_out > 0 {
            text += &format!("{} more were not tried: see --most.\n", self.left_out);
        }
        text
    }
}

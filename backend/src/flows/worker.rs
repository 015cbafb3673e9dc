//! The thread that lists, deletes and resets flows.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use runtime::{
    TokenBucket,
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{debug, info};

use super::{
    half_open,
    pending::{PendingFlows, UdpState},
    requests::{Requests, Wake},
    resets::{self, Due, Rejecter, reset},
    rest::Rest,
    table::FlowTable,
    udp::{self, FamilyCleanup, UdpVips, clean_up},
};
use crate::{LINE_RATE, Progress, dataplane::NodePortAddresses, metrics::Metrics};

#[derive(Debug)]
pub(super) struct Worker<T> {
    pub(super) requests: Arc<Requests<PendingFlows>>,
    pub(super) table: T,
    pub(super) nodeport_addresses: NodePortAddresses,
    pub(super) rejecter: Rejecter,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) passes: AllPasses,
    /// Cleanups without a line of their own are logged at level DEBUG, and metrics count all.
    pub(super) lines: TokenBucket,
}

/// The passes of each kind.
#[derive(Debug)]
pub(super) struct AllPasses {
    resets: Passes,
    udp: Passes,
    half_open: Passes,
}

/// The passes of one kind.
#[derive(Debug)]
struct Passes {
    rest: Rest,
    /// When the next one may begin.
    from: Instant,
    /// The number of passes that failed since one succeeded.
    failures: u32,
    log: Repeated,
    /// The log lines when failures begin and end.
    failing: &'static str,
    working: &'static str,
}

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Resets,
    Udp,
    HalfOpen,
}

impl<T: FlowTable> Worker<T> {
    pub(super) fn run(mut self) {
        loop {
            let next = self.schedule().into_iter().filter_map(|(_, at)| at).chain(self.rejecter.until()).min();
            let wait = next.map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()));
            let wake = self.requests.wait(wait);
            remove_rules(&self.requests, &mut self.rejecter);
            if wake == Wake::Closed {
                return self.requests.ended();
            }

            let now = Instant::now();
            match self.schedule().into_iter().find(|(_, at)| at.is_some_and(|at| at <= now)) {
                Some((Pass::Resets, _)) => self.reset(),
                Some((Pass::Udp, _)) => self.clean_up_udp(),
                Some((Pass::HalfOpen, _)) => self.clean_up_half_open(),
                None => {}
            }

            let is_idle = self.schedule().iter().all(|(pass, at)| *pass == Pass::Resets || at.is_none());
            if is_idle {
                self.requests.finish();
            }
        }
    }

    /// When the next pass of each kind is due, the most urgent kind first.
    fn schedule(&self) -> [(Pass, Option<Instant>); 3] {
        let AllPasses { resets, udp, half_open } = &self.passes;
        self.requests.with(|pending| {
            let reset_at = pending.next_reset().map(|at| at.max(resets.from));
            let udp_at = pending.is_udp_due().then_some(udp.from);
            let half_open_at = pending.is_half_open_due().then_some(half_open.from);
            [(Pass::Resets, reset_at), (Pass::Udp, udp_at), (Pass::HalfOpen, half_open_at)]
        })
    }

    /// Resets connections to endpoints that are gone.
    fn reset(&mut self) {
        let begun = Instant::now();
        let result = self.reset_due();
        self.passes.resets.ended(begun.elapsed(), &result);
        if let Ok(connections @ 1..) = result {
            info!(connections, "resetting connections to endpoints that are gone");
            self.progress.send_modify(|progress| progress.flows.reset_connections += connections as u64);
        }
    }

    /// Returns how many connections no earlier pass has found.
    fn reset_due(&mut self) -> Result<usize> {
        let Self { requests, rejecter, .. } = self;
        let mut due = requests.with(|pending| pending.due_resets(Instant::now()));
        let retain_due = |due: &mut Due| {
            if requests.is_closed() {
                due.ports.clear();
            }
            requests.with(|pending| pending.retain_due(due));
        };
        reset(rejecter, &mut due, retain_due)?;
        // What was left out may be due again.
        Ok(requests.with(|pending| pending.departed.passed(&due, Instant::now())))
    }

    /// Deletes the stale UDP flows of both families.
    fn clean_up_udp(&mut self) {
        let begun = Instant::now();
        let result = self.delete_stale_udp();
        let took = begun.elapsed();
        self.passes.udp.ended(took, &result);

        let Ok(cleanups) = result else { return };
        let flows: usize = cleanups.iter().map(|cleanup| cleanup.deleted).sum();
        let took_ms = took.as_micros() as f64 / 1e3;
        let event = "deleted stale UDP flows";
        if self.has_line(flows) {
            info!(flows, took_ms, "{event}");
        } else {
            debug!(flows, took_ms, "{event}");
        }
        if flows > 0 {
            self.progress.send_modify(|progress| progress.flows.deleted_udp += flows as u64);
        }
        for FamilyCleanup { family, deleted, took } in cleanups {
            self.metrics.conntrack_cleanup(family, took, deleted);
        }
    }

    /// Without a state that is confirmed, no flow is stale. Rules that are revoked meanwhile do not wait for the end.
    fn delete_stale_udp(&mut self) -> Result<Vec<FamilyCleanup>> {
        let Self { ref requests, ref table, ref nodeport_addresses, ref mut rejecter, .. } = *self;
        let Some(withdrawn) = requests.with(PendingFlows::take_udp) else { return Ok(Vec::new()) };
        let (mut compared, mut was_unconfirmed) = (None, false);
        let newest = || {
            let newest = requests.with(|pending| {
                let version = pending.udp_version();
                was_unconfirmed |= version.is_none();
                let is_newer = version != mem::replace(&mut compared, version);
                is_newer.then(|| version.map(|_| pending.udp()))
            });
            let vips = newest?.map(|UdpState { state, except }| {
                UdpVips::of(&state, &nodeport_addresses.of_node(state.node()), &except, &withdrawn)
            });
            Some(vips.unwrap_or_default())
        };
        let result = clean_up(table, newest, || remove_rules(requests, rejecter));
        if result.is_err() || was_unconfirmed {
            requests.with(|pending| pending.put_back_udp(withdrawn));
        }
        result
    }

    /// Deletes the half-open connections that changes have left behind.
    fn clean_up_half_open(&mut self) {
        let begun = Instant::now();
        let mut rested = Duration::ZERO;
        let result = self.delete_half_open(&mut rested);
        let took = begun.elapsed().saturating_sub(rested);
        self.passes.half_open.ended(took, &result);

        let Ok(connections) = result else { return };
        let took_ms = took.as_micros() as f64 / 1e3;
        let event = "deleted half-open TCP connections to endpoints that departed or to new VIPs";
        if self.has_line(connections) {
            info!(connections, took_ms, "{event}");
        } else {
            debug!(connections, took_ms, "{event}");
        }
    }

    fn delete_half_open(&self, rested: &mut Duration) -> Result<usize> {
        let Self { requests, table, nodeport_addresses, .. } = self;
        let Some(half_open) = requests.with(PendingFlows::take_half_open) else { return Ok(0) };
        let addresses = nodeport_addresses.of_node(half_open.state.node());
        let result = half_open.clean_up(table, &addresses, |time| {
            *rested = time;
            requests.rest(time) && requests.with(|pending| pending.is_confirmed)
        });
        if result.is_err() || !requests.with(|pending| pending.is_confirmed) {
            requests.with(|pending| pending.put_back_half_open(half_open.ports));
        }
        result
    }

    /// Whether a cleanup that has deleted something gets a log line.
    fn has_line(&mut self, deleted: usize) -> bool {
        deleted > 0 && self.lines.take(LINE_RATE, tokio::time::Instant::now()).is_ok()
    }
}

// === impl AllPasses ===

impl AllPasses {
    pub(super) fn new() -> Self {
        let resets = ("cannot reset connections to endpoints that are gone", "connections can be reset again");
        let udp = ("cannot delete stale UDP flows, retrying", "stale UDP flows can be deleted again");
        let half_open =
            ("cannot delete half-open TCP connections, retrying", "half-open TCP connections can be deleted again");
        Self {
            resets: Passes::new(resets::REST, resets),
            udp: Passes::new(udp::REST, udp),
            half_open: Passes::new(half_open::REST, half_open),
        }
    }
}

// === impl Passes ===

impl Passes {
    fn new(rest: Rest, (failing, working): (&'static str, &'static str)) -> Self {
        Self { rest, from: Instant::now(), failures: 0, log: Repeated::default(), failing, working }
    }

    /// A pass has ended, after this time.
    fn ended<R>(&mut self, took: Duration, result: &Result<R>) {
        self.failures = if result.is_ok() { 0 } else { self.failures.saturating_add(1) };
        self.from = Instant::now() + self.rest.after(took, self.failures);

        let error = result.as_ref().err().map(|error| format!("{error:#}"));
        log_failure(&mut self.log, error, self.failing, self.working);
    }
}

/// Removes the rules that reject packets when their time is over, an endpoint has returned, or the thread ends.
fn remove_rules(requests: &Requests<PendingFlows>, rejecter: &mut Rejecter) {
    let revoked = requests.with(|pending| mem::take(&mut pending.departed.revoked));
    let by = (!requests.is_closed()).then(Instant::now);
    rejecter.revoke(&revoked);
    rejecter.remove(by);
}

/// Logs when failures begin and end.
pub(super) fn log_failure(failures: &mut Repeated, error: Option<String>, failing: &str, working: &str) {
    if let Some(error) = &error {
        let occurrence = failures.failed(error);
        warn_if_news!(occurrence, error, "{failing}");
    } else if let Some(Recovery { count, duration }) = failures.recovered() {
        info!(failures = count, after_ms = duration.as_millis(), "{working}");
    }
}

#[cfg(test)]
mod tests;

//! The thread that lists, deletes and resets flows.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use proto::model::PerFamily;
use runtime::{
    TokenBucket,
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{debug, info};

use super::{
    half_open,
    pending::{NewestUdp, PendingFlows, UdpState},
    requests::{Requests, Wake},
    resets::{self, Due, Rejecter, reset},
    rest::Rest,
    table::FlowTable,
    udp::{self, FamilyCleanup, UdpVips, WithdrawnVips, clean_up},
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
    /// The log lines about cleanups. Beyond its rate they are at level DEBUG; metrics count all cleanups.
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
    /// When the next pass may begin.
    from: Instant,
    /// The number of passes that failed since one succeeded.
    failures: u32,
    log: Repeated,
    /// The log lines when failures begin and end.
    failing: &'static str,
    working: &'static str,
}

/// The VIPs of UDP service ports during a pass.
struct NewestUdpVips<'a> {
    requests: &'a Requests<PendingFlows>,
    nodeport_addresses: &'a NodePortAddresses,
    withdrawn: WithdrawnVips,
    /// The version of the state that flows were last compared with.
    version: Option<u64>,
    /// Whether the state was not confirmed at any time of the pass: flows may have been missed.
    was_unconfirmed: bool,
}

/// The kinds of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Resets,
    Udp,
    HalfOpen,
}

impl<T: FlowTable> Worker<T> {
    pub(super) fn run(mut self) {
        loop {
            let wake = self.requests.wait(self.idle_time());

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

    /// The time until the next pass is due, or rules are to be removed.
    fn idle_time(&self) -> Duration {
        let passes = self.schedule().into_iter().filter_map(|(_, at)| at);
        match passes.chain(self.rejecter.until()).min() {
            Some(next) => next.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
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
        reset(rejecter, &mut due, |due| retain_due(requests, due))?;
        // Endpoints that were left out may be due again.
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

        let mut newest =
            NewestUdpVips { requests, nodeport_addresses, withdrawn, version: None, was_unconfirmed: false };
        let result = clean_up(table, || newest.changed(), || remove_rules(requests, rejecter));

        let NewestUdpVips { withdrawn, was_unconfirmed, .. } = newest;
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

// === impl NewestUdpVips ===

impl NewestUdpVips<'_> {
    /// The VIPs if they have changed since the last call. Without a confirmed state there are none.
    fn changed(&mut self) -> Option<PerFamily<UdpVips>> {
        match self.requests.with(|pending| pending.newest_udp(self.version)) {
            NewestUdp::Unchanged => None,
            NewestUdp::Unconfirmed => {
                self.version = None;
                self.was_unconfirmed = true;
                Some(PerFamily::default())
            }
            NewestUdp::Changed { version, state: UdpState { state, except } } => {
                self.version = Some(version);
                let addresses = self.nodeport_addresses.of_node(state.node());
                Some(UdpVips::of(&state, &addresses, &except, &self.withdrawn))
            }
        }
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

/// Leaves out the endpoints that are not due any more: all of them if the thread is to end.
fn retain_due(requests: &Requests<PendingFlows>, due: &mut Due) {
    if requests.is_closed() {
        due.ports.clear();
    }
    requests.with(|pending| pending.retain_due(due));
}

/// Removes the rules that reject packets when their time is over, an endpoint has returned, or the thread ends.
fn remove_rules(requests: &Requests<PendingFlows>, rejecter: &mut Rejecter) {
    let revoked = requests.with(|pending| mem::take(&mut pending.departed.revoked));
    rejecter.revoke(&revoked);

    let by = if requests.is_closed() { None } else { Some(Instant::now()) };
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

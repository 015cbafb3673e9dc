//! The thread that lists, deletes and resets flows.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use runtime::{
    Backoff, TokenBucket,
    failure::{Recovery, Repeated},
    warn_if_news,
};
use tokio::sync::watch;
use tracing::{debug, info};

use super::{
    pending::{PendingFlows, UdpState},
    requests::{Requests, Wake},
    resets::{Due, Rejecter, Rest, reset},
    table::FlowTable,
    udp::{FamilyCleanup, UdpVips, clean_up},
};
use crate::{LINES, Progress, dataplane::NodePortAddresses, metrics::Metrics};

/// The longest pause after a cleanup, which is as long as that took: half of a core at most.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The shortest and the longest delay before a cleanup that has failed is repeated, if no change leads to one before.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The thread waits for an event, at most for this time.
const IDLE: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Worker<T> {
    pub(super) requests: Arc<Requests<PendingFlows>>,
    pub(super) table: T,
    pub(super) nodeport_addresses: NodePortAddresses,
    pub(super) rejecter: Rejecter,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) cleanups: Repeated,
    pub(super) resets: Repeated,
    /// Cleanups without a line of their own are logged at level DEBUG, and metrics count all.
    pub(super) lines: TokenBucket,
}

/// How a cleanup went.
struct CleanupOutcome {
    took: Duration,
    has_failed: bool,
}

impl<T: FlowTable> Worker<T> {
    pub(super) fn run(mut self) {
        let mut retries = Backoff::new(RETRY_DELAY.0, RETRY_DELAY.1);
        let mut retry_at = None;
        let mut rest = Rest::default();
        let (mut resets_from, mut cleans_from) = (Instant::now(), Instant::now());
        let mut is_due = false;
        loop {
            let next_reset = self.requests.with(|pending| pending.next_reset()).map(|at| at.max(resets_from));
            let next_cleanup = if is_due { Some(cleans_from) } else { retry_at };
            let until = self.rejecter.until();
            let next = [next_reset, next_cleanup, until].into_iter().flatten().min();
            let wake = self.requests.wait(next.map_or(IDLE, |next| next.duration_since(Instant::now())));
            let is_retry = retry_at.take_if(|at| *at <= Instant::now()).is_some();
            is_due |= (wake == Wake::Due || is_retry) && self.requests.with(|pending| pending.is_cleanup_due());
            remove_rules(&self.requests, &mut self.rejecter);
            if wake == Wake::Closed {
                return self.requests.ended();
            }
            let now = Instant::now();
            if resets_from <= now && self.requests.with(|pending| pending.next_reset()).is_some_and(|at| at <= now) {
                let result = self.reset();
                resets_from = Instant::now() + rest.after(now.elapsed(), result.is_err());
                self.report_resets(result);
            }
            if is_due && cleans_from <= Instant::now() {
                is_due = false;
                let CleanupOutcome { took, has_failed } = self.clean_up();
                cleans_from = Instant::now() + took.min(MAX_PAUSE);
                retry_at = has_failed.then(|| Instant::now() + retries.next_delay());
                if !has_failed {
                    retries.reset();
                }
            }
            if !is_due {
                self.requests.finish();
            }
        }
    }

    /// Resets the connections to endpoints that are due. Returns how many of them no earlier pass has found.
    fn reset(&mut self) -> Result<usize> {
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

    /// Deletes stale UDP flows, then half-open connections.
    fn clean_up(&mut self) -> CleanupOutcome {
        let begun = Instant::now();
        remove_rules(&self.requests, &mut self.rejecter);
        let udp = self.clean_up_udp();
        remove_rules(&self.requests, &mut self.rejecter);
        let mut rested = Duration::ZERO;
        let half_open = self.clean_up_half_open(&mut rested);
        let took = begun.elapsed().saturating_sub(rested);
        let has_failed = udp.is_err() || half_open.is_err();
        self.report_cleanup(udp, half_open, took);
        CleanupOutcome { took, has_failed }
    }

    /// Deletes the stale flows of both families, if there may be any. Without a state that is confirmed, none is stale.
    /// Rules that are revoked meanwhile do not wait for the end.
    fn clean_up_udp(&mut self) -> Result<Vec<FamilyCleanup>> {
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

    /// Deletes the half-open connections that changes have left behind. Lists none without such a change.
    fn clean_up_half_open(&self, rested: &mut Duration) -> Result<usize> {
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

    /// Reports what each half has deleted, also if the other one has failed.
    fn report_cleanup(&mut self, cleanups: Result<Vec<FamilyCleanup>>, half_open: Result<usize>, took: Duration) {
        let errors = [cleanups.as_ref().err(), half_open.as_ref().err()].into_iter().flatten();
        let errors: Vec<_> = errors.map(|error| format!("{error:#}")).collect();
        let error = (!errors.is_empty()).then(|| errors.join("; "));
        let failing = "cannot delete stale flows, retrying";
        log_failure(&mut self.cleanups, error, failing, "stale flows can be deleted again");
        let connections = half_open.unwrap_or_default();
        let flows: usize = cleanups.iter().flatten().map(|cleanup| cleanup.deleted).sum();
        let took_ms = took.as_micros() as f64 / 1e3;
        let event = "deleted stale UDP flows, and half-open TCP connections to endpoints that departed or to new VIPs";
        if flows + connections > 0 && self.lines.take(LINES, tokio::time::Instant::now()).is_ok() {
            info!(flows, connections, took_ms, "{event}");
        } else {
            debug!(flows, connections, took_ms, "{event}");
        }
        let Ok(cleanups) = cleanups else { return };
        if flows > 0 {
            self.progress.send_modify(|progress| progress.deleted_flows += flows as u64);
        }
        for FamilyCleanup { family, deleted, took } in cleanups {
            self.metrics.conntrack_cleanup(family, took, deleted);
        }
    }

    fn report_resets(&mut self, result: Result<usize>) {
        let error = result.as_ref().err().map(|error| format!("{error:#}"));
        let failing = "cannot reset connections to endpoints that are gone";
        log_failure(&mut self.resets, error, failing, "connections can be reset again");
        if let Ok(connections @ 1..) = result {
            info!(connections, "resetting connections to endpoints that are gone");
            self.progress.send_modify(|progress| progress.reset_connections += connections as u64);
        }
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

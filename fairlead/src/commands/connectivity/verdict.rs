//! Compares the observations of a VIP with the expected result. Pure.

use std::{collections::BTreeSet, net::SocketAddr};

use serde::Serialize;

use super::{
    plan::{ProbeTarget, TestedVipKind},
    probe::{ConnectionOutcome, Observation},
};
use crate::{commands::check::Level, takeover::ConnectionVerdict};

/// With this many connections, that all of them reach the same of several endpoints has a probability below 1 %.
const ENOUGH_CONNECTIONS: usize = 8;

/// The result for one VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ProbeResult {
    pub(super) service: String,
    pub(super) vip_kind: TestedVipKind,
    pub(super) address: String,
    /// [`Level::Warn`]: unlikely, but possible.
    pub(super) verdict: Level,
    pub(super) expected: String,
    pub(super) observed: String,
    /// The slowest connection, in microseconds.
    pub(super) slowest_us: u64,
    pub(super) endpoints: BTreeSet<SocketAddr>,
}

/// The result for a VIP.
pub(super) fn judge(target: &ProbeTarget, observations: &[Observation]) -> ProbeResult {
    let endpoints: BTreeSet<_> = observations.iter().filter_map(|observation| observation.endpoint).collect();
    let expected = match &target.expected {
        ConnectionVerdict::Endpoints(pool) if pool.len() == 1 => "1 endpoint".to_owned(),
        ConnectionVerdict::Endpoints(pool) => format!("{} endpoints", pool.len()),
        ConnectionVerdict::Reject => "refused".to_owned(),
        ConnectionVerdict::Drop => "no reply".to_owned(),
    };
    let (verdict, observed) = match &target.expected {
        ConnectionVerdict::Endpoints(pool) => judge_served(target, pool, observations, &endpoints),
        ConnectionVerdict::Reject => judge_all(observations, &ConnectionOutcome::Refused),
        ConnectionVerdict::Drop => judge_all(observations, &ConnectionOutcome::NoReply),
    };

    let slowest = observations.iter().map(|observation| observation.duration).max().unwrap_or_default();
    ProbeResult {
        service: target.service.clone(),
        vip_kind: target.vip_kind,
        address: target.address.to_string(),
        verdict,
        expected,
        observed,
        slowest_us: u64::try_from(slowest.as_micros()).unwrap_or(u64::MAX),
        endpoints,
    }
}

fn judge_served(
    target: &ProbeTarget,
    pool: &BTreeSet<SocketAddr>,
    observations: &[Observation],
    endpoints: &BTreeSet<SocketAddr>,
) -> (Level, String) {
    let answered = observations.iter().filter(|observation| observation.outcome.is_success()).count();
    if answered < observations.len() || observations.is_empty() {
        return (Level::Fail, describe(observations));
    }
    if let Some(unexpected) = endpoints.iter().find(|endpoint| !pool.contains(*endpoint)) {
        return (Level::Fail, format!("{unexpected} accepted a connection, but is not in the pool"));
    }

    let reached = format!("{} of {} endpoints in {answered} connections", endpoints.len(), pool.len());
    match (endpoints.len(), target.has_affinity) {
        (0, _) => (Level::Ok, format!("{}, endpoint unknown", describe(observations))),
        (2.., true) => (Level::Fail, format!("{reached} despite client IP affinity")),
        (1, false) if pool.len() > 1 && answered >= ENOUGH_CONNECTIONS => {
            (Level::Warn, format!("always the same endpoint: {reached}"))
        }
        _ if observations.iter().any(|observation| observation.outcome == ConnectionOutcome::Sent) => {
            (Level::Ok, format!("{reached}, no reply"))
        }
        _ => (Level::Ok, reached),
    }
}

fn judge_all(observations: &[Observation], expected: &ConnectionOutcome) -> (Level, String) {
    let is_expected = observations.iter().all(|observation| observation.outcome == *expected);
    let level = if is_expected && !observations.is_empty() { Level::Ok } else { Level::Fail };
    (level, describe(observations))
}

/// Each outcome once.
fn describe(observations: &[Observation]) -> String {
    let texts: BTreeSet<_> = observations.iter().map(|observation| outcome_text(&observation.outcome)).collect();
    Vec::from_iter(texts).join(", ")
}

fn outcome_text(outcome: &ConnectionOutcome) -> &str {
    match outcome {
        ConnectionOutcome::Answered => "answered",
        ConnectionOutcome::Sent => "sent",
        ConnectionOutcome::Refused => "refused",
        ConnectionOutcome::NoReply => "no reply",
        ConnectionOutcome::Failed(error) => error,
    }
}

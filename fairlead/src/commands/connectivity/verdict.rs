//! What was seen, held against what should be: pure.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use serde::Serialize;

use super::{
    plan::{Affinity, Expected, Target},
    probe::{End, Observation},
};

/// From so many connections on, one endpoint of several is no chance any more: less than 1 in 100.
const ENOUGH: usize = 8;

/// A row of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) service: String,
    pub(super) way: super::plan::Way,
    pub(super) address: String,
    pub(super) verdict: Verdict,
    pub(super) expected: String,
    pub(super) seen: String,
    /// The slowest, in microseconds.
    pub(super) slowest_us: u64,
    pub(super) endpoints: BTreeSet<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Verdict {
    Ok,
    /// It may be chance.
    Warn,
    Fail,
}

/// Judges what was seen of a target.
pub(super) fn judge(target: &Target, seen: &[Observation]) -> Row {
    let endpoints: BTreeSet<_> = seen.iter().filter_map(|observation| observation.endpoint).collect();
    let (verdict, words) = match &target.expected {
        Expected::Endpoints(pool) => served(target, pool, seen, &endpoints),
        Expected::Refused => (is(seen, &End::Refused), ends(seen)),
        Expected::Silence => (is(seen, &End::Silence), ends(seen)),
    };
    let slowest = seen.iter().map(|observation| observation.took).max().unwrap_or_default();
    Row {
        service: target.service.clone(),
        way: target.way,
        address: target.address.to_string(),
        verdict,
        expected: match &target.expected {
            Expected::Endpoints(pool) if pool.len() == 1 => "1 endpoint".to_owned(),
            Expected::Endpoints(pool) => format!("{} endpoints", pool.len()),
            Expected::Refused => "refused".to_owned(),
            Expected::Silence => "no answer".to_owned(),
        },
        seen: words,
        slowest_us: micros(slowest),
        endpoints,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn served(
    target: &Target,
    pool: &[SocketAddr],
    seen: &[Observation],
    endpoints: &BTreeSet<SocketAddr>,
) -> (Verdict, String) {
    let good = |observation: &&Observation| matches!(observation.end, End::Answered | End::Sent);
    let answered = seen.iter().filter(good).count();
    if answered < seen.len() || seen.is_empty() {
        return (Verdict::Fail, ends(seen));
    }
    if let Some(stranger) = endpoints.iter().find(|endpoint| !pool.contains(endpoint)) {
        return (Verdict::Fail, format!("{stranger} took one, which is not in the pool"));
    }
    let met = format!("{} of {} endpoints in {answered} connections", endpoints.len(), pool.len());
    let met = match seen.iter().find_map(|observation| observation.status.as_ref()) {
        Some(status) => format!("{met}, {status}"),
        None => met,
    };
    match (endpoints.len(), target.affinity) {
        (0, _) => (Verdict::Ok, format!("{}, by whom cannot be seen", ends(seen))),
        (2.., Affinity::ClientIp) => (Verdict::Fail, format!("{met}, although this client has one")),
        (1, Affinity::None) if pool.len() > 1 && answered >= ENOUGH => {
            (Verdict::Warn, format!("always the same: {met}"))
        }
        _ if seen.iter().any(|observation| observation.end == End::Sent) => {
            (Verdict::Ok, format!("{met}, not answered"))
        }
        _ => (Verdict::Ok, met),
    }
}

fn is(seen: &[Observation], wanted: &End) -> Verdict {
    if !seen.is_empty() && seen.iter().all(|observation| observation.end == *wanted) {
        Verdict::Ok
    } else {
        Verdict::Fail
    }
}

/// Each end once.
fn ends(seen: &[Observation]) -> String {
    let words = |end: &End| match end {
        End::Answered => "answered".to_owned(),
        End::Sent => "sent".to_owned(),
        End::Refused => "refused".to_owned(),
        End::Silence => "no answer".to_owned(),
        End::Failed(error) => error.clone(),
    };
    seen.iter()
        .map(|observation| words(&observation.end))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

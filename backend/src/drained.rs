//! Whether any node of the cluster still sends new connections to a pod that ends: what all frontends know together.
//!
//! ```text
//!   GET /drained ──▶ Drains ──▶ wait ──ask──▶ every frontend ──DrainedResponse──▶ combined ──▶ 200 | 504 | 404
//!                                 ▲                                                  │
//!                                 └────────────── not yet: ask again ────────────────┘
//! ```
//!
//! A frontend speaks for the nodes that are connected to it. Their sets are added: if the sum is the set of all nodes,
//! every node has been spoken for exactly once. Nodes that no frontend speaks for may still have the pod in their
//! kernels; they delay the answer while they may be about to connect to another frontend, and no longer.

mod http;
mod metrics;
mod sources;
#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use futures::future::BoxFuture;
use proto::{
    convert::pack_address,
    node_set::NodeSet,
    v1::{DrainState, DrainedRequest, DrainedResponse},
};
use runtime::failure::chain;
use tokio::time::{Instant, sleep_until};

pub use self::http::{Drains, MAX_TIMEOUT};
#[cfg(test)]
pub(crate) use self::metrics::DrainMetrics;

/// How long frontends may take to answer: the first time, which doubles; the longest; and the shortest at the end, when
/// less time is left.
const FIRST_ROUND: Duration = Duration::from_secs(2);
const MAX_ROUND: Duration = Duration::from_secs(8);
const MIN_ROUND: Duration = Duration::from_millis(500);
/// The same for an address that may be that of a stranger, while others wait for its place.
const HURRIED_ROUND: Duration = Duration::from_millis(250);
/// The most of a round that is left for the answer to arrive, after the time that a frontend may wait; otherwise half.
const ARRIVAL: Duration = Duration::from_secs(3);
/// Between the beginnings of two rounds in which frontends do not wait: the first, which doubles, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long an address may be in no EndpointSlice: the one that names it may not have arrived yet.
const UNKNOWN: Duration = Duration::from_secs(5);
/// How long nodes and frontends of which nothing is known delay the answer.
const INCOMPLETE: Duration = Duration::from_secs(10);
/// The same for frontends that do not answer if the others speak for all nodes: the lists of these may be old.
const SILENT: Duration = Duration::from_secs(2);

/// Asks all frontends.
pub trait AskFrontends: fmt::Debug + Send + Sync + 'static {
    /// Returns the answer of each frontend, with its address. One that has not answered in this time has an error.
    fn ask(&self, request: DrainedRequest, limit: Duration) -> BoxFuture<'_, Result<Vec<FrontendAnswer>>>;
}

/// The address of a frontend, and its answer.
pub type FrontendAnswer = (String, Result<DrainedResponse>);

/// What all frontends know together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No node sends new connections to the pod, except perhaps for nodes of which no frontend knows.
    Yes {
        /// The number of these nodes.
        absent: u64,
        /// Why frontends have not answered, and which nodes are connected and make no progress.
        silent: Vec<String>,
    },
    /// The time is over, and some node may.
    No(NotDrained),
    /// No EndpointSlice has an address of the pod.
    Unknown,
}

/// Why a pod is not drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDrained {
    /// For the pod.
    pub summary: String,
    /// For the log of the node: Services, nodes and frontends.
    pub details: String,
}

impl fmt::Display for NotDrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.summary, self.details)
    }
}

impl Drained {
    /// What is said when the time is over, although the next round might say more.
    fn at_deadline(self) -> Self {
        let Self::Yes { absent, silent } = self else { return self };
        let summary = match absent {
            0 => "frontends do not answer, or nodes change their frontend".to_owned(),
            absent => format!("{absent} nodes are connected to no frontend that answers"),
        };
        Self::No(NotDrained::new(summary, &silent))
    }
}

impl NotDrained {
    fn new(summary: impl Into<String>, details: &[String]) -> Self {
        Self { summary: summary.into(), details: details.join("; ") }
    }

    fn and_then(self, last: &Self) -> Self {
        Self { details: format!("{}; then {last}", self.details), ..self }
    }
}

/// Asks until no node sends new connections to a pod any more, at most for this time. While `is_scarce`, an address
/// that no frontend has known does not wait: it may be that of a stranger, and others wait for its place.
///
/// # Errors
/// When no frontend is known, or none answers about an address that does not wait.
pub async fn wait(
    frontends: &dyn AskFrontends,
    addresses: &[IpAddr],
    patience: Duration,
    is_scarce: impl Fn() -> bool,
) -> Result<Drained> {
    let begun = Instant::now();
    let deadline = begun + patience;
    let addresses: Vec<_> = addresses.iter().map(pack_address).collect();
    let (mut incomplete_since, mut until) = (None, deadline);
    let (mut round, mut pause) = (FIRST_ROUND, PAUSE);
    let mut last_known: Option<NotDrained> = None;
    let mut is_known = false;
    loop {
        let asked = Instant::now();
        let is_hurried = !is_known && is_scarce();
        let (limit, wait) = if is_hurried {
            (HURRIED_ROUND, Duration::ZERO)
        } else {
            let limit = until.saturating_duration_since(asked).min(round).max(MIN_ROUND);
            (limit, limit - (limit / 2).min(ARRIVAL))
        };
        let wait_millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let answers = frontends.ask(DrainedRequest { addresses: addresses.clone(), wait_millis }, limit).await?;
        let (drained, mut delay) = combined(&answers);
        let answered = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let is_answered = answered().next().is_some();
        is_known |= answered().any(|answer| answer.state() != DrainState::Unknown);
        if !is_known && is_scarce() {
            ensure!(is_answered, "no frontend answers, and others wait for this place: try again");
            delay = Duration::ZERO;
        }
        let now = Instant::now();
        let since = if matches!(drained, Drained::Yes { .. }) {
            // A frontend may answer early, and another one fail later than that.
            *incomplete_since.get_or_insert(now.min(asked + Duration::from_millis(wait_millis.into())))
        } else {
            incomplete_since = None;
            begun
        };
        if now >= since + delay {
            return Ok(drained);
        }
        if now >= deadline {
            // The last round may have been too short for an answer.
            return Ok(match (last_known, drained) {
                (Some(known), Drained::No(reason)) if !is_answered => Drained::No(known.and_then(&reason)),
                (_, drained) => drained.at_deadline(),
            });
        }
        if is_answered {
            last_known = match drained {
                Drained::No(reason) => Some(reason),
                Drained::Yes { .. } | Drained::Unknown => None,
            };
        }
        until = deadline.min(since + delay);
        sleep_until(until.min(asked + pause)).await;
        (round, pause) = ((2 * round).min(MAX_ROUND), (2 * pause).min(MAX_PAUSE));
    }
}

/// What the answers of one round say, and for how long it is not the last word: the next round may say more.
fn combined(answers: &[FrontendAnswer]) -> (Drained, Duration) {
    let error = |(address, answer): &FrontendAnswer| {
        answer.as_ref().err().map(|error| format!("{address}: {}", chain(error.as_ref())))
    };
    let mut silent: Vec<_> = answers.iter().filter_map(error).collect();
    let answers: Vec<_> =
        answers.iter().filter_map(|(address, answer)| Some((address, answer.as_ref().ok()?))).collect();
    let of_state = |state| answers.iter().filter(move |(_, answer)| answer.state() == state);
    if answers.is_empty() {
        return (Drained::No(NotDrained::new("no frontend answers", &silent)), MAX_TIMEOUT);
    }
    let used: Vec<_> = of_state(DrainState::InUse).flat_map(|(_, answer)| &answer.services).cloned().collect();
    if of_state(DrainState::InUse).next().is_some() {
        return (Drained::No(NotDrained::new("may get new connections of Services", &used)), MAX_TIMEOUT);
    }
    if of_state(DrainState::Behind).next().is_some() {
        let count: u64 = of_state(DrainState::Behind).map(|(_, answer)| answer.behind_count).sum();
        let nodes: Vec<_> = of_state(DrainState::Behind).flat_map(|(_, answer)| &answer.behind).cloned().collect();
        return (Drained::No(NotDrained::new(format!("nodes that are behind ({count})"), &nodes)), MAX_TIMEOUT);
    }
    let unknown = of_state(DrainState::Unknown).map(|(address, _)| format!("{address}: does not know the address"));
    let unknown: Vec<_> = unknown.collect();
    if unknown.len() == answers.len() {
        return (Drained::Unknown, UNKNOWN);
    }
    silent.extend(unknown);
    // The node that asks is one: the API server of this frontend serves an old list.
    let is_empty = |answer: &DrainedResponse| answer.cluster.is_none_or(|cluster| cluster.count == 0);
    let empty = of_state(DrainState::Drained).filter(|(_, answer)| is_empty(answer));
    silent.extend(empty.map(|(address, _)| format!("{address}: knows no node")));
    let clusters: Vec<_> = answers.iter().filter_map(|(_, answer)| answer.cluster).collect();
    let mut programmed = NodeSet::default();
    answers.iter().filter_map(|(_, answer)| answer.programmed).for_each(|set| programmed.add(set));
    if programmed.count > 0 && !clusters.is_empty() && clusters.iter().all(|cluster| *cluster == programmed) {
        let delay = if silent.is_empty() { Duration::ZERO } else { SILENT };
        return (Drained::Yes { absent: 0, silent }, delay);
    }
    let nodes = clusters.iter().map(|cluster| cluster.count).max().unwrap_or_default();
    let has_left = answers.iter().any(|(_, answer)| answer.left > 0);
    let delay = if has_left || !silent.is_empty() { INCOMPLETE } else { Duration::ZERO };
    let stalled = |(address, answer): &(&String, &DrainedResponse)| {
        let nodes = answer.stalled.join(", ");
        (!nodes.is_empty()).then(|| format!("{address}: nodes that do not acknowledge: {nodes}"))
    };
    silent.extend(answers.iter().filter_map(stalled));
    (Drained::Yes { absent: nodes.saturating_sub(programmed.count), silent }, delay)
}

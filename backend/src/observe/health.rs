//! Whether the agent is well: what load balancers, the kubelet and rollouts ask, in kube-proxy's words.
//!
//! | path | 200 when |
//! |---|---|
//! | `/healthz` | the kernel holds a state, the agent is well, and the node is not about to go |
//! | `/livez` | the agent is well: it waits for nothing, or not for too long |
//! | `/readyz` | the kernel holds a state |
//!
//! An agent that has never heard of a frontend is not healthy and not ready, but alive: a restart would not bring the frontend back.

use std::time::{Duration, SystemTime};

use hyper::{Method, Request, Response, StatusCode};
use runtime::http::{JSON, TEXT, response};
use serde::Serialize;
use tokio::time::Instant;

use super::{Observer, rfc3339};
use crate::{Progress, metrics::Question};

/// A change that has failed, and is not in the kernel after so long: twice kube-proxy's default for its sync period.
pub(super) const FAILING: Duration = Duration::from_secs(60);
/// A change that has not failed, but does not end: the longest that programming a large cluster with the slowest backend takes.
pub(super) const STUCK: Duration = Duration::from_secs(300);
/// A loop that has nothing to do turns every ten seconds.
pub(super) const ASLEEP: Duration = Duration::from_secs(60);

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Condition {
    /// Something else than a restart may be waited for, but not for too long.
    alive: bool,
    /// The kernel holds a state.
    programmed: bool,
    /// The node may be sent new traffic.
    eligible: bool,
    last_success: Option<SystemTime>,
}

/// The body, in the words that kube-proxy uses.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: Families,
}

/// By family. They are served by the same changes, so they are in the same condition.
#[derive(Serialize)]
struct Families {
    #[serde(rename = "IPv4")]
    v4: FamilyStatus,
    #[serde(rename = "IPv6")]
    v6: FamilyStatus,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

impl Observer {
    /// Answers `/healthz`, `/livez` and `/readyz`.
    #[must_use]
    pub fn health<B>(&self, request: &Request<B>) -> Response<String> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
        }
        let condition = Condition::of(&self.progress.borrow(), Instant::now());
        match request.uri().path() {
            "/healthz" => {
                let well = condition.healthy() && condition.eligible;
                self.metrics.answered(Question::Healthz, well);
                answer(well, &condition.body(condition.healthy(), Some(condition.eligible)))
            }
            "/livez" => {
                self.metrics.answered(Question::Livez, condition.alive);
                answer(condition.alive, &condition.body(condition.alive, None))
            }
            "/readyz" if condition.programmed => response(StatusCode::OK, TEXT, "ready\n".to_owned()),
            "/readyz" => {
                let missing = "not ready: the kernel does not hold a state of this node yet\n".to_owned();
                response(StatusCode::SERVICE_UNAVAILABLE, TEXT, missing)
            }
            _ => {
                let paths = "there are /healthz, /livez and /readyz\n".to_owned();
                response(StatusCode::NOT_FOUND, TEXT, paths)
            }
        }
    }
}

impl Condition {
    fn of(progress: &Progress, now: Instant) -> Self {
        let since = |time: Option<Instant>| time.map_or(Duration::ZERO, |time| now - time);
        let waiting = since(progress.pending_since);
        let alive = match (&progress.pending_since, &progress.error) {
            (Some(_), Some(_)) => waiting < FAILING,
            (Some(_), None) => waiting < STUCK,
            // While the backend works the loop does not turn.
            (None, _) => since(progress.turned) < ASLEEP,
        };
        let Progress { eligible, last_success, .. } = *progress;
        Self { alive, programmed: progress.programmed.is_some(), eligible, last_success }
    }

    fn healthy(&self) -> bool {
        self.alive && self.programmed
    }

    fn body(&self, healthy: bool, node_eligible: Option<bool>) -> Body {
        let now = SystemTime::now();
        // While all is well what is there is right as of now.
        let last_updated = if healthy { Some(now) } else { self.last_success }.map(rfc3339).unwrap_or_default();
        let family = FamilyStatus { last_updated: last_updated.clone(), healthy };
        let status = Families { v4: family.clone(), v6: family };
        Body { last_updated, current_time: rfc3339(now), node_eligible, healthy, status }
    }
}

fn answer(well: bool, body: &Body) -> Response<String> {
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Strings and truth values are always JSON.
    response(status, JSON, serde_json::to_string(body).unwrap_or_default())
}

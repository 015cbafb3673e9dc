//! The health of a backend process, with the paths and fields of kube-proxy.
//!
//! | path | 200 when |
//! |---|---|
//! | `/healthz` | as `/readyz`, the process is alive, and the node is not about to be removed |
//! | `/livez` | the process is alive: no sync fails or hangs for too long |
//! | `/readyz` | the kernel contains a state, and VIPs of it are served if it has any |
//!
//! A backend that has never reached a frontend is neither healthy nor ready, but alive: a restart would not help.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use hyper::{Request, Response, StatusCode};
use proto::model::IpFamily;
use runtime::http::{JSON, response};
use serde::Serialize;
use tokio::time::Instant;

use super::{Observer, rfc3339, text};
use crate::{Progress, metrics::Metrics};

/// A sync that fails for this long makes the process unhealthy: twice kube-proxy's default sync period.
pub(crate) const SYNC_FAILING: Duration = Duration::from_secs(60);

/// A change that has not failed, but does not end: the longest that programming a large cluster with the slowest
/// backend takes.
pub(super) const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// A process that does not follow the frontend for this long hangs: without messages it does every ten seconds.
pub(super) const LOOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The body of an answer, with the fields of kube-proxy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthBody {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    /// One sync programs both families. A family that the kernel cannot program is not healthy; the process is, unless
    /// all VIPs are in that family.
    status: BTreeMap<&'static str, FamilyStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

impl Observer {
    /// Answers `/healthz`, `/livez` and `/readyz`, whatever the method is, as kube-proxy does: some load balancers
    /// check with OPTIONS.
    #[must_use]
    pub fn health<B>(&self, request: &Request<B>) -> Response<String> {
        let progress = self.progress.borrow();
        let is_alive = progress.is_alive();
        let is_ready = progress.is_ready();

        match request.uri().path() {
            "/healthz" => {
                let is_healthy = is_alive && is_ready;
                let is_eligible = progress.node.eligible;
                Metrics::answered(&self.metrics.healthz, is_healthy && is_eligible);
                answer(is_healthy && is_eligible, &HealthBody::of(&progress, is_healthy, Some(is_eligible)))
            }
            "/livez" => {
                Metrics::answered(&self.metrics.livez, is_alive);
                answer(is_alive, &HealthBody::of(&progress, is_alive, None))
            }
            "/readyz" if is_ready => text(StatusCode::OK, &ready(&progress)),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, &ready(&progress)),
            _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz, /livez and /readyz\n"),
        }
    }
}

impl Progress {
    /// Whether the kernel contains a state. A node on which no VIP is served is not ready either.
    fn is_ready(&self) -> bool {
        self.programmed.is_some() && !self.kernel.serves_nothing()
    }

    /// Whether no sync fails or hangs for too long.
    pub(crate) fn is_alive(&self) -> bool {
        let since = |time: Option<Instant>| time.map_or(Duration::ZERO, |time| time.elapsed());
        let pending_since = self.changes.pending_since;
        let waiting = since(pending_since);
        match (pending_since, &self.kernel.error) {
            (Some(_), Some(_)) => waiting < SYNC_FAILING,
            (Some(_), None) => waiting < SYNC_TIMEOUT,
            (None, _) => since(self.stream.last_iteration) < LOOP_TIMEOUT,
        }
    }
}

impl HealthBody {
    fn of(progress: &Progress, healthy: bool, node_eligible: Option<bool>) -> Self {
        let now = SystemTime::now();
        // The kernel of a healthy node is up to date now.
        let updated = if healthy { Some(now) } else { progress.kernel.last_success };
        let last_updated = updated.map(rfc3339).unwrap_or_default();

        let mut status = BTreeMap::new();
        for family in IpFamily::ALL {
            let healthy = healthy && progress.kernel.is_usable(family);
            status.insert(family.name(), FamilyStatus { last_updated: last_updated.clone(), healthy });
        }
        Self { last_updated, current_time: rfc3339(now), node_eligible, healthy, status }
    }
}

/// The body of `/readyz`.
fn ready(progress: &Progress) -> String {
    let answer = match progress.programmed {
        Some(_) if progress.is_ready() => "ready",
        Some(_) => "not ready: no VIP is served",
        None => "not ready: the kernel contains no state of this node yet",
    };

    let mut body = format!("{answer}\n");
    for (family, reason) in &progress.kernel.unusable_families {
        body += &format!("{family} is not programmed: {reason}\n");
    }
    body
}

fn answer(ok: bool, body: &HealthBody) -> Response<String> {
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Strings and booleans always serialize.
    response(status, JSON, serde_json::to_string(body).unwrap_or_default())
}

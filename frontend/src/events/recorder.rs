//! Counts reports, and creates and patches Events at a limited rate.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use proto::model::ServicePortFailure;
use runtime::failure::chain;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{debug, warn};

use super::{
    BackendStart, NodeReport,
    series::{CONTROLLER, EventSeries, SeriesKey},
};

/// How often Events are sent. Reports within this time are sent together.
const TICK: Duration = Duration::from_secs(1);
/// The most requests in that time.
const REQUESTS_PER_TICK: usize = 5;
/// The timeout of a request.
const DEADLINE: Duration = Duration::from_secs(5);
/// The most reasons that are counted. Further ones are dropped until others expire.
const MAX_SERIES: usize = 1024;
/// A reason without a report for this time expires. Kubernetes keeps Events for the same time by default.
const EXPIRY: Duration = Duration::from_secs(3600);
/// The most starts that wait to be sent. Further ones are dropped.
const MAX_STARTS: usize = 1024;
/// How long nothing is sent after the API server has answered 403.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(300);

/// What has been reported, and what of it has been sent.
pub(super) struct EventRecorder {
    sender: EventSender,
    series: HashMap<SeriesKey, EventSeries>,
    /// Not sent yet.
    starts: VecDeque<BackendStart>,
}

/// Sends requests to the API server, unless it has answered 403 recently.
struct EventSender {
    client: Client,
    instance: String,
    paused_until: Option<Instant>,
}

// === impl EventRecorder ===

impl EventRecorder {
    pub(super) fn new(client: Client, instance: String) -> Self {
        let sender = EventSender { client, instance, paused_until: None };
        Self { sender, series: HashMap::new(), starts: VecDeque::new() }
    }

    /// Runs until the queue is closed.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<NodeReport>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(NodeReport::Failed(node, failure)) => self.count(node, failure),
                    Some(NodeReport::Started(start)) => self.add_start(start),
                    None => return,
                },
                _ = ticks.tick() => self.send_due().await,
            }
        }
    }

    fn count(&mut self, node: Arc<str>, failure: ServicePortFailure) {
        let (now, full) = (Timestamp::now(), self.series.len() >= MAX_SERIES);
        match self.series.entry(SeriesKey::of(failure)) {
            Entry::Occupied(series) => series.into_mut().add(now),
            Entry::Vacant(new) if !full => new.insert(EventSeries::new(node, now)).add(now),
            Entry::Vacant(_) => {}
        }
    }

    fn add_start(&mut self, start: BackendStart) {
        if self.starts.len() < MAX_STARTS && !self.starts.contains(&start) {
            self.starts.push_back(start);
        }
    }

    /// Sends what is due, at most `REQUESTS_PER_TICK` requests.
    async fn send_due(&mut self) {
        if self.sender.is_paused() {
            return;
        }
        self.series.retain(|_, series| series.last_report.elapsed() < EXPIRY);
        let mut left = REQUESTS_PER_TICK;
        let due = self.series.iter_mut().filter(|(_, series)| series.is_due()).take(REQUESTS_PER_TICK);
        for (key, series) in due {
            left -= 1;
            self.sender.send(series.event(key), Some(series.patch())).await;
            // Even if it failed: it is sent with the next report, a minute later at the earliest.
            series.mark_sent();
            if self.sender.is_paused() {
                return;
            }
        }
        // Failures come first. A start that cannot be sent is dropped.
        for _ in 0..left {
            let Some(start) = self.starts.pop_front() else { return };
            self.sender.send(start.event(), None).await;
            if self.sender.is_paused() {
                self.starts.clear();
                return;
            }
        }
    }
}

// === impl EventSender ===

impl EventSender {
    fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Creates an Event. One that exists, because another replica or an earlier session has created it, is patched.
    async fn send(&mut self, mut event: Event, patch: Option<Value>) {
        event.reporting_controller = Some(CONTROLLER.to_owned());
        event.reporting_instance = Some(self.instance.clone());
        let (name, namespace) = (event.name_any(), event.namespace().unwrap_or_default());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let request = async {
            match (api.create(&PostParams::default(), &event).await, patch) {
                (Err(kube::Error::Api(status)), None) if status.code == 409 => Ok(()),
                (Err(kube::Error::Api(status)), Some(patch)) if status.code == 409 => {
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
                }
                (created, _) => created.map(drop),
            }
        };
        match timeout(DEADLINE, request).await {
            Ok(Ok(())) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                warn!(
                    error = %status.message,
                    retry_in_ms = FORBIDDEN_PAUSE.as_millis(),
                    advice = "grant create and patch on events.events.k8s.io, or give --no-events",
                    "not allowed to create events"
                );
                self.paused_until = Some(Instant::now() + FORBIDDEN_PAUSE);
            }
            Ok(Err(error)) => debug!(error = chain(&error), namespace, name, "event not sent"),
            Err(_) => debug!(namespace, name, timeout_ms = DEADLINE.as_millis(), "event not sent within its timeout"),
        }
    }
}

//! Collects reports, and creates Events at a limited rate.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Service},
        discovery::v1::EndpointSlice,
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use proto::model::ServicePortFailure;
use runtime::failure::{CountedLog, chain};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{debug, warn};

use super::{
    EventReport,
    event::{self, FailureKey, FailureReport},
};
use crate::config::API_REQUEST_TIMEOUT;

/// `reportingController`.
const CONTROLLER: &str = "fairlead.io/frontend";
/// How often Events are sent. Reports within this time are sent together.
const SEND_INTERVAL: Duration = Duration::from_secs(1);
/// The most Events that are sent in one interval, each with up to two requests, to spare the API server.
const EVENTS_PER_INTERVAL: usize = 5;
/// How long the UID of the object of an Event is waited for, as a part of [`API_REQUEST_TIMEOUT`]: without an answer
/// the Event is sent without it.
const UID_TIMEOUT: Duration = Duration::from_secs(1);
/// The most failures that are remembered. Further ones are dropped until others expire.
const MAX_FAILURES: usize = 1024;
/// A failure gets no other Event for this time. Kubernetes keeps Events for the same time by default.
const FAILURE_RETENTION: Duration = Duration::from_secs(3600);
/// The delay before the Event of a failure is sent again after an attempt that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The most Events about nodes that wait to be sent, and the most about problems of objects. Further Events are
/// dropped.
const MAX_WAITING: usize = 1024;
/// The most waiting Events about problems of objects in one namespace, so that its tenant leaves room to others.
const MAX_OF_NAMESPACE: usize = 64;
/// The most failures of one namespace that are remembered, so that its tenant leaves room to others.
const MAX_FAILURES_OF_NAMESPACE: usize = 256;
/// The most failures that are remembered of one node, which was the first to report them, and the most new failures of
/// an Ack that are looked up.
pub(crate) const MAX_FAILURES_OF_NODE: usize = 512;
/// The most Events of an interval that are about failures, which come again and again, so that others get room.
const FAILURES_PER_INTERVAL: usize = 3;
/// How long nothing is sent to a namespace after the API server has answered 403 there: the namespace terminates, or
/// the permission is missing.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(300);

/// What has been reported, and what of it has been sent.
pub(super) struct EventRecorder {
    sender: EventSender,
    /// The failures that were first reported within [`FAILURE_RETENTION`].
    failures: HashMap<FailureKey, FailureReport>,
    /// Starts of backends, and what does not work on nodes, not sent yet.
    of_nodes: VecDeque<Event>,
    /// Problems of objects, not sent yet.
    of_objects: VecDeque<Event>,
}

/// Sends requests to the API server.
struct EventSender {
    client: Client,
    instance: String,
    /// The namespaces to which nothing is sent, because the API server has answered 403 recently, and until when.
    paused: HashMap<String, Instant>,
    pauses: CountedLog<()>,
}

/// What became of an Event.
enum SendOutcome {
    /// It exists, or another attempt would not help.
    Done,
    /// Another attempt may help.
    Retry,
}

impl EventRecorder {
    pub(super) fn new(client: Client, instance: String) -> Self {
        let sender = EventSender { client, instance, paused: HashMap::new(), pauses: CountedLog::default() };
        Self { sender, failures: HashMap::new(), of_nodes: VecDeque::new(), of_objects: VecDeque::new() }
    }

    /// Runs until the queue is closed.
    pub(super) async fn run(mut self, mut reports: mpsc::Receiver<EventReport>) {
        let mut ticks = interval(SEND_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(report) => self.add(report),
                    None => return,
                },
                _ = ticks.tick() => self.send_due().await,
            }
        }
    }

    fn add(&mut self, report: EventReport) {
        match report {
            EventReport::Failed(node, failure) => add_failure(&mut self.failures, node, failure),
            EventReport::Started(start) => add(&mut self.of_nodes, start.event(), MAX_WAITING),
            EventReport::Degraded(node, text) => {
                add(&mut self.of_nodes, event::of_degraded(node, text, Timestamp::now()), MAX_WAITING);
            }
            EventReport::Problem(notice) => {
                if let Some(event) = event::of_problems(&notice, Timestamp::now()) {
                    add(&mut self.of_objects, event, MAX_OF_NAMESPACE);
                }
            }
        }
    }

    /// Sends the Events that are due, at most [`EVENTS_PER_INTERVAL`]. Those of failures come first, but leave room for
    /// Events about nodes and objects.
    async fn send_due(&mut self) {
        self.failures.retain(|_, report| report.at.elapsed() < FAILURE_RETENTION);
        let sent = self.send_failures().await;
        self.send_waiting(EVENTS_PER_INTERVAL - sent).await;
    }

    /// Sends the Events of failures, and returns how many. An Event that cannot be sent is sent again later.
    async fn send_failures(&mut self) -> usize {
        let now = Instant::now();
        let is_due = |report: &FailureReport| report.send_at.is_some_and(|at| at <= now);
        let mut sent = 0;
        for (key, report) in self.failures.iter_mut().filter(|(_, report)| is_due(report)) {
            if sent == FAILURES_PER_INTERVAL {
                break;
            }
            if self.sender.is_paused(&key.port.namespace) {
                continue;
            }
            sent += 1;
            report.send_at = match self.sender.send(report.event(key)).await {
                SendOutcome::Done => None,
                SendOutcome::Retry => Some(now + RETRY_INTERVAL),
            };
        }
        sent
    }

    /// Sends Events about nodes and about objects by turns. An Event that cannot be sent is dropped.
    async fn send_waiting(&mut self, mut left: usize) {
        let mut next = &mut self.of_nodes;
        let mut other = &mut self.of_objects;
        while left > 0
            && let Some(event) = next.pop_front().or_else(|| other.pop_front())
        {
            mem::swap(&mut next, &mut other);
            if !self.sender.is_paused(event.metadata.namespace.as_deref().unwrap_or_default()) {
                left -= 1;
                self.sender.send(event).await;
            }
        }
    }
}

/// Adds an Event to the waiting ones if there is room, or in place of an Event with the same name.
fn add(waiting: &mut VecDeque<Event>, event: Event, max_of_namespace: usize) {
    let ObjectMeta { name, namespace, .. } = &event.metadata;
    let is_same = |other: &&mut Event| (&other.metadata.name, &other.metadata.namespace) == (name, namespace);
    if let Some(other) = waiting.iter_mut().find(is_same) {
        *other = event;
        return;
    }

    let of_namespace = waiting.iter().filter(|other| other.metadata.namespace == *namespace).count();
    if waiting.len() < MAX_WAITING && of_namespace < max_of_namespace {
        waiting.push_back(event);
    }
}

/// Adds the first report of a failure, if there is room.
pub(super) fn add_failure(
    failures: &mut HashMap<FailureKey, FailureReport>,
    node: Arc<str>,
    failure: ServicePortFailure,
) {
    let key = FailureKey::of(failure);
    if failures.contains_key(&key) {
        return;
    }

    let of_namespace = failures.keys().filter(|other| other.port.namespace == key.port.namespace).count();
    let of_node = failures.values().filter(|report| report.node == node).count();
    let has_room = of_namespace < MAX_FAILURES_OF_NAMESPACE && of_node < MAX_FAILURES_OF_NODE;
    if failures.len() < MAX_FAILURES && has_room {
        failures.insert(key, FailureReport::now(node));
    }
}

impl EventSender {
    fn is_paused(&self, namespace: &str) -> bool {
        self.paused.get(namespace).is_some_and(|until| Instant::now() < *until)
    }

    /// Begins a pause of a namespace. Returns how many have begun since the last line, if one is due.
    fn pause(&mut self, namespace: String) -> Option<u64> {
        let now = Instant::now();
        self.paused.retain(|_, until| now < *until);
        // There are few: one for each attempt within that time, whose rate is limited.
        self.paused.insert(namespace, now + FORBIDDEN_PAUSE);
        self.pauses.record(())
    }

    /// Creates an Event, unless it exists: another replica or an earlier session may have created it.
    async fn send(&mut self, mut event: Event) -> SendOutcome {
        event.reporting_controller = Some(CONTROLLER.to_owned());
        event.reporting_instance = Some(self.instance.clone());
        let name = event.name_any();
        let namespace = event.namespace().unwrap_or_default();

        match timeout(API_REQUEST_TIMEOUT, self.create(event, &namespace)).await {
            Ok(Ok(())) => SendOutcome::Done,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => SendOutcome::Done,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                if let Some(namespaces) = self.pause(namespace.clone()) {
                    warn!(
                        error = %status.message,
                        namespace,
                        namespaces,
                        retry_in_ms = FORBIDDEN_PAUSE.as_millis(),
                        advice = "grant create on events.events.k8s.io, or give --no-events",
                        "not allowed to create events in a namespace"
                    );
                }
                SendOutcome::Retry
            }
            Ok(Err(error)) => {
                debug!(error = chain(&error), namespace, name, "event not sent");
                match error {
                    // The namespace may be gone.
                    kube::Error::Api(status) if status.code < 500 && status.code != 429 => SendOutcome::Done,
                    _ => SendOutcome::Retry,
                }
            }
            Err(_) => {
                let timeout_ms = API_REQUEST_TIMEOUT.as_millis();
                debug!(namespace, name, timeout_ms, "event not sent within its timeout");
                SendOutcome::Retry
            }
        }
    }

    /// Creates an Event, with the UID of its object if the API server answers in time.
    async fn create(&self, mut event: Event, namespace: &str) -> kube::Result<()> {
        if let Some(object) = event.regarding.as_ref().filter(|object| object.uid.is_none())
            && let Ok(Some(uid)) = timeout(UID_TIMEOUT, uid(self.client.clone(), object)).await
        {
            event::add_uid(&mut event, uid);
        }

        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &event).await?;
        Ok(())
    }
}

/// The UID of a Service or EndpointSlice, without which `kubectl describe` does not show an Event on it. It is listed,
/// which the frontend may do anyway. `None` if the object is gone or the request fails: the Event is sent without it.
async fn uid(client: Client, object: &ObjectReference) -> Option<String> {
    let resource = if object.kind.as_deref() == Some("EndpointSlice") {
        ApiResource::erase::<EndpointSlice>(&())
    } else {
        ApiResource::erase::<Service>(&())
    };
    let name = object.name.as_deref()?;
    let namespace = object.namespace.as_deref()?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    let selection = ListParams::default().match_any().fields(&format!("metadata.name={name}"));
    match api.list_metadata(&selection).await {
        Ok(found) => found.items.into_iter().next()?.metadata.uid,
        Err(error) => {
            debug!(error = chain(&error), namespace, name, "uid of an object not read");
            None
        }
    }
}

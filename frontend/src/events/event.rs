//! The content of Events. Each is the same from each replica that sees the reason. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use proto::model::{FailureKind, Hello, Role, ServicePortFailure, ServicePortKey};
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use crate::{
    index::ObjectNotice,
    object::{ObjectKind, ObjectName},
};

/// The namespace of Events of cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";
/// The most bytes of the note; Kubernetes accepts 1024.
const MAX_NOTE_BYTES: usize = 1000;
/// The most bytes of the reason of a failure, as a part of the note.
const MAX_REASON_BYTES: usize = 512;
/// The most characters of an object's name in that of the Event, which may have 253 bytes with the hash.
const MAX_NAME_CHARS: usize = 230;
/// Runs that began earlier get no Event: the backend has only reconnected. Shorter than Kubernetes keeps Events, so
/// that an existing one is found; longer than a backend may need to find a frontend, and than clocks differ.
const MAX_START_AGE: Duration = Duration::from_secs(600);

/// The start of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendStart {
    /// Node `metadata.name`.
    pub(crate) node: Arc<str>,
    /// When it started, by the clock of its node.
    pub(crate) at: SystemTime,
    /// Name and version.
    pub(crate) backend: String,
}

/// What does not work, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FailureKey {
    pub(super) port: ServicePortKey,
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

/// The first report of a failure.
#[derive(Debug)]
pub(super) struct FailureReport {
    time: Timestamp,
    pub(super) at: Instant,
    pub(super) node: Arc<str>,
    /// When to send its Event; `None`: it is sent.
    pub(super) send_at: Option<Instant>,
}

/// What differs between Events.
struct EventParts {
    /// The object that it is on.
    kind: ObjectKind,
    name: ObjectName,
    /// The Event is named `OBJECT.HASH`, with the hash of this text and of the UID of the object, if it has one: it
    /// exists once, whichever replica creates it.
    identity: String,
    time: Timestamp,
    r#type: &'static str,
    reason: &'static str,
    action: &'static str,
    note: String,
}

impl BackendStart {
    /// `None` if the Hello is not from a backend, or has no recent start time.
    pub(crate) fn of(hello: &Hello) -> Option<Self> {
        let Hello { node, role, backend, backend_version, started, .. } = hello;
        // A time in the future, of a clock that is ahead, counts as now.
        let is_recent = |at: &SystemTime| at.elapsed().unwrap_or_default() < MAX_START_AGE;
        let at = started.filter(is_recent)?;
        if *role != Role::Backend {
            return None;
        }
        Some(Self { node: node.clone(), at, backend: format!("{backend} {backend_version}") })
    }

    /// The Event to create, like that of kube-proxy: the same for each session of the run, with any replica.
    pub(super) fn event(&self) -> Event {
        let Self { node, at, backend } = self;
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        event(EventParts {
            kind: ObjectKind::Node,
            name: ObjectName::new("", node.clone()),
            identity: format!("{node}\n{micros}"),
            // The client may send any time; one out of range is replaced.
            time: Timestamp::try_from(*at).unwrap_or_else(|_| Timestamp::now()),
            r#type: "Normal",
            reason: "Starting",
            action: "Start",
            note: format!("Starting fairlead backend {backend}"),
        })
    }
}

/// The Event on a Node on which something does not work. A Node has one at most, so that a backend cannot create any
/// number of Events.
pub(super) fn of_degraded(node: Arc<str>, text: String, time: Timestamp) -> Event {
    event(EventParts {
        kind: ObjectKind::Node,
        identity: format!("{node}\ndegraded"),
        name: ObjectName::new("", node),
        time,
        r#type: "Warning",
        reason: "Degraded",
        action: "Program",
        note: text,
    })
}

impl FailureKey {
    pub(super) fn of(failure: ServicePortFailure) -> Self {
        let ServicePortFailure { key: port, mut reason, kind, retryable: _ } = failure;
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        Self { port, reason, kind }
    }
}

impl FailureReport {
    pub(super) fn now(node: Arc<str>) -> Self {
        let now = Instant::now();
        Self { time: Timestamp::now(), at: now, node, send_at: Some(now) }
    }

    /// The Event on the Service: the same for all nodes, with any replica.
    pub(super) fn event(&self, FailureKey { port, reason: why, kind }: &FailureKey) -> Event {
        let node = &self.node;
        let (reason, action, note) = match kind {
            FailureKind::Program => {
                let note = format!("{port} is not programmed, first on node {node}: {why}");
                ("FailedToProgram", "Program", note)
            }
            FailureKind::HealthCheck => {
                // The reason is that of kube-proxy. A health check belongs to the Service, not to one of its ports.
                let note = format!("{}/{}, first on node {node}: {why}", port.namespace, port.name);
                ("FailedToStartServiceHealthcheck", "StartServiceHealthcheck", note)
            }
        };
        event(EventParts {
            kind: ObjectKind::Service,
            name: ObjectName::new(port.namespace.clone(), port.name.clone()),
            identity: format!("{port}\n{why}"),
            time: self.time,
            r#type: "Warning",
            reason,
            action,
            note,
        })
    }
}

/// The Event on a Service or EndpointSlice of which parts are not used. One with the same object, reason and text
/// exists once. `None` if all are used, and for other kinds of objects.
pub(super) fn of_problems(notice: &ObjectNotice, time: Timestamp) -> Option<Event> {
    let ObjectNotice { kind, ref name, ref problems, count, reason, .. } = *notice;
    if !matches!(kind, ObjectKind::Service | ObjectKind::EndpointSlice) || problems.is_empty() {
        return None;
    }
    let described = notice.describe();
    let note = if count > problems.len() { format!("{count} problems: {described}") } else { described };
    Some(event(EventParts {
        kind,
        name: name.clone(),
        identity: format!("{kind} {name}\n{reason}\n{note}"),
        time,
        r#type: "Warning",
        reason,
        action: "Serve",
        note,
    }))
}

/// The Event with these parts.
fn event(parts: EventParts) -> Event {
    let EventParts { kind, name: ObjectName { namespace, name }, identity, time, r#type, reason, action, note } = parts;
    let object: String = name.chars().take(MAX_NAME_CHARS).collect();
    let api_version = if kind == ObjectKind::EndpointSlice { "discovery.k8s.io/v1" } else { "v1" };
    // The UID of a Node is its name, as for the kubelet: `kubectl describe node` shows both.
    let uid = if kind == ObjectKind::Node { Some(name.to_string()) } else { None };
    let (own_namespace, events_namespace) = match &*namespace {
        "" => (None, CLUSTER_NAMESPACE.to_owned()),
        namespace => (Some(namespace.to_owned()), namespace.to_owned()),
    };

    Event {
        metadata: ObjectMeta {
            name: Some(named(object.trim_end_matches(['.', '-']), &identity)),
            namespace: Some(events_namespace),
            ..Default::default()
        },
        event_time: Some(MicroTime(time)),
        type_: Some(r#type.to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(note[..note.floor_char_boundary(MAX_NOTE_BYTES)].to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_string()),
            namespace: own_namespace,
            name: Some(name.to_string()),
            uid,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The name of an Event on an object.
fn named(object: &str, identity: &str) -> String {
    let hash = digest(&SHA256, identity.as_bytes());
    let hash: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{object}.{hash}")
}

/// Adds the UID of the object to the identity: an object that is created again has Events of its own.
pub(super) fn add_uid(event: &mut Event, uid: String) {
    if let Some(name) = &mut event.metadata.name {
        let object = name.rsplit_once('.').map_or("", |(object, _)| object);
        *name = named(object, &format!("{name}\n{uid}"));
    }
    if let Some(object) = &mut event.regarding {
        object.uid = Some(uid);
    }
}

//! What all Events have in common, and those on an object of which parts are not used, and on a Node: when its backend
//! starts, and when something does not work there. Each is the same from each replica that sees the reason. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use proto::model::{Hello, Role};
use ring::digest::{SHA256, digest};

use crate::{
    index::ObjectNotice,
    object::{ObjectKind, ObjectName},
};

/// The namespace of Events of cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "default";
/// The most bytes of the note; Kubernetes accepts 1024.
const MAX_NOTE_BYTES: usize = 1000;
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

/// In what Events differ.
pub(super) struct EventParts {
    /// The object that it is on.
    pub(super) kind: ObjectKind,
    pub(super) name: ObjectName,
    /// The Event is named `OBJECT.HASH`, with the hash of this and of the UID of the object, if it has one: it exists
    /// once, whichever replica creates it.
    pub(super) identity: String,
    pub(super) time: Timestamp,
    pub(super) r#type: &'static str,
    pub(super) reason: &'static str,
    pub(super) action: &'static str,
    pub(super) note: String,
}

impl From<EventParts> for Event {
    fn from(parts: EventParts) -> Self {
        let EventParts { kind, name: ObjectName { namespace, name }, identity, time, r#type, reason, action, note } =
            parts;
        let namespace = Some(namespace.to_string()).filter(|namespace| !namespace.is_empty());
        let object: String = name.chars().take(MAX_NAME_CHARS).collect();
        Self {
            metadata: ObjectMeta {
                name: Some(named(object.trim_end_matches(['.', '-']), &identity)),
                namespace: Some(namespace.clone().unwrap_or_else(|| CLUSTER_NAMESPACE.to_owned())),
                ..Default::default()
            },
            event_time: Some(MicroTime(time)),
            type_: Some(r#type.to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            note: Some(note[..note.floor_char_boundary(MAX_NOTE_BYTES)].to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(
                    if kind == ObjectKind::EndpointSlice { "discovery.k8s.io/v1" } else { "v1" }.to_owned(),
                ),
                kind: Some(kind.to_string()),
                namespace,
                name: Some(name.to_string()),
                // Of a Node the name in place of the UID, as the kubelet does: `kubectl describe node` shows both.
                uid: (kind == ObjectKind::Node).then(|| name.to_string()),
                ..Default::default()
            }),
            ..Default::default()
        }
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

impl BackendStart {
    /// `None` if the Hello is not from a backend, or has no recent start time.
    pub(crate) fn of(hello: &Hello) -> Option<Self> {
        let Hello { node, role, backend, backend_version, started, .. } = hello;
        // A time in the future, of a clock that is ahead, counts as now.
        let is_recent = |at: &SystemTime| at.elapsed().unwrap_or_default() < MAX_START_AGE;
        let at = started.filter(is_recent).filter(|_| *role == Role::Backend)?;
        let backend = format!("{backend} {backend_version}");
        Some(Self { node: node.clone(), at, backend })
    }

    /// The Event to create, like that of kube-proxy: the same for each session of the run, with any replica.
    pub(super) fn event(&self) -> Event {
        let Self { node, at, backend } = self;
        let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        EventParts {
            kind: ObjectKind::Node,
            name: ObjectName::new("", node.clone()),
            identity: format!("{node}\n{micros}"),
            // The client may send any time; one out of range is replaced.
            time: Timestamp::try_from(*at).unwrap_or_else(|_| Timestamp::now()),
            r#type: "Normal",
            reason: "Starting",
            action: "Start",
            note: format!("Starting fairlead backend {backend}"),
        }
        .into()
    }
}

/// The Event on a Node on which something does not work: one for each, so that a node cannot create any number of them.
pub(super) fn of_degraded(node: Arc<str>, text: String, time: Timestamp) -> Event {
    EventParts {
        kind: ObjectKind::Node,
        identity: format!("{node}\ndegraded"),
        name: ObjectName::new("", node),
        time,
        r#type: "Warning",
        reason: "Degraded",
        action: "Program",
        note: text,
    }
    .into()
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
    let parts = EventParts {
        kind,
        name: name.clone(),
        identity: format!("{kind} {name}\n{reason}\n{note}"),
        time,
        r#type: "Warning",
        reason,
        action: "Serve",
        note,
    };
    Some(parts.into())
}

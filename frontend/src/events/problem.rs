//! The Event on a Service or EndpointSlice of which parts are not used: the same from each replica. Pure.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};

use super::series::hash;
use crate::{
    index::{ObjectNotice, ProblemCause},
    object::ObjectKind,
};

/// The most bytes of the note; Kubernetes accepts 1024.
const NOTE_BYTES: usize = 1000;
/// The most characters of an object's name in that of the Event, which may have 253 bytes with the hash.
const NAME_CHARS: usize = 230;

/// The Event to create. One with the same object, reason and first field exists once.
pub(super) fn event(notice: &ObjectNotice, now: Timestamp) -> Event {
    let ObjectNotice { kind, name, problems, count, cause, .. } = notice;
    let reason = match cause {
        ProblemCause::Limit => "LimitExceeded",
        ProblemCause::Conflict => "VIPConflict",
        ProblemCause::Invalid => "InvalidField",
    };
    let field = problems.first().map_or("", |problem| &problem.field);
    let hash = hash(&format!("{kind} {name}\n{reason}\n{field}"));
    let object: String = name.name.chars().take(NAME_CHARS).collect();
    let mut note = notice.describe();
    if *count > problems.len() {
        note = format!("{count} problems: {note}");
    }
    note.truncate((0..=NOTE_BYTES).rev().find(|end| note.is_char_boundary(*end)).unwrap_or_default());
    let namespace = Some(name.namespace.to_string());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{hash}", object.trim_end_matches(['.', '-']))),
            namespace: namespace.clone(),
            ..Default::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        action: Some("Serve".to_owned()),
        note: Some(note),
        regarding: Some(ObjectReference {
            api_version: Some(if *kind == ObjectKind::Service { "v1" } else { "discovery.k8s.io/v1" }.to_owned()),
            kind: Some(kind.to_string()),
            namespace,
            name: Some(name.name.to_string()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

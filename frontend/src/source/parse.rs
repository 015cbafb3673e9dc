//! Parses and validates Kubernetes objects. Pure: invalid fields are reported as values, never as errors.

mod address;
mod node;
mod service;
mod service_cidr;
mod slice;

use std::{num::NonZeroU16, time::SystemTime};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use proto::model::{Protocol, SourceVersion};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    config::MAX_CLOCK_DIFFERENCE,
    excerpt::MAX_EXCERPT_CHARS,
    object::{ClusterObject, ObjectKind, ObjectName, ObjectProblem, Origin, ParsedObject},
};

/// A Kubernetes type that a source can deliver.
pub(super) trait Resource: DeserializeOwned + Serialize {
    const KIND: ObjectKind;

    /// Its usable fields; `None` if it is not for Fairlead, or not usable at all.
    fn parse(&self, name: ObjectName, problems: &mut FieldProblems) -> Option<ClusterObject>;
}

/// How many invalid fields of an object are described. The others are counted.
const MAX_DESCRIBED: usize = 64;

/// Collects the invalid fields of an object.
#[derive(Debug, Default)]
pub(super) struct FieldProblems {
    described: Vec<ObjectProblem>,
    more: usize,
}

impl FieldProblems {
    /// `message` has the value of the field at `path`, what is wrong with it, and what is used instead.
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.described.len() < MAX_DESCRIBED {
            self.described.push(ObjectProblem { field: shortened(path.into()), message: shortened(message.into()) });
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<ObjectProblem> {
        if self.more > 0 {
            let message = format!("{} more invalid fields, ignored", self.more);
            self.described.push(ObjectProblem { field: "more".to_owned(), message });
        }
        self.described
    }

    /// The value of the field at `path`. An error becomes a problem of the field, which is ignored.
    fn ignored<T>(&mut self, path: impl Into<String>, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|error| self.add(path, format!("{}; ignored", error.to_string()))).ok()
    }

    /// The valid entries of the list at `path`. Invalid entries become problems.
    fn valid<T>(
        &mut self,
        path: &str,
        list: Option<&Vec<String>>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let texts = items(list).iter().enumerate();
        texts.filter_map(|(n, text)| self.ignored(format!("{path}[{n}]"), parse(text))).collect()
    }
}

/// A text without its middle, if it is long: the end says what is done about the value at the start.
fn shortened(text: String) -> String {
    const END: usize = 64;
    let chars = text.chars().count();
    if chars <= MAX_EXCERPT_CHARS {
        return text;
    }

    let start = text.chars().take(MAX_EXCERPT_CHARS - END - 1);
    start.chain(['…']).chain(text.chars().skip(chars - END)).collect()
}

// === From the types of Kubernetes, and from JSON ===

/// Parses an object.
pub(super) fn from_resource<R: Resource>(resource: &R, metadata: &ObjectMeta) -> ParsedObject {
    let name = name(metadata);
    let mut problems = FieldProblems::default();
    let object = resource.parse(name.clone(), &mut problems);
    let origin = origin(metadata, SystemTime::now());
    ParsedObject { kind: R::KIND, name, object, problems: problems.finish(), origin }
}

/// Parses an object from JSON. One that does not decode is unusable, with a problem that names the field.
pub(super) fn from_json<R: Resource>(json: &Value) -> ParsedObject {
    let metadata = ObjectMeta::deserialize(&json["metadata"]).unwrap_or_else(|_| ObjectMeta {
        resource_version: Some(json_version(json).to_owned()),
        ..ObjectMeta::default()
    });
    let error = match serde_path_to_error::deserialize::<_, R>(json) {
        Ok(resource) => return from_resource(&resource, &metadata),
        Err(error) => error,
    };

    let mut problems = FieldProblems::default();
    problems.add(error.path().to_string(), format!("{}; the whole object is ignored", error.inner()));
    let origin = origin(&metadata, SystemTime::now());
    ParsedObject { kind: R::KIND, name: json_name(json), object: None, problems: problems.finish(), origin }
}

/// The version of an object, and the manager that wrote it last, as the object says. Entries with a time in the future
/// do not count, because their writer would remain the last manager for long.
fn origin(metadata: &ObjectMeta, now: SystemTime) -> Origin {
    let version = metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or_default();

    let time = |entry: &&ManagedFieldsEntry| entry.time.as_ref().map(|time| SystemTime::from(time.0));
    let latest = Some(now + MAX_CLOCK_DIFFERENCE);
    let newest = items(metadata.managed_fields.as_ref()).iter().filter(|entry| time(entry) <= latest).max_by_key(time);
    // The API server allows 128 characters.
    let manager = newest.and_then(|entry| entry.manager.as_deref()).map(Into::into);
    Origin { version: SourceVersion(version), manager }
}

/// The name of an object; empty if absent.
pub(super) fn name(metadata: &ObjectMeta) -> ObjectName {
    let ObjectMeta { namespace, name, .. } = metadata;
    ObjectName::new(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
}

/// The name in the JSON of an object; empty if absent.
pub(super) fn json_name(json: &Value) -> ObjectName {
    let field = |field| json["metadata"][field].as_str().unwrap_or_default();
    ObjectName::new(field("namespace"), field("name"))
}

/// The version in the JSON of an object; empty if absent.
pub(super) fn json_version(json: &Value) -> &str {
    json["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

// === Shared by all kinds ===

fn has_label(metadata: &ObjectMeta, label: &str) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label))
}

fn created(metadata: &ObjectMeta) -> Option<SystemTime> {
    metadata.creation_timestamp.as_ref().map(|time| SystemTime::from(time.0))
}

/// The value of a label; empty if absent.
fn label<'a>(metadata: &'a ObjectMeta, label: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|labels| labels.get(label)).map_or("", String::as_str)
}

/// An absent list is empty.
fn items<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map_or(&[], Vec::as_slice)
}

/// Without duplicates.
fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<_> = items.into_iter().collect();
    items.sort_unstable();
    items.dedup();
    items
}

fn port_number(number: i32) -> Result<NonZeroU16, String> {
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| format!("{number}: not a port number (1 to 65535)"))
}

/// Absent and zero mean no port, as for the API server.
fn optional_port_number(number: Option<i32>) -> Result<Option<NonZeroU16>, String> {
    match number {
        None | Some(0) => Ok(None),
        Some(number) => port_number(number).map(Some),
    }
}

/// `protocol` of a port, which the API server defaults to TCP.
fn protocol(name: Option<&str>) -> Result<Protocol, String> {
    name.map_or(Ok(Protocol::Tcp), str::parse)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn newest_manager_is_the_origin() {
        let entry = |manager: &str, time: &str| json!({ "manager": manager, "time": time });
        let now = SystemTime::from("2026-01-02T00:00:00Z".parse::<Timestamp>().unwrap());
        let of = |json: &Value| origin(&serde_json::from_value(json["metadata"].clone()).unwrap(), now);
        let later = [entry("later", "2026-01-02T00:01:01Z"), entry("much later", "2999-01-01T00:00:00Z")];
        let fields =
            json!([entry("old", "2026-01-01T00:00:00Z"), entry("new", "2026-01-02T00:00:00Z"), {}, later[0], later[1]]);
        let metadata = json!({ "resourceVersion": "812", "managedFields": fields });
        let expected = Origin { version: SourceVersion(812), manager: Some("new".into()) };
        assert_eq!(of(&json!({ "metadata": metadata })), expected);
        let opaque = json!({ "metadata": { "resourceVersion": "x", "managedFields": [{ "manager": "m" }] } });
        assert_eq!(of(&opaque).manager.as_deref(), Some("m"));
        assert_eq!(of(&json!({ "metadata": {} })), Origin::default());
    }
}

//! Parses and validates Kubernetes objects. Pure: invalid fields are reported as values, never as errors.

mod address;
mod node;
mod service;
mod service_cidr;
mod slice;

use std::num::NonZeroU16;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::object::{ClusterObject, ObjectKind, ObjectName, ObjectProblem, ParsedObject};

/// A Kubernetes type that a source can deliver.
pub(super) trait Resource: DeserializeOwned {
    /// Its kind.
    const KIND: ObjectKind;

    /// Its `metadata`.
    fn metadata(&self) -> &ObjectMeta;

    /// Its usable fields; `None` if it is not for Fairlead, or not usable at all.
    fn parse(&self, problems: &mut FieldProblems) -> Option<ClusterObject>;
}

/// Collects the invalid fields of an object.
#[derive(Debug, Default)]
pub(super) struct FieldProblems(Vec<ObjectProblem>);

// === impl FieldProblems ===

impl FieldProblems {
    /// `message` has the value of the field at `path`, what is wrong with it, and what is used instead.
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(ObjectProblem { field: path.into(), message: message.into() });
    }

    /// The value; an error becomes a problem of the field at `path`, which is ignored.
    fn ignored<T>(&mut self, path: impl Into<String>, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|error| self.add(path, format!("{}; ignored", error.to_string()))).ok()
    }
}

// === From resources ===

/// Parses a decoded object.
pub(super) fn from_resource<R: Resource>(resource: &R) -> ParsedObject {
    let mut problems = FieldProblems::default();
    let object = resource.parse(&mut problems);
    ParsedObject { kind: R::KIND, name: object_name(resource.metadata()), object, problems: problems.0 }
}

/// Parses an object from JSON. One that does not decode is unusable, with a problem that names the field.
pub(super) fn from_json<R: Resource>(json: &Value) -> ParsedObject {
    serde_path_to_error::deserialize(json).map_or_else(
        |error| ParsedObject {
            kind: R::KIND,
            name: json_name(json),
            object: None,
            problems: vec![ObjectProblem {
                field: error.path().to_string(),
                message: format!("{}; the whole object is ignored", error.inner()),
            }],
        },
        |resource: R| from_resource(&resource),
    )
}

/// The name in the JSON of an object; empty if absent.
pub(super) fn json_name(json: &Value) -> ObjectName {
    ObjectName::new(metadata_field(json, "namespace"), metadata_field(json, "name"))
}

fn metadata_field<'a>(json: &'a Value, field: &str) -> &'a str {
    json["metadata"][field].as_str().unwrap_or_default()
}

fn object_name(metadata: &ObjectMeta) -> ObjectName {
    ObjectName::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

// === Shared by all kinds ===

fn has_label(metadata: &ObjectMeta, label: &str) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label))
}

/// The value of a label; empty if absent.
fn label<'a>(metadata: &'a ObjectMeta, label: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|labels| labels.get(label)).map_or("", String::as_str)
}

/// An absent list is empty.
fn items<T>(list: Option<&Vec<T>>) -> &[T] {
    list.map_or(&[], Vec::as_slice)
}

fn port_number(number: i32) -> Result<NonZeroU16, String> {
    u16::try_from(number)
        .ok()
        .and_then(NonZeroU16::new)
        .ok_or_else(|| format!("{number}: not a port number (1 to 65535)"))
}

/// Absent and zero mean no port, as for the API server.
fn optional_port_number(number: Option<i32>) -> Result<Option<NonZeroU16>, String> {
    match number {
        None | Some(0) => Ok(None),
        Some(number) => port_number(number).map(Some),
    }
}

/// `protocol` of a port, which the API server defaults to TCP.
fn protocol(name: Option<&str>) -> Result<proto::model::Protocol, proto::model::ParseProtocolError> {
    name.map_or(Ok(proto::model::Protocol::Tcp), str::parse)
}

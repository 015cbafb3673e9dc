//! Parses the text of a manifest file into its objects.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ffi::OsStr,
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::super::parse;
use crate::object::{ObjectId, ObjectKind, ObjectProblem, ParsedObject};

/// How many unknown fields of an object are reported.
const MAX_UNKNOWN_FIELDS: usize = 16;

/// The namespace of objects without one, as for `kubectl`.
const DEFAULT_NAMESPACE: &str = "default";

/// The format of a file, by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestFormat {
    /// `.yaml`, `.yml`
    Yaml,
    /// `.json`: a sequence of values.
    Json,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileContents {
    /// The objects of the supported kinds.
    pub(super) objects: BTreeMap<ObjectId, ParsedObject>,
    /// Documents that are not used, each with its position in the file and the reason.
    pub(super) problems: Vec<String>,
}

/// The objects in the text of a file.
#[cfg(feature = "testing")]
pub(crate) fn parse_text(text: &str, format: ManifestFormat) -> Result<Vec<ParsedObject>, String> {
    FileContents::read(text, format).map(|contents| contents.objects.into_values().collect())
}

/// The objects in documents, and which documents are not used, and why: also those that are ignored as a whole.
pub(crate) fn parse_documents(documents: Vec<Value>) -> (Vec<ParsedObject>, Vec<String>) {
    let numbered = documents.into_iter().zip(1..).map(|(document, number)| (format!("document {number}"), document));
    let FileContents { objects, problems: mut ignored } = FileContents::of(numbered);

    let mut used = Vec::with_capacity(objects.len());
    for parsed in objects.into_values() {
        let is_ignored = parsed.object.is_none() && !parsed.problems.is_empty();
        if is_ignored {
            ignored.push(describe_problems(&parsed));
        }
        // The API server would reject such a Service. A slice of no Service it accepts: the one before is gone then.
        if !is_ignored || parsed.kind == ObjectKind::EndpointSlice {
            used.push(parsed);
        }
    }
    (used, ignored)
}

fn describe_problems(ParsedObject { kind, name, problems, .. }: &ParsedObject) -> String {
    let fields: Vec<_> = problems.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
    format!("{kind} {name}: {}", fields.join(", "))
}

impl ManifestFormat {
    /// The format of a file by its name; `None` if it is no manifest. Editors use names with a leading dot for files of
    /// their own.
    pub(super) fn of(name: &OsStr) -> Option<Self> {
        let (stem, extension) = name.to_str()?.rsplit_once('.')?;
        match extension {
            _ if stem.is_empty() || stem.starts_with('.') => None,
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

impl FileContents {
    /// Parses all documents of a file. Fails if it cannot be split into documents.
    pub(super) fn read(text: &str, format: ManifestFormat) -> Result<Self, String> {
        let text = text.trim_start_matches('\u{feff}');
        let documents = match format {
            ManifestFormat::Yaml => yaml_documents(text)?,
            ManifestFormat::Json => json_documents(text)?,
        };
        Ok(Self::of(documents))
    }

    /// Parses documents, each with its position.
    pub(super) fn of(documents: impl IntoIterator<Item = (String, Value)>) -> Self {
        let mut contents = Self::default();
        for (position, document) in documents {
            contents.add(&position, document);
        }
        contents
    }

    fn add(&mut self, position: &str, mut document: Value) {
        let (Some(version), Some(kind)) = (string(&document, "apiVersion"), string(&document, "kind")) else {
            self.add_problem(position, "apiVersion or kind is missing; ignored");
            return;
        };

        match (version, kind) {
            ("v1", "Service") => self.add_object::<Service>(position, document),
            ("v1", "Node") => self.add_object::<Node>(position, document),
            ("discovery.k8s.io/v1", "EndpointSlice") => {
                default_port_names(&mut document);
                self.add_object::<EndpointSlice>(position, document);
            }
            ("networking.k8s.io/v1", "ServiceCIDR") => self.add_object::<ServiceCIDR>(position, document),
            ("v1", "List") => self.add_items(position, document["items"].take()),
            _ => self.add_problem(position, &format!("{kind} of {version} is not supported; ignored")),
        }
    }

    fn add_items(&mut self, position: &str, items: Value) {
        let Value::Array(items) = items else {
            self.add_problem(position, "the list has no items; ignored");
            return;
        };
        for (item, number) in items.into_iter().zip(1..) {
            self.add(&format!("{position}, item {number}"), item);
        }
    }

    fn add_object<R: parse::Resource>(&mut self, position: &str, mut document: Value) {
        let metadata = &document["metadata"];
        if is_empty(&metadata["name"]) {
            self.add_problem(position, "metadata.name is missing; ignored");
            return;
        }
        if !metadata["name"].is_string() {
            self.add_problem(position, "metadata.name is not a string; ignored");
            return;
        }

        let is_namespaced = matches!(R::KIND, ObjectKind::Service | ObjectKind::EndpointSlice);
        // A namespace that is not a string is a problem of the object.
        if is_namespaced && is_empty(&metadata["namespace"]) {
            document["metadata"]["namespace"] = DEFAULT_NAMESPACE.into();
        }

        let mut parsed = parse::from_json::<R>(&document);
        parsed.problems.extend(unknown_fields::<R>(&document));
        let ParsedObject { kind, name, .. } = &parsed;
        if is_without_cluster_ip(&document, *kind) {
            let message =
                format!("Service {name} has no spec.clusterIP, and Fairlead does not allocate one; not programmed");
            self.add_problem(position, &message);
        }

        match self.objects.entry((parsed.kind, parsed.name.clone())) {
            Entry::Vacant(entry) => drop(entry.insert(parsed)),
            Entry::Occupied(_) => {
                let ParsedObject { kind, name, .. } = parsed;
                let message = format!("{kind} {name} is in an earlier document, which is used instead");
                self.add_problem(position, &message);
            }
        }
    }

    fn add_problem(&mut self, position: &str, reason: &str) {
        self.problems.push(format!("{position}: {reason}"));
    }
}

// === Documents ===

/// Each non-empty document, with its position for messages. No limit on the size of a file, which the operator chooses.
/// The limits on the expansion of aliases stay.
fn yaml_documents(text: &str) -> Result<Vec<(String, Value)>, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
    };
    let documents = serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options);
    let documents = documents.map_err(|error| error.to_string())?.into_iter().zip(1..);
    Ok(documents.map(|(document, number)| (yaml_position(&document, number), document.value)).collect())
}

fn yaml_position(document: &Spanned<Value>, number: usize) -> String {
    format!("document {number} (line {})", document.defined.line())
}

fn json_documents(text: &str) -> Result<Vec<(String, Value)>, String> {
    let mut documents = Vec::new();
    for (document, number) in serde_json::Deserializer::from_str(text).into_iter().zip(1..) {
        documents.push((format!("document {number}"), document.map_err(|error| error.to_string())?));
    }
    Ok(documents)
}

// === Fields ===

/// The first fields that an object does not have any more after it was decoded and encoded again. A misspelled field
/// would otherwise have no effect, and no message; the API server warns of it, too.
fn unknown_fields<R: parse::Resource>(given: &Value) -> Vec<ObjectProblem> {
    let Ok(Ok(used)) = serde_json::from_value::<R>(given.clone()).map(serde_json::to_value) else { return Vec::new() };
    let mut paths = Vec::new();
    collect_unknown("", given, &used, &mut paths);

    let message = "is not a field of this kind of object; ignored";
    let first = paths.into_iter().take(MAX_UNKNOWN_FIELDS);
    first.map(|field| ObjectProblem { field, message: message.to_owned() }).collect()
}

fn collect_unknown(path: &str, given: &Value, used: &Value, unknown: &mut Vec<String>) {
    match (given, used) {
        (Value::Object(given), Value::Object(used)) => {
            for (name, value) in given {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match used.get(name) {
                    Some(used) => collect_unknown(&path, value, used, unknown),
                    // A field without a value is not encoded.
                    None if value.is_null() => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(used)) => {
            for (at, (given, used)) in given.iter().zip(used).enumerate() {
                collect_unknown(&format!("{path}[{at}]"), given, used, unknown);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value == ""
}

fn string<'a>(document: &'a Value, field: &str) -> Option<&'a str> {
    document[field].as_str().filter(|value| !value.is_empty())
}

/// Whether a Service should have a cluster IP but does not. In a cluster the API server would have allocated one.
fn is_without_cluster_ip(document: &Value, kind: ObjectKind) -> bool {
    let spec = &document["spec"];
    kind == ObjectKind::Service
        && spec["type"] != "ExternalName"
        && string(spec, "clusterIP").is_none()
        && spec["clusterIPs"].as_array().is_none_or(Vec::is_empty)
}

/// The API server defaults the name of a port to "".
fn default_port_names(slice: &mut Value) {
    for port in slice["ports"].as_array_mut().into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.entry("name").or_insert_with(|| "".into());
        }
    }
}

#[cfg(test)]
mod tests;

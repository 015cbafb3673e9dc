//! The text of one manifest file to the objects in it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use serde_json::Value;
use serde_saphyr::Spanned;
use tracing::debug;

use super::super::parse;
use crate::object::{ObjectKind, ObjectName, ParsedObject};

/// What `kubectl` uses where an object names no namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// The only version of each kind that is read.
const SLICE_API_VERSION: &str = "discovery.k8s.io/v1";
const CORE_API_VERSION: &str = "v1";
const SERVICE_CIDR_API_VERSION: &str = "networking.k8s.io/v1";

/// Kinds of core/v1 that may lie beside ours. Endpoints is not among them: whoever writes one expects it to be read.
const OTHER_CORE_KINDS: &[&str] = &[
    "ConfigMap",
    "Event",
    "LimitRange",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "ResourceQuota",
    "Secret",
    "ServiceAccount",
];

/// API groups of Kubernetes itself without a dot; those with one end in [`OTHER_GROUPS_SUFFIX`].
const OTHER_GROUPS: &[&str] = &["apps", "autoscaling", "batch", "extensions", "policy"];
const OTHER_GROUPS_SUFFIX: &str = ".k8s.io";

/// Identifies an object among all of a directory.
pub(super) type Key = (ObjectKind, ObjectName);

/// How a file is written, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `.yaml`, `.yml`
    Yaml,
    /// `.json`: one value after the other.
    Json,
}

/// What is in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The objects of our kinds.
    pub(super) objects: BTreeMap<Key, ParsedObject>,
    /// Documents that could not be used, each with its place in the file and the reason.
    pub(super) complaints: Vec<String>,
}

// === impl Format ===

impl Format {
    /// The format of the file with this name; `None` if it is no manifest. Editors keep their own files under a leading dot.
    pub(super) fn of(name: &str) -> Option<Self> {
        let (stem, extension) = name.rsplit_once('.')?;
        match extension {
            _ if stem.is_empty() || stem.starts_with('.') => None,
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

// === impl Contents ===

impl Contents {
    /// Reads all documents of a file. Fails if they cannot even be told apart.
    pub(super) fn read(text: &str, format: Format) -> Result<Self, String> {
        let mut contents = Self::default();
        for (place, document) in documents(text, format)? {
            contents.add(&place, document);
        }
        Ok(contents)
    }

    fn add(&mut self, place: &str, mut document: Value) {
        let (Some(version), Some(kind)) = (string(&document, "apiVersion"), string(&document, "kind")) else {
            self.complain(place, "apiVersion or kind is missing");
            return;
        };
        match (version, kind) {
            (CORE_API_VERSION, "Service") => self.add_object(place, document, parse::from_json::<Service>),
            (CORE_API_VERSION, "Node") => self.add_object(place, document, parse::from_json::<Node>),
            (SLICE_API_VERSION, "EndpointSlice") => {
                default_port_names(&mut document);
                self.add_object(place, document, parse::from_json::<EndpointSlice>);
            }
            (SERVICE_CIDR_API_VERSION, "ServiceCIDR") => {
                self.add_object(place, document, parse::from_json::<ServiceCIDR>);
            }
            (CORE_API_VERSION, "List" | "ServiceList" | "NodeList")
            | (SLICE_API_VERSION, "EndpointSliceList")
            | (SERVICE_CIDR_API_VERSION, "ServiceCIDRList") => {
                let item = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
                self.add_items(place, version.to_owned(), item.map(str::to_owned), document["items"].take());
            }
            (_, "Service" | "Node" | "EndpointSlice" | "Endpoints" | "ServiceCIDR") | (CORE_API_VERSION, _)
                if is_builtin_group(version) && !OTHER_CORE_KINDS.contains(&kind) =>
            {
                self.complain(place, &format!("{kind} of {version} is not read"));
            }
            _ if is_builtin_group(version) => {
                debug!(kind, api_version = version, "of no use here, passed over")
            }
            _ => self.complain(place, &format!("{kind} of {version} is not known")),
        }
    }

    /// The items of a typed list need not repeat `apiVersion` and `kind`.
    fn add_items(&mut self, place: &str, version: String, kind: Option<String>, items: Value) {
        let Value::Array(items) = items else {
            self.complain(place, "items of the list are missing");
            return;
        };
        for (n, mut item) in items.into_iter().enumerate() {
            if let (Some(kind), Some(fields)) = (&kind, item.as_object_mut()) {
                fields.entry("apiVersion").or_insert_with(|| version.clone().into());
                fields.entry("kind").or_insert_with(|| kind.clone().into());
            }
            self.add(&format!("{place}, item {}", n + 1), item);
        }
    }

    fn add_object(&mut self, place: &str, mut document: Value, parse: fn(&Value) -> ParsedObject) {
        if document["metadata"]["name"].as_str().is_none_or(str::is_empty) {
            self.complain(place, "metadata.name is missing");
            return;
        }
        let mut parsed = parse(&document);
        if parsed.kind.is_namespaced() && parsed.name.namespace.is_empty() {
            document["metadata"]["namespace"] = DEFAULT_NAMESPACE.into();
            parsed = parse(&document);
        }
        if is_without_cluster_ip(&document, parsed.kind) {
            let what = format!("Service {} has no spec.clusterIP", parsed.name);
            self.complain(place, &format!("{what}, and nobody here allocates one; it is not programmed"));
        }
        match self.objects.entry((parsed.kind, parsed.name.clone())) {
            Entry::Vacant(entry) => drop(entry.insert(parsed)),
            Entry::Occupied(_) => {
                let what = format!("{} {}", parsed.kind, parsed.name);
                self.complain(place, &format!("{what} is in an earlier document, which is used"));
            }
        }
    }

    fn complain(&mut self, place: &str, reason: &str) {
        self.complaints.push(format!("{place}: {reason}"));
    }
}

// === Documents ===

/// Each document that is not empty, with its place for people.
fn documents(text: &str, format: Format) -> Result<Vec<(String, Value)>, String> {
    let text = text.trim_start_matches('\u{feff}');
    match format {
        Format::Yaml => yaml_documents(text),
        Format::Json => json_documents(text),
    }
}

/// A file may be as large as whoever runs this likes; what protects against a few lines that expand without end stays.
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
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())?;
    let number = |(n, document): (usize, Spanned<Value>)| {
        (format!("document {} (line {})", n + 1, document.defined.line()), document.value)
    };
    Ok(documents.into_iter().enumerate().map(number).collect())
}

fn json_documents(text: &str) -> Result<Vec<(String, Value)>, String> {
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let number = |(n, document): (usize, _)| Ok((format!("document {}", n + 1), document?));
    documents.enumerate().map(number).collect::<Result<_, serde_json::Error>>().map_err(|error| error.to_string())
}

fn string<'a>(document: &'a Value, field: &str) -> Option<&'a str> {
    document[field].as_str().filter(|value| !value.is_empty())
}

fn is_builtin_group(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => api_version == CORE_API_VERSION,
        Some((group, _)) => OTHER_GROUPS.contains(&group) || group.ends_with(OTHER_GROUPS_SUFFIX),
    }
}

/// Neither headless nor ExternalName by intent: in a cluster the API server would have filled it in.
fn is_without_cluster_ip(document: &Value, kind: ObjectKind) -> bool {
    let spec = &document["spec"];
    kind == ObjectKind::Service
        && spec["type"] != "ExternalName"
        && string(spec, "clusterIP").is_none()
        && spec["clusterIPs"].as_array().is_none_or(Vec::is_empty)
}

/// The API server names a port without a name "".
fn default_port_names(slice: &mut Value) {
    for port in slice["ports"].as_array_mut().into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.entry("name").or_insert_with(|| "".into());
        }
    }
}

#[cfg(test)]
mod tests;

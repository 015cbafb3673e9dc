//! Decodes responses: pages of a list and events of a watch.
//!
//! ```text
//!   body ──without_managed_fields──▶ JSON ──▶ the text of each object ──▶ its Kubernetes type ──▶ ParsedObject
//!                                                        └── is none ──▶ any JSON ──▶ unusable, with its problem
//! ```
//!
//! The Kubernetes type of an object is dropped before the next object is decoded, so that little memory is needed.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use memchr::memmem;
use serde::{Deserialize, de::Error as _};
use serde_json::{Error, value::RawValue};

use super::{super::parse, request::RequestError, versions::ObjectVersions};
use crate::object::{ObjectName, ParsedObject};

/// Marks the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A kind that is watched, and the objects of it that are selected.
pub(super) trait Watchable: parse::Resource + kube::Resource<DynamicType = ()> + Send + Sync {
    const LABEL_SELECTOR: Option<&'static str> = None;
    const FIELD_SELECTOR: Option<&'static str> = None;
    /// Whether the cluster or its RBAC rules may be older than the kind: without it, there is no such object. Of any
    /// other kind, something is misconfigured, and no backend can be served.
    const OPTIONAL: bool = false;
    /// The first version of Kubernetes that serves it by default; `None` for the core group.
    const SINCE: Option<&'static str> = None;
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page {
    /// Its objects, each with its `resourceVersion`.
    pub(super) objects: Vec<(ParsedObject, String)>,
    /// The `resourceVersion` of the list.
    pub(super) version: String,
    /// The `continue` token of the next page; `None` after the last one.
    pub(super) next: Option<String>,
}

/// One event of a watch, or of a streaming list.
#[derive(Debug)]
pub(super) struct WatchEvent {
    /// The `resourceVersion` that the watch has reached with it.
    pub(super) version: String,
    pub(super) change: EventChange,
}

/// What an event reports.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived, and a box would cost an allocation for each object")]
pub(super) enum EventChange {
    /// An object appeared or changed.
    Put(ParsedObject),
    /// An object was deleted, perhaps one that was never delivered.
    Delete(ObjectName),
    /// All changes up to this version have been sent.
    Bookmark,
    /// The same, and the initial events of a streaming list are complete.
    InitialEventsEnd,
}

/// A list in its wire form.
#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(default)]
    kind: String,
    metadata: ListMeta,
    // Required, or else `{}` would be an empty list; but `null` is one.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    items: Option<Vec<&'a RawValue>>,
}

/// An event of a watch in its wire form.
#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// An object of any kind.
#[derive(Deserialize)]
struct AnyObject {
    #[serde(default)]
    metadata: AnyMetadata,
}

/// What is read of an object of any kind. The rest is skipped, because who may write an object may have written it: the
/// time of a manager, for example, that no parser knows, which must not keep all others of its kind from the nodes.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AnyMetadata {
    namespace: String,
    name: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

impl Watchable for Service {
    const FIELD_SELECTOR: Option<&'static str> = Some("spec.clusterIP!=None");
}

impl Watchable for EndpointSlice {
    const LABEL_SELECTOR: Option<&'static str> = Some("!service.kubernetes.io/headless");
    const SINCE: Option<&'static str> = Some("1.21");
}

impl Watchable for Node {}

/// Reading it is a permission of its own (`networking.k8s.io`, `servicecidrs`: list, watch).
impl Watchable for ServiceCIDR {
    const OPTIONAL: bool = true;
    const SINCE: Option<&'static str> = Some("1.33");
}

impl Page {
    /// Decodes a response. One that is not a list of `K` is an error, even if it is empty and successful.
    pub(super) fn decode<K: Watchable>(body: &[u8]) -> Result<Self, Error> {
        let body = without_managed_fields(body);
        let page: RawPage<'_> = serde_json::from_slice(&body)?;
        let expected = format!("{}List", K::kind(&()));
        if page.kind != expected {
            return Err(Error::custom(format!("{} instead of {expected}", page.kind)));
        }

        let items = page.items.unwrap_or_default();
        let objects = items.into_iter().map(decode_object::<K>).collect::<Result<_, _>>()?;
        let ListMeta { resource_version, continue_, .. } = page.metadata;
        let version = resource_version.filter(|version| !version.is_empty());
        Ok(Self {
            objects,
            version: version.ok_or_else(|| Error::custom("list without metadata.resourceVersion"))?,
            next: continue_.filter(|token| !token.is_empty()),
        })
    }
}

/// Decodes a page of a list of `PartialObjectMetadata`: adds the versions of its objects, and returns the `continue`
/// token of the next page.
pub(super) fn decode_metadata(body: &[u8], versions: &mut ObjectVersions) -> Result<Option<String>, Error> {
    let body = without_managed_fields(body);
    let page: RawPage<'_> = serde_json::from_slice(&body)?;
    for object in page.items.unwrap_or_default() {
        let AnyObject { metadata } = serde_json::from_str(object.get())?;
        versions.set(&ObjectName::new(&*metadata.namespace, &*metadata.name), &metadata.resource_version);
    }
    Ok(page.metadata.continue_.filter(|token| !token.is_empty()))
}

impl WatchEvent {
    /// Decodes a line of a watch. An ERROR event is an error.
    pub(super) fn decode<K: Watchable>(line: &[u8]) -> Result<Self, RequestError> {
        let line = without_managed_fields(line);
        let RawEvent { kind, object } = serde_json::from_slice(&line)?;

        let (change, version) = match kind.as_str() {
            "ADDED" | "MODIFIED" => {
                let (parsed, version) = decode_object::<K>(object)?;
                (EventChange::Put(parsed), version)
            }
            "DELETED" => {
                let AnyObject { metadata } = serde_json::from_str(object.get())?;
                let name = ObjectName::new(&*metadata.namespace, &*metadata.name);
                (EventChange::Delete(valid_name(name)?), metadata.resource_version)
            }
            "BOOKMARK" => {
                let AnyObject { metadata } = serde_json::from_str(object.get())?;
                (bookmark(&metadata), metadata.resource_version)
            }
            "ERROR" => return Err(RequestError::Refused(serde_json::from_str(object.get())?, None)),
            other => return Err(Error::custom(format!("event of type {other:?}")).into()),
        };

        if version.is_empty() {
            return Err(Error::custom("event without metadata.resourceVersion").into());
        }
        Ok(Self { version, change })
    }
}

/// Decodes an object, and returns its version, which is empty if absent. An object that is no `K` is unusable, and not
/// an error, so that the other objects on its page are read.
fn decode_object<K: Watchable>(object: &RawValue) -> Result<(ParsedObject, String), Error> {
    let (parsed, version) = match serde_json::from_str::<K>(object.get()) {
        Ok(resource) => {
            let metadata = resource.meta();
            (parse::from_resource(&resource, metadata), metadata.resource_version.clone().unwrap_or_default())
        }
        Err(_) => {
            let json = serde_json::from_str(object.get())?;
            (parse::from_json::<K>(&json), parse::json_version(&json).to_owned())
        }
    };
    valid_name(parsed.name.clone())?;
    Ok((parsed, version))
}

fn valid_name(name: ObjectName) -> Result<ObjectName, Error> {
    if name.name.is_empty() {
        return Err(Error::custom("object without metadata.name"));
    }
    Ok(name)
}

fn bookmark(metadata: &AnyMetadata) -> EventChange {
    let annotation = metadata.annotations.get(INITIAL_EVENTS_END);
    if annotation.is_some_and(|value| value == "true") { EventChange::InitialEventsEnd } else { EventChange::Bookmark }
}

// === Managed fields ===

/// The field of `metadata.managedFields` that names all fields of a manager.
const MANAGED_FIELDS: &[u8] = b"\"fieldsV1\"";

/// JSON without the fields `fieldsV1`, which are often half of an object. Who may write an object may put any JSON
/// there, also some that serde_json rejects: deeper than 128 levels, invalid UTF-8, numbers that are too large. One
/// such object must not keep all others of its kind from the nodes. All other fields are written by the API server by
/// their types.
fn without_managed_fields(json: &[u8]) -> Cow<'_, [u8]> {
    let mut kept = Vec::new();
    let mut rest = json;
    let finder = memmem::Finder::new(MANAGED_FIELDS);
    let mut searched = 0;
    while let Some(at) = finder.find(&rest[searched..]).map(|at| searched + at) {
        let after_name = at + MANAGED_FIELDS.len();
        let value = rest[after_name..].trim_ascii_start().strip_prefix(b":");
        let is_within_string = rest[..at].ends_with(b"\\");
        let Some(value) = value.filter(|_| !is_within_string) else {
            searched = after_name;
            continue;
        };

        if kept.is_empty() {
            kept.reserve_exact(json.len());
        }
        kept.extend_from_slice(rest[..at].trim_ascii_end());
        let value = value.trim_ascii_start();
        rest = value[value_length(value)..].trim_ascii_start();
        searched = 0;

        // A comma goes with the field: the one before it, or that after a first field.
        if kept.last() == Some(&b',') {
            kept.pop();
        } else {
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
    }

    if kept.is_empty() {
        return Cow::Borrowed(json);
    }
    kept.extend_from_slice(rest);
    Cow::Owned(kept)
}

/// The length of the JSON value at the start of a text: it ends where no object, array or string is open any more.
fn value_length(json: &[u8]) -> usize {
    let mut open = 0_usize;
    let mut is_string = false;
    let mut bytes = json.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if is_string => {
                bytes.next();
            }
            b'"' => {
                is_string = !is_string;
                if !is_string && open == 0 {
                    return at + 1;
                }
            }
            _ if is_string => {}
            b'{' | b'[' => open += 1,
            b'}' | b']' if open > 1 => open -= 1,
            b'}' | b']' if open == 1 => return at + 1,
            b'}' | b']' | b',' if open == 0 => return at,
            _ => {}
        }
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a Node, up to the fields of its only manager.
    const NODE: &str = r#"{"metadata": {"name": "n1", "resourceVersion": "7", "managedFields":
        [{"manager": "helm", "time": "2020-01-01T00:00:00Z", "fieldsV1": "#;
    /// The start of a list, up to its first object.
    const LIST: &str = r#"{"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": ["#;

    fn joined(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn managed_fields_are_cut_out() {
        let cases = [
            (r#"{"a": 1, "fieldsV1": {"b": ["}", 2]}, "c": 3}"#, r#"{"a": 1, "c": 3}"#),
            (r#"{"fieldsV1": "x\"}", "c": 3}"#, r#"{"c": 3}"#),
            (r#"{"a": 1, "fieldsV1" : 7 }"#, r#"{"a": 1}"#),
            (r#"{"fieldsV1":[[]]}"#, "{}"),
            (r#"[{"fieldsV1":{}},{"a":1,"fieldsV1":null}]"#, r#"[{},{"a":1}]"#),
            (r#"{"a": "fieldsV1", "b": "\"fieldsV1\": 1"}"#, r#"{"a": "fieldsV1", "b": "\"fieldsV1\": 1"}"#),
            (r#"{"fieldsType": "FieldsV1"}"#, r#"{"fieldsType": "FieldsV1"}"#),
        ];
        for (json, expected) in cases {
            let cut = without_managed_fields(json.as_bytes());
            let value = |json: &[u8]| serde_json::from_slice::<serde_json::Value>(json).unwrap();
            assert_eq!(value(&cut), value(expected.as_bytes()), "{json}");
        }

        // What is cut off does not matter: it does not decode anyway.
        for text in [r#"{"fieldsV1""#, r#"{"fieldsV1":"#, r#"{"fieldsV1":{"a"#, r#"{"fieldsV1":"a\"#] {
            without_managed_fields(text.as_bytes());
        }
    }

    #[test]
    fn managed_fields_may_have_any_json() {
        let deep = "{\"f:a\":".repeat(200) + "{}" + &"}".repeat(200);
        let cases: [&[u8]; 6] = [b"{}", b"null", deep.as_bytes(), b"1e999", br#""\ud800""#, b"\"\xff\""];
        for fields in cases {
            let node = joined(&[NODE.as_bytes(), fields, b"}]}}"]);
            let text = String::from_utf8_lossy(&node);
            let check = |parsed: &ParsedObject| {
                assert!(parsed.object.is_some() && parsed.problems.is_empty(), "{text}: {:?}", parsed.problems);
                assert_eq!(parsed.origin.manager.as_deref(), Some("helm"), "{text}");
            };

            let added = joined(&[br#"{"type": "ADDED", "object": "#, &node, b"}"]);
            let event = WatchEvent::decode::<Node>(&added).unwrap();
            assert_eq!(event.version, "7");
            let EventChange::Put(parsed) = &event.change else { panic!("{event:?}") };
            check(parsed);

            let deleted = joined(&[br#"{"type": "DELETED", "object": "#, &node, b"}"]);
            let event = WatchEvent::decode::<Node>(&deleted).unwrap();
            let EventChange::Delete(name) = &event.change else { panic!("{event:?}") };
            assert_eq!(*name, ObjectName::new("", "n1"));

            let list = joined(&[LIST.as_bytes(), &node, b"]}"]);
            let page = Page::decode::<Node>(&list).unwrap();
            let [(parsed, version)] = &page.objects[..] else { panic!("{page:?}") };
            check(parsed);
            assert_eq!(version, "7");
            decode_metadata(&list, &mut ObjectVersions::default()).unwrap();
        }
    }

    /// The API server keeps what a client has written there.
    #[test]
    fn invalid_times_of_managers_spoil_their_object_only() {
        for time in ["9999-12-31T23:59:59Z", "yesterday"] {
            let node = NODE.replace("2020-01-01T00:00:00Z", time) + "{}}]}}";
            let of_type = |kind: &str| format!(r#"{{"type": "{kind}", "object": {node}}}"#);

            let event = WatchEvent::decode::<Node>(of_type("ADDED").as_bytes()).unwrap();
            let EventChange::Put(parsed) = &event.change else { panic!("{event:?}") };
            assert_eq!((&*parsed.name.name, &*event.version, parsed.origin.version.0), ("n1", "7", 7));
            assert!(parsed.object.is_none() && parsed.problems[0].field.contains("time"), "{:?}", parsed.problems);

            let event = WatchEvent::decode::<Node>(of_type("DELETED").as_bytes()).unwrap();
            let EventChange::Delete(name) = &event.change else { panic!("{event:?}") };
            assert_eq!((&*name.name, &*event.version), ("n1", "7"));

            let list = format!("{LIST}{node}]}}");
            assert_eq!(Page::decode::<Node>(list.as_bytes()).unwrap().objects.len(), 1);
            decode_metadata(list.as_bytes(), &mut ObjectVersions::default()).unwrap();
        }
    }
}

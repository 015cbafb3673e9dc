//! Decodes responses: pages of a list and events of a watch. Objects are parsed meanwhile, so that nothing else of them
//! is kept.

use std::{fmt, marker::PhantomData};

use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use kube::core::Status;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Error, Map, Value};

use super::{super::parse, versions::ObjectVersions};
use crate::object::{ObjectName, ParsedObject};

/// Marks the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A kind that is watched, and the objects of it that are selected.
pub(super) trait Watchable: parse::Resource + kube::Resource<DynamicType = ()> + Send + Sync {
    const LABELS: Option<&'static str> = None;
    const FIELDS: Option<&'static str> = None;
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
#[serde(bound(deserialize = "I: Deserialize<'de>"))]
struct RawPage<I> {
    #[serde(default)]
    kind: String,
    metadata: ListMeta,
    // Required, or else `{}` would be an empty list; but `null` is one.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<I>>,
}

/// An object of a list. One that does not decode as a `K` becomes an unusable object, so that the others on its page
/// are read.
struct Item<K> {
    parsed: ParsedObject,
    version: String,
    of: PhantomData<K>,
}

/// An object without `fieldsV1` of `metadata.managedFields`. Who may write an object may put any JSON there, also some
/// that serde_json rejects: deeper than 128 levels, invalid UTF-8, numbers that are too large. One such object must not
/// keep all others of its kind from the nodes. All other fields are written by the API server by their types.
struct ObjectJson(Value);

/// Decodes any JSON to an [`ObjectJson`].
struct ObjectVisitor;

impl Watchable for Service {
    const FIELDS: Option<&'static str> = Some("spec.clusterIP!=None");
}

impl Watchable for EndpointSlice {
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/headless");
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
        let page: RawPage<Item<K>> = serde_json::from_slice(body)?;
        let expected = format!("{}List", K::kind(&()));
        if page.kind != expected {
            return Err(Error::custom(format!("{} instead of {expected}", page.kind)));
        }
        let ListMeta { resource_version, continue_, .. } = page.metadata;
        let version = resource_version.filter(|version| !version.is_empty());
        Ok(Self {
            objects: page.items.unwrap_or_default().into_iter().map(|item| (item.parsed, item.version)).collect(),
            version: version.ok_or_else(|| Error::custom("list without metadata.resourceVersion"))?,
            next: continue_.filter(|token| !token.is_empty()),
        })
    }
}

impl<'de, K: Watchable> Deserialize<'de> for Item<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ObjectJson(value) = ObjectJson::deserialize(deserializer)?;
        let parsed = parse::from_json::<K>(&value);
        if parsed.name.name.is_empty() {
            return Err(D::Error::custom("object without metadata.name"));
        }
        Ok(Self { parsed, version: resource_version(&value).to_owned(), of: PhantomData })
    }
}

impl<'de> Deserialize<'de> for ObjectJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor).map(Self)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(ObjectJson(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(field) = fields.next_key::<String>()? {
            if field == "fieldsV1" {
                fields.next_value::<IgnoredAny>()?;
            } else {
                let ObjectJson(value) = fields.next_value()?;
                object.insert(field, value);
            }
        }
        Ok(object.into())
    }
}

/// The version of an object; empty if absent.
fn resource_version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

/// Decodes a page of a list of `PartialObjectMetadata`: adds the versions of its objects, and returns the `continue`
/// token of the next page.
pub(super) fn decode_metadata(body: &[u8], versions: &mut ObjectVersions) -> Result<Option<String>, Error> {
    let page: RawPage<ObjectJson> = serde_json::from_slice(body)?;
    for ObjectJson(object) in page.items.unwrap_or_default() {
        versions.set(&parse::json_name(&object), resource_version(&object));
    }
    Ok(page.metadata.continue_.filter(|token| !token.is_empty()))
}

impl WatchEvent {
    /// Decodes a line of a watch. An ERROR event is the inner `Err`.
    pub(super) fn decode<K: Watchable>(line: &[u8]) -> Result<Result<Self, Box<Status>>, Error> {
        // The meaning of the object depends on the type, which may follow it.
        let ObjectJson(mut event) = serde_json::from_slice(line)?;
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        let change = match event["type"].as_str().unwrap_or_default() {
            "ADDED" | "MODIFIED" => EventChange::Put(parse::from_json::<K>(&object)),
            "DELETED" => EventChange::Delete(parse::json_name(&object)),
            "BOOKMARK" if object["metadata"]["annotations"][INITIAL_EVENTS_END] == "true" => {
                EventChange::InitialEventsEnd
            }
            "BOOKMARK" => EventChange::Bookmark,
            "ERROR" => return serde_json::from_value(object).map(Err),
            other => return Err(Error::custom(format!("event of type {other:?}"))),
        };
        if let EventChange::Put(ParsedObject { name, .. }) | EventChange::Delete(name) = &change
            && name.name.is_empty()
        {
            return Err(Error::custom("event for an object without metadata.name"));
        }
        match resource_version(&object) {
            "" => Err(Error::custom("event without metadata.resourceVersion")),
            version => Ok(Ok(Self { version: version.to_owned(), change })),
        }
    }
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
            let event = WatchEvent::decode::<Node>(&added).unwrap().unwrap();
            assert_eq!(event.version, "7");
            let EventChange::Put(parsed) = &event.change else { panic!("{event:?}") };
            check(parsed);

            let deleted = joined(&[br#"{"type": "DELETED", "object": "#, &node, b"}"]);
            let event = WatchEvent::decode::<Node>(&deleted).unwrap().unwrap();
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
}

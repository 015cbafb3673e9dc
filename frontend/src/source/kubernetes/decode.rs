//! EventChange arrives: pages of a list and events of a watch, whose objects are parsed while they are decoded, so that nothing else of
//! them is ever kept.

use std::marker::PhantomData;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::core::Status;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Error, Value};

use super::super::parse;
use crate::object::{ObjectName, ParsedObject};

/// Marks the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A kind that is watched, and which objects of it.
pub(super) trait Watchable: parse::Resource + kube::Resource<DynamicType = ()> + Send + Sync {
    /// Label selector.
    const LABELS: Option<&'static str>;
    /// Field selector.
    const FIELDS: Option<&'static str>;
    /// Whether there is no doing without.
    const NEED: Need;
}

/// EventChange it means when the API does not offer a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Something is wrong: nobody can be served before it is mended.
    Required,
    /// The cluster is older than the kind, or does not let us read it. There is no such object, then.
    Optional,
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page {
    /// Its objects.
    pub(super) objects: Vec<ParsedObject>,
    /// The `resourceVersion` of the list.
    pub(super) version: String,
    /// The token (`continue`) for the next page; `None` after the last one.
    pub(super) next: Option<String>,
}

/// One event of a watch, or of a streaming list.
#[derive(Debug)]
pub(super) struct Event {
    /// The `resourceVersion` that the watch has reached with it.
    pub(super) version: String,
    /// EventChange has happened.
    pub(super) what: EventChange,
}

/// EventChange an event tells.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart at once, while a box would be one more allocation an object"
)]
pub(super) enum EventChange {
    /// An object appeared or changed.
    Put(ParsedObject),
    /// An object is gone, whether it was known or not.
    Gone(ObjectName),
    /// Nothing: everything up to this version has been sent.
    Bookmark,
    /// The same, and the streaming list is complete.
    InitialEnd,
}

/// A list as it is sent.
#[derive(Deserialize)]
#[serde(bound = "")]
struct RawPage<K: Watchable> {
    kind: String,
    metadata: PageMetadata,
    // Must be there, or else `{}` would be an empty list; but `null` is one.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<Item<K>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(default)]
    r#continue: Option<String>,
}

/// An object of a list. One that does not decode as a `K` arrives as well, as one that is unusable: it must not stand in the
/// way of the others on its page.
struct Item<K> {
    parsed: ParsedObject,
    of: PhantomData<K>,
}

/// An event as it is sent. An object is decoded to JSON first, since its meaning depends on the type.
#[derive(Deserialize)]
struct RawEvent {
    r#type: EventType,
    object: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl Watchable for Service {
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/service-proxy-name");
    const FIELDS: Option<&'static str> = Some("spec.clusterIP!=None");
    const NEED: Need = Need::Required;
}

impl Watchable for EndpointSlice {
    const LABELS: Option<&'static str> = Some("!service.kubernetes.io/headless");
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Required;
}

impl Watchable for Node {
    const LABELS: Option<&'static str> = None;
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Required;
}

/// Served since Kubernetes 1.33. Reading it is a permission of its own (`networking.k8s.io`, `servicecidrs`: list, watch).
impl Watchable for ServiceCIDR {
    const LABELS: Option<&'static str> = None;
    const FIELDS: Option<&'static str> = None;
    const NEED: Need = Need::Optional;
}

// === impl Page ===

impl Page {
    /// Decodes an answer. One that is not a list of `K` is an error, however empty and successful it is.
    pub(super) fn decode<K: Watchable>(body: &[u8]) -> Result<Self, Error> {
        let page: RawPage<K> = serde_json::from_slice(body)?;
        let expected = format!("{}List", K::kind(&()));
        if page.kind != expected {
            return Err(Error::custom(format!("a {} in place of a {expected}", page.kind)));
        }
        if page.metadata.resource_version.is_empty() {
            return Err(Error::custom("a list without a resourceVersion"));
        }
        let items = page.items.unwrap_or_default();
        Ok(Self {
            objects: items.into_iter().map(|item| item.parsed).collect(),
            version: page.metadata.resource_version,
            next: page.metadata.r#continue.filter(|token| !token.is_empty()),
        })
    }
}

impl<'de, K: Watchable> Deserialize<'de> for Item<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parsed = parse::from_json::<K>(&Value::deserialize(deserializer)?);
        if parsed.name.name.is_empty() {
            return Err(D::Error::custom("an object without a name"));
        }
        Ok(Self { parsed, of: PhantomData })
    }
}

// === impl Event ===

impl Event {
    /// Decodes a line of a watch. An ERROR event is an `Err` within.
    pub(super) fn decode<K: Watchable>(line: &[u8]) -> Result<Result<Self, Box<Status>>, Error> {
        let RawEvent { r#type, object } = serde_json::from_slice(line)?;
        let metadata = &object["metadata"];
        let what = match r#type {
            EventType::Added | EventType::Modified => EventChange::Put(parse::from_json::<K>(&object)),
            EventType::Deleted => EventChange::Gone(parse::json_name(&object)),
            EventType::Bookmark if metadata["annotations"][INITIAL_EVENTS_END] == "true" => EventChange::InitialEnd,
            EventType::Bookmark => EventChange::Bookmark,
            EventType::Error => return serde_json::from_value(object).map(Err),
        };
        if let EventChange::Put(ParsedObject { name, .. }) | EventChange::Gone(name) = &what
            && name.name.is_empty()
        {
            return Err(Error::custom("an event about an object without a name"));
        }
        match metadata["resourceVersion"].as_str() {
            Some(version) if !version.is_empty() => Ok(Ok(Self { version: version.to_owned(), what })),
            _ => Err(Error::custom("an event without a resourceVersion")),
        }
    }
}

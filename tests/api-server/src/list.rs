//! Lists: whole, in pages, and as metadata.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};

use crate::{
    http::ApiRequest,
    resource::{Collection, Resource, Route},
    selector::Selector,
    status::{Answer, status},
    store::{ObjectKey, Store},
};

/// What a `continue` token contains.
const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// Answers a list, with the current objects or with those of an earlier version.
pub(crate) fn list(store: &Store, route: &Route, request: &ApiRequest, frozen_at: Option<u64>) -> Answer {
    let current = store.version().min(frozen_at.unwrap_or(u64::MAX));
    let (token, requested) = (request.parameter("continue"), request.parameter("resourceVersion"));
    if !token.is_empty() && !requested.is_empty() && requested != "0" {
        return Answer::error(400, "specifying resource version is not allowed when using continue");
    }
    let (version, after) = match (token.as_str(), requested.as_str()) {
        ("", "" | "0") => (current, None),
        ("", number) => match number.parse() {
            Ok(version) if version > current => return too_large(version, current),
            Ok(version) if request.parameter("resourceVersionMatch") == "Exact" => (version, None),
            Ok(_) => (current, None),
            Err(_) => return Answer::error(400, &format!("Invalid value: {number:?}: not a number")),
        },
        (token, _) => match decode_token(route.resource, token) {
            Some((version, after)) => (version, Some(after)),
            None => return Answer::error(400, "continue key is not valid"),
        },
    };
    let limit = request.parameter("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let selector = Selector::new(&request.parameter("labelSelector"), &request.parameter("fieldSelector"));
    let collection = Collection { resource: route.resource, namespace: route.namespace.as_deref() };
    let Ok((page, more)) = store.page(collection, &selector, version, after.as_ref(), limit) else {
        return expired(version);
    };
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), version.to_string().into());
    if let Some((key, _)) = page.last().filter(|_| more) {
        metadata.insert("continue".to_owned(), encode_token(key, version).into());
        // Unknown for a selection.
        if selector.is_empty() {
            let rest =
                store.page(collection, &selector, version, Some(key), usize::MAX).map_or(0, |(rest, _)| rest.len());
            metadata.insert("remainingItemCount".to_owned(), rest.into());
        }
    }
    let (kind, api_version, items) = if request.metadata_only {
        let items: Vec<_> = page.iter().map(|(_, object)| object.metadata_text()).collect();
        ("PartialObjectMetadata", "meta.k8s.io/v1", items.join(","))
    } else {
        let items: Vec<_> = page.iter().map(|(_, object)| object.text()).collect();
        (route.resource.kind(), route.resource.api_version(), items.join(","))
    };
    let metadata = Value::Object(metadata);
    Answer::json(
        200,
        format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":[{items}]}}"#),
    )
}

/// The `Status` of a version that was compacted.
pub(crate) fn expired_status(version: u64) -> Value {
    status(410, &format!("too old resource version: {version}"))
}

fn expired(version: u64) -> Answer {
    Answer::json(410, expired_status(version).to_string())
}

fn too_large(requested: u64, current: u64) -> Answer {
    let mut status = status(504, &format!("Too large resource version: {requested}, current: {current}"));
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
    status["details"] = json!({"causes": causes, "retryAfterSeconds": 1});
    Answer { retry_after: Some(1), ..Answer::json(504, status.to_string()) }
}

fn encode_token((_, namespace, name): &ObjectKey, version: u64) -> String {
    let token = json!({"v": TOKEN_VERSION, "rv": version, "start": format!("{namespace}/{name}\0")});
    BASE64_URL_SAFE_NO_PAD.encode(token.to_string())
}

fn decode_token(resource: Resource, token: &str) -> Option<(u64, ObjectKey)> {
    let token: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (namespace, name) = token["start"].as_str()?.strip_suffix('\0')?.split_once('/')?;
    let version = token["rv"].as_u64().filter(|_| token["v"] == TOKEN_VERSION)?;
    Some((version, (resource, namespace.to_owned(), name.to_owned())))
}

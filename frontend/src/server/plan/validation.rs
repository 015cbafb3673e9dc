//! The limits of a planned object, most of them those of the API server, which has not checked these objects. Without
//! them the work of a plan, and keys in memory, would be products of what a request lists.

use serde_json::Value;

/// Names of EndpointSlices and Nodes: DNS subdomains (RFC 1123).
const MAX_SUBDOMAIN: usize = 253;
/// Names of namespaces, Services, ports and zones, and values of labels: DNS labels (RFC 1123, RFC 1035).
const MAX_LABEL: usize = 63;
/// `endpoints` of an EndpointSlice (API reference of discovery.k8s.io/v1).
const MAX_ENDPOINTS: usize = 1000;
/// `ports` of an EndpointSlice (the same reference). The API server has no limit for those of a Service: this is one of
/// plans only.
const MAX_PORTS: usize = 100;
/// `addresses` of an endpoint (the same reference).
const MAX_ADDRESSES: usize = 100;
/// Hints of an endpoint, of each kind (the same reference).
const MAX_HINTS: usize = 8;
/// The label with the Service of an EndpointSlice.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Whether the effect of an object is computed.
pub(super) fn is_planned(object: &Value) -> bool {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    matches!((text("apiVersion"), text("kind")), ("v1", "Service") | ("discovery.k8s.io/v1", "EndpointSlice"))
}

/// Checks an object that is planned. The error names the object and the field.
pub(super) fn validate(object: &Value) -> Result<(), String> {
    check(object).map_err(|violation| {
        let start = |value: &Value| value.as_str().unwrap_or_default().chars().take(MAX_SUBDOMAIN).collect::<String>();
        let metadata = &object["metadata"];
        let (kind, namespace, name) = (start(&object["kind"]), start(&metadata["namespace"]), start(&metadata["name"]));
        let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
        format!("{kind} {namespace}/{name}: {violation}")
    })
}

/// The error begins with the field that exceeds a limit.
fn check(object: &Value) -> Result<(), String> {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    text(&metadata["namespace"], MAX_LABEL, || "metadata.namespace".to_owned())?;
    if object["kind"] == "Service" {
        text(&metadata["name"], MAX_LABEL, || "metadata.name".to_owned())?;
        return ports(&spec["ports"], "spec.ports");
    }
    text(&metadata["name"], MAX_SUBDOMAIN, || "metadata.name".to_owned())?;
    text(&metadata["labels"][SERVICE_LABEL], MAX_LABEL, || format!("metadata.labels[{SERVICE_LABEL}]"))?;
    ports(&object["ports"], "ports")?;
    let endpoints = list(&object["endpoints"], MAX_ENDPOINTS, || "endpoints".to_owned())?;
    for (n, endpoint) in endpoints.iter().enumerate() {
        list(&endpoint["addresses"], MAX_ADDRESSES, || format!("endpoints[{n}].addresses"))?;
        text(&endpoint["nodeName"], MAX_SUBDOMAIN, || format!("endpoints[{n}].nodeName"))?;
        for (hints, max) in [("forZones", MAX_LABEL), ("forNodes", MAX_SUBDOMAIN)] {
            let path = || format!("endpoints[{n}].hints.{hints}");
            for (m, hint) in list(&endpoint["hints"][hints], MAX_HINTS, path)?.iter().enumerate() {
                text(&hint["name"], max, || format!("{}[{m}].name", path()))?;
            }
        }
    }
    Ok(())
}

fn ports(value: &Value, path: &str) -> Result<(), String> {
    for (n, port) in list(value, MAX_PORTS, || path.to_owned())?.iter().enumerate() {
        text(&port["name"], MAX_LABEL, || format!("{path}[{n}].name"))?;
    }
    Ok(())
}

/// What is no text has no length: it does not decode.
fn text(value: &Value, max: usize, field: impl FnOnce() -> String) -> Result<(), String> {
    let length = value.as_str().map_or(0, str::len);
    if length <= max {
        return Ok(());
    }
    Err(format!("{}: {length} bytes, more than {max}", field()))
}

/// The entries; none of what is no list.
fn list(value: &Value, max: usize, field: impl FnOnce() -> String) -> Result<&[Value], String> {
    let entries: &[Value] = value.as_array().map_or(&[], Vec::as_slice);
    if entries.len() <= max {
        return Ok(entries);
    }
    Err(format!("{}: {} entries, more than {max}", field(), entries.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, ports: Value) -> Value {
        let metadata = json!({ "name": name, "namespace": namespace });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } })
    }

    fn slice(name: &str, service: &str, ports: Value, endpoints: Value) -> Value {
        let metadata = json!({ "name": name, "labels": { SERVICE_LABEL: service } });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": metadata, "ports": ports, "endpoints": endpoints,
        })
    }

    fn repeated(count: usize, value: Value) -> Value {
        Value::Array(vec![value; count])
    }

    #[test]
    fn limits_of_the_api_server_are_accepted() {
        let hints = json!({
            "forZones": repeated(8, json!({ "name": "z".repeat(63) })),
            "forNodes": repeated(8, json!({ "name": "n".repeat(253) })),
        });
        let addresses = repeated(100, json!("10.0.0.1"));
        let endpoint = json!({ "addresses": addresses, "nodeName": "n".repeat(253), "hints": hints });
        let ports = repeated(100, json!({ "name": "p".repeat(63), "port": 80 }));
        let label = "s".repeat(63);
        for object in [
            service(&label, &label, ports.clone()),
            slice(&"x".repeat(253), &label, ports, repeated(1000, endpoint)),
            service("", "", Value::Null),
            slice("", "", json!("no list"), json!(7)),
        ] {
            assert!(is_planned(&object));
            assert_eq!(validate(&object), Ok(()));
        }
        assert!(!is_planned(&json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service" })));
    }

    #[test]
    fn more_is_refused_with_object_and_field() {
        let (port, none) = (|length: usize| json!([{ "name": "p".repeat(length) }]), || json!([]));
        let endpoint = |endpoint: Value| slice("x", "web", json!([]), json!([{}, endpoint]));
        let hint = |length: usize| json!([{ "name": "h".repeat(length) }]);
        let label = "metadata.labels[kubernetes.io/service-name]: 64 bytes, more than 63";
        for (object, expected) in [
            (service(&"n".repeat(64), "s", none()), "metadata.namespace: 64 bytes, more than 63"),
            (service("ns", &"s".repeat(64), none()), "metadata.name: 64 bytes, more than 63"),
            (service("ns", "web", port(64)), "Service ns/web: spec.ports[0].name: 64 bytes, more than 63"),
            (service("ns", "web", repeated(101, json!({}))), "spec.ports: 101 entries, more than 100"),
            (slice(&"x".repeat(254), "web", none(), none()), "metadata.name: 254 bytes, more than 253"),
            (slice("x", &"s".repeat(64), none(), none()), label),
            (slice("x", "web", port(64), none()), "EndpointSlice default/x: ports[0].name: 64 bytes, more than 63"),
            (slice("x", "web", repeated(101, json!({})), none()), "ports: 101 entries, more than 100"),
            (slice("x", "web", none(), repeated(1001, json!({}))), "endpoints: 1001 entries, more than 1000"),
            (endpoint(json!({ "addresses": repeated(101, json!("")) })), "endpoints[1].addresses: 101 entries"),
            (endpoint(json!({ "nodeName": "n".repeat(254) })), "endpoints[1].nodeName: 254 bytes"),
            (endpoint(json!({ "hints": { "forZones": hint(64) } })), "endpoints[1].hints.forZones[0].name: 64 bytes"),
            (endpoint(json!({ "hints": { "forNodes": hint(254) } })), "endpoints[1].hints.forNodes[0].name: 254 bytes"),
            (endpoint(json!({ "hints": { "forZones": repeated(9, json!({})) } })), "hints.forZones: 9 entries"),
        ] {
            let error = validate(&object).unwrap_err();
            assert!(error.contains(expected), "no {expected:?} in {error:?}");
        }
        let huge = validate(&service("ns", &"s".repeat(1 << 20), none())).unwrap_err();
        assert!(huge.len() < 400, "{} bytes", huge.len());
    }
}

//! Each rule for the fields of an EndpointSlice.

use std::{
    num::NonZeroU16,
    time::{Duration, UNIX_EPOCH},
};

use proto::model::Protocol;
use serde_json::{Value, json};

use super::*;
use crate::{
    object::{ObjectName, ParsedObject},
    source::parse::from_json,
};

fn slice(address_type: &str, ports: Value, endpoints: Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "shop",
            "name": "web-x1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": address_type,
        "ports": ports,
        "endpoints": endpoints,
    })
}

fn parsed(slice: &Value) -> ParsedObject {
    let parsed = from_json::<EndpointSlice>(slice);
    assert_eq!((parsed.kind, &parsed.name), (ObjectKind::EndpointSlice, &ObjectName::new("shop", "web-x1")));
    parsed
}

/// The slice and its invalid fields.
#[track_caller]
fn parse_valid(slice: &Value) -> (SliceObject, Vec<String>) {
    let parsed = parsed(slice);
    let fields = parsed.problems.into_iter().map(|problem| problem.field).collect();
    match parsed.object {
        Some(ClusterObject::EndpointSlice(slice)) => (slice, fields),
        other => panic!("{other:?}, {fields:?}"),
    }
}

fn port(name: &str, protocol: Protocol, port: u16) -> SlicePort {
    SlicePort { name: name.into(), protocol, port: NonZeroU16::new(port).unwrap() }
}

fn endpoint(address: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: address.parse().unwrap(),
        node: None,
        ready: true,
        serving: true,
        terminating: false,
        zone_hints: Vec::new(),
        node_hints: Vec::new(),
        pod: None,
    }
}

#[test]
fn whole_slice() {
    let mut slice = slice(
        "IPv4",
        json!([
            {"name": "metrics", "port": 9090, "protocol": "TCP"},
            {"name": "", "port": 53, "protocol": "UDP"},
        ]),
        json!([
            {
                "addresses": ["10.0.1.2", "10.0.1.3"],
                "nodeName": "n1",
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "hints": {"forZones": [{"name": "b"}, {"name": "a"}], "forNodes": [{"name": "n1"}]},
            },
            {"addresses": ["10.0.1.1"], "conditions": {}, "hints": {}, "nodeName": ""},
        ]),
    );
    slice["metadata"]["creationTimestamp"] = json!("1970-01-02T00:00:00Z");
    slice["metadata"]["annotations"] =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:01:00.5Z"});
    let expected = SliceObject {
        name: ObjectName::new("shop", "web-x1"),
        created: Some(UNIX_EPOCH + Duration::from_secs(86_400)),
        service: "web".into(),
        family: IpFamily::V4,
        ports: vec![port("", Protocol::Udp, 53), port("metrics", Protocol::Tcp, 9090)],
        endpoints: vec![
            SliceEndpoint {
                node: Some("n1".into()),
                ready: false,
                terminating: true,
                zone_hints: vec!["a".into(), "b".into()],
                node_hints: vec!["n1".into()],
                ..endpoint("10.0.1.2")
            },
            endpoint("10.0.1.1"),
        ],
        trigger: Some(UNIX_EPOCH + Duration::from_millis(60_500)),
    };
    assert_eq!(parse_valid(&slice), (expected, vec![]));
}

#[test]
fn unusable_slices() {
    let with_labels = |labels: Value| {
        let mut slice = slice("IPv4", json!([]), json!([]));
        slice["metadata"]["labels"] = labels;
        slice
    };
    let service = "metadata.labels[kubernetes.io/service-name]";
    for (slice, problem) in [
        (slice("FQDN", json!([]), json!([{"addresses": ["example.com"]}])), None),
        (slice("MAC", json!([]), json!([])), Some("addressType")),
        (slice("", json!([]), json!([])), Some("addressType")),
        (with_labels(Value::Null), Some(service)),
        (with_labels(json!({"kubernetes.io/service-name": ""})), Some(service)),
        (with_labels(json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""})), None),
        (with_labels(json!({"service.kubernetes.io/headless": ""})), None),
    ] {
        let ParsedObject { object, problems, .. } = parsed(&slice);
        assert_eq!(object, None, "{slice}");
        assert_eq!(problems.first().map(|problem| problem.field.as_str()), problem, "{slice}");
    }
}

#[test]
fn absent_lists_are_empty() {
    let (slice, problems) = parse_valid(&slice("IPv6", Value::Null, Value::Null));
    assert_eq!((slice.family, slice.ports, slice.endpoints, problems), (IpFamily::V6, vec![], vec![], vec![]));
}

#[test]
fn ports() {
    let good = json!({"name": "good", "port": 80});
    for (bad, problem) in [
        (json!({"name": "all"}), None),
        (json!({"name": "all", "port": 0}), None),
        (json!({"port": 8080}), Some("ports[0].name")),
        (json!({"name": "bad", "port": 65_536}), Some("ports[0].port")),
        (json!({"name": "bad", "port": -5}), Some("ports[0].port")),
        (json!({"name": "bad", "port": 80, "protocol": "HTTP"}), Some("ports[0].protocol")),
        (good.clone(), None),
    ] {
        let (slice, problems) = parse_valid(&slice("IPv4", json!([bad, good]), json!([])));
        assert_eq!(slice.ports, [port("good", Protocol::Tcp, 80)], "{bad}");
        assert_eq!(problems.first().map(String::as_str), problem, "{bad}");
    }
}

#[test]
fn invalid_addresses_do_not_affect_the_others() {
    for (address_type, good, bad) in [
        (
            "IPv4",
            "10.0.0.1",
            &["", "name", "0.0.0.0", "224.0.0.5", "127.0.0.1", "127.8.0.1", "169.254.169.254", "fd00::1"][..],
        ),
        ("IPv6", "fd00::1", &["::", "ff02::1", "::1", "fe80::1", "fe80::1%eth0", "::ffff:10.0.0.1", "10.0.0.1"][..]),
    ] {
        for bad in bad {
            let endpoints = json!([{"addresses": [bad, good]}, {"addresses": [good]}]);
            let (slice, problems) = parse_valid(&slice(address_type, json!([]), endpoints));
            assert_eq!(slice.endpoints, [endpoint(good)], "{bad}");
            assert_eq!(problems, ["endpoints[0].addresses[0]"], "{bad}");
        }
    }
}

#[test]
fn endpoint_without_addresses() {
    for endpoint in [json!({"addresses": []}), json!({"addresses": null}), json!({})] {
        let (slice, problems) = parse_valid(&slice("IPv4", json!([]), json!([endpoint])));
        assert_eq!((slice.endpoints, problems), (vec![], vec!["endpoints[0].addresses".to_owned()]), "{endpoint}");
    }
}

#[test]
fn leading_zeros_are_decimal() {
    let (slice, _) = parse_valid(&slice("IPv4", json!([]), json!([{"addresses": ["010.000.0.041"]}])));
    assert_eq!(slice.endpoints, [endpoint("10.0.0.41")]);
}

#[test]
fn conditions() {
    for (conditions, expected) in [
        (Value::Null, (true, true, false)),
        (json!({"ready": null, "serving": null, "terminating": null}), (true, true, false)),
        (json!({"ready": false}), (false, true, false)),
        (json!({"serving": false}), (true, false, false)),
        (json!({"ready": false, "serving": false, "terminating": true}), (false, false, true)),
    ] {
        let endpoints = json!([{"addresses": ["10.0.0.1"], "conditions": conditions}]);
        let (slice, _) = parse_valid(&slice("IPv4", json!([]), endpoints));
        let found = &slice.endpoints[0];
        assert_eq!((found.ready, found.serving, found.terminating), expected, "{conditions}");
    }
}

#[test]
fn invalid_trigger_time_is_ignored() {
    let mut slice = slice("IPv4", json!([]), json!([]));
    slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": "yesterday"});
    let (slice, problems) = parse_valid(&slice);
    assert_eq!(slice.trigger, None);
    assert_eq!(problems, ["metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]"]);
}

#[test]
fn pod_is_one_in_the_namespace_of_the_slice() {
    let of = |target: Value| {
        let slice = slice("IPv4", json!([]), json!([{"addresses": ["10.0.1.1"], "targetRef": target}]));
        parse_valid(&slice).0.endpoints[0].pod
    };
    let own = Some(PodId::new("shop", "web-0", None));
    assert_eq!(of(json!({"kind": "Pod", "name": "web-0", "namespace": "shop"})), own);
    assert_eq!(of(json!({"kind": "Pod", "name": "web-0"})), own);
    assert_ne!(of(json!({"kind": "Pod", "name": "web-1"})), own);
    for other in [
        json!({"kind": "Pod", "name": "web-0", "namespace": "other"}),
        json!({"kind": "Node", "name": "web-0"}),
        json!({"kind": "Pod"}),
        Value::Null,
    ] {
        assert_eq!(of(other), None);
    }
}

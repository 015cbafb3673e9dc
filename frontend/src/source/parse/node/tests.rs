//! Which fields of a Node are used.

use serde_json::{Value, json};

use super::*;
use crate::{
    object::{ObjectName, ParsedObject},
    source::parse::from_json,
};

/// The Node and its invalid fields.
#[track_caller]
fn parse_valid(node: &Value) -> (NodeInfo, Vec<String>) {
    let ParsedObject { kind, name, object, problems, .. } = from_json::<Node>(node);
    assert_eq!((kind, name), (ObjectKind::Node, ObjectName::new("", "n1")));
    match object {
        Some(ClusterObject::Node(node)) => (node.info, problems.into_iter().map(|problem| problem.field).collect()),
        other => panic!("{other:?}"),
    }
}

fn node(metadata: Value, spec: Value, addresses: Value) -> Value {
    let mut metadata = metadata;
    metadata["name"] = "n1".into();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"addresses": addresses},
    })
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

#[test]
fn node_with_a_name_only() {
    let (node, problems) = parse_valid(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    assert_eq!(node, NodeInfo { eligible: true, ..NodeInfo::unknown("n1") });
    assert!(problems.is_empty());
}

#[test]
fn internal_addresses_come_first_without_duplicates() {
    let addresses = json!([
        {"type": "Hostname", "address": "n1"},
        {"type": "ExternalIP", "address": "203.0.113.1"},
        {"type": "InternalIP", "address": "10.0.0.01"},
        {"type": "ExternalIP", "address": "10.0.0.1"},
        {"type": "InternalIP", "address": "fd00::1"},
        {"type": "InternalIP", "address": "n1.example"},
        {"type": "ExternalDNS", "address": "n1.example"},
    ]);
    let (node, problems) = parse_valid(&node(json!({}), json!({}), addresses));
    assert_eq!(texts(&node.addresses), ["10.0.0.1", "fd00::1", "203.0.113.1"]);
    assert_eq!(problems, ["status.addresses[5].address"]);
}

#[test]
fn pod_cidrs() {
    for (spec, cidrs, problems) in [
        (
            json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd01::/64"]}),
            vec!["10.1.0.0/24", "fd01::/64"],
            vec![],
        ),
        (json!({"podCIDR": "10.1.0.0/24"}), vec!["10.1.0.0/24"], vec![]),
        (json!({"podCIDR": ""}), vec![], vec![]),
        (json!({"podCIDR": "all"}), vec![], vec!["spec.podCIDR"]),
        (json!({"podCIDRs": ["10.1.0.0", "10.1.0.9/024"]}), vec!["10.1.0.0/24"], vec!["spec.podCIDRs[0]"]),
    ] {
        let (node, found) = parse_valid(&node(json!({}), spec.clone(), json!([])));
        assert_eq!((texts(&node.pod_cidrs), found), (texts(&cidrs), texts(&problems)), "{spec}");
    }
}

#[test]
fn zone() {
    let labels = json!({"labels": {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"}});
    assert_eq!(&*parse_valid(&node(labels, json!({}), json!([]))).0.zone, "a");
}

#[test]
fn eligible() {
    let taint = |key: &str| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
    let deleted = json!({"deletionTimestamp": "2024-01-01T00:00:00Z"});
    for (metadata, spec, eligible) in [
        (json!({}), json!({}), true),
        (json!({}), taint("node.kubernetes.io/unschedulable"), true),
        (json!({}), json!({"unschedulable": true}), true),
        (json!({}), taint("ToBeDeletedByClusterAutoscaler"), false),
        (deleted, json!({}), false),
    ] {
        let node = node(metadata, spec, json!([]));
        assert_eq!(parse_valid(&node).0.eligible, eligible, "{node}");
    }
}

#[test]
fn startup_taint() {
    for (key, expected) in [(STARTUP_TAINT, true), ("node.kubernetes.io/not-ready", false)] {
        let taints = json!({"taints": [{"key": "a", "effect": "NoExecute"}, {"key": key, "effect": "NoSchedule"}]});
        let ParsedObject { object, .. } = from_json::<Node>(&node(json!({}), taints, json!([])));
        let Some(ClusterObject::Node(NodeObject { is_starting, .. })) = object else { panic!("{object:?}") };
        assert_eq!(is_starting, expected, "{key}");
    }
}

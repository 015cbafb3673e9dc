//! Parses core/v1 Node into the facts that the node itself needs.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use proto::model::NodeInfo;

use super::{FieldProblems, Resource, address, items, label};
use crate::object::{ClusterObject, NodeObject, ObjectKind, ObjectName, STARTUP_TAINT};

/// The label with the zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The taint of a node that the cluster autoscaler is about to remove (KEP-3836).
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Resource for Node {
    const KIND: ObjectKind = ObjectKind::Node;

    fn parse(&self, name: ObjectName, problems: &mut FieldProblems) -> Option<ClusterObject> {
        let spec = self.spec.as_ref();
        let taints = items(spec.and_then(|spec| spec.taints.as_ref()));
        let has_taint = |key: &str| taints.iter().any(|taint| taint.key == key);

        let info = NodeInfo {
            name: name.name,
            addresses: self.status.as_ref().map(|status| addresses(status, problems)).unwrap_or_default(),
            pod_cidrs: spec.map(|spec| pod_cidrs(spec, problems)).unwrap_or_default(),
            zone: label(&self.metadata, ZONE_LABEL).into(),
            eligible: self.metadata.deletion_timestamp.is_none() && !has_taint(TO_BE_DELETED_TAINT),
        };
        Some(ClusterObject::Node(NodeObject { info, is_starting: has_taint(STARTUP_TAINT) }))
    }
}

/// Internal IPs, then external IPs. Host names are skipped.
fn addresses(status: &NodeStatus, problems: &mut FieldProblems) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        let entries = items(status.addresses.as_ref()).iter().enumerate();
        for (n, entry) in entries.filter(|(_, entry)| entry.type_ == wanted) {
            let path = format!("status.addresses[{n}].address");
            addresses.extend(problems.ignored(path, address::address(&entry.address)));
        }
    }
    without_duplicates(addresses)
}

/// `podCIDR` is the older form of the first of `podCIDRs`.
fn pod_cidrs(spec: &NodeSpec, problems: &mut FieldProblems) -> Vec<IpNet> {
    let mut cidrs = problems.valid("spec.podCIDRs", spec.pod_cidrs.as_ref(), address::cidr);
    if items(spec.pod_cidrs.as_ref()).is_empty()
        && let Some(text) = spec.pod_cidr.as_ref().filter(|text| !text.is_empty())
    {
        cidrs.extend(problems.ignored("spec.podCIDR", address::cidr(text)));
    }
    without_duplicates(cidrs)
}

/// Keeps the order.
fn without_duplicates<T: Copy + Ord>(mut items: Vec<T>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    items.retain(|item| seen.insert(*item));
    items
}

#[cfg(test)]
mod tests;

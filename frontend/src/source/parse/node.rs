//! Parses core/v1 Node into the facts that the node itself needs.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::model;

use super::{FieldProblems, Resource, address, items, label};
use crate::object::{ClusterObject, ObjectKind};

/// The label with the zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The taint of a node that the cluster autoscaler is about to remove (KEP-3836).
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

impl Resource for Node {
    const KIND: ObjectKind = ObjectKind::Node;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn parse(&self, problems: &mut FieldProblems) -> Option<ClusterObject> {
        let spec = self.spec.as_ref();
        Some(ClusterObject::Node(model::NodeInfo {
            name: self.metadata.name.as_deref().unwrap_or_default().into(),
            addresses: self.status.as_ref().map(|status| addresses(status, problems)).unwrap_or_default(),
            pod_cidrs: spec.map(|spec| pod_cidrs(spec, problems)).unwrap_or_default(),
            zone: label(&self.metadata, ZONE_LABEL).into(),
            eligible: self.metadata.deletion_timestamp.is_none() && !spec.is_some_and(to_be_deleted),
        }))
    }
}

/// Internal IPs, then external IPs. Host names are skipped.
fn addresses(status: &NodeStatus, problems: &mut FieldProblems) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (n, entry) in items(status.addresses.as_ref()).iter().enumerate() {
            if entry.type_ != wanted {
                continue;
            }
            let path = format!("status.addresses[{n}].address");
            let address = problems.ignored(path, address::address(&entry.address));
            addresses.extend(address.filter(|address| !addresses.contains(address)));
        }
    }
    addresses
}

/// `podCIDR` is the older form of the first of `podCIDRs`.
fn pod_cidrs(spec: &NodeSpec, problems: &mut FieldProblems) -> Vec<IpNet> {
    let mut cidrs = Vec::new();
    let legacy = spec.pod_cidr.iter().filter(|cidr| !cidr.is_empty());
    let texts: Vec<(String, &String)> = match items(spec.pod_cidrs.as_ref()) {
        [] => legacy.map(|text| ("spec.podCIDR".to_owned(), text)).collect(),
        texts => texts.iter().enumerate().map(|(n, text)| (format!("spec.podCIDRs[{n}]"), text)).collect(),
    };
    for (path, text) in texts {
        let cidr = problems.ignored(path, address::cidr(text));
        cidrs.extend(cidr.filter(|cidr| !cidrs.contains(cidr)));
    }
    cidrs
}

fn to_be_deleted(spec: &NodeSpec) -> bool {
    items(spec.taints.as_ref()).iter().any(|taint| taint.key == TO_BE_DELETED_TAINT)
}

#[cfg(test)]
mod tests;

//! The Kubernetes objects of a cluster as YAML: a directory with a file for the service CIDRs, one for each node, and
//! one for each Service with its EndpointSlices. Files are replaced atomically, as configuration tools do.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{cluster::Node, plan::SERVICE_CIDRS};

mod endpoint;
mod service;

pub use endpoint::{Endpoint, EndpointState};
pub use service::{Service, TrafficPolicy};

/// A directory of manifests.
#[derive(Clone, Debug)]
pub struct Manifests {
    directory: PathBuf,
}

// === impl Manifests ===

impl Manifests {
    /// Creates the directory, with a file for the service CIDRs and one for each of `nodes`.
    pub(crate) fn create(directory: &Path, nodes: &[Node]) -> Self {
        fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let manifests = Self { directory: directory.to_owned() };
        manifests.write("service-cidrs", &[service_cidr_object()]);
        nodes.iter().for_each(|node| manifests.write_node(node, &node.pod_cidrs));
        manifests
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a service and its EndpointSlices, replacing their previous state.
    pub fn apply(&self, service: &Service) {
        self.write(&service.file_stem(), &service.objects());
    }

    /// Writes services and their EndpointSlices to the file `<stem>.yaml`, in place of what was in it.
    pub fn apply_all(&self, stem: &str, services: &[Service]) {
        self.write(stem, &services.iter().flat_map(Service::objects).collect::<Vec<_>>());
    }

    /// Removes a service and its EndpointSlices.
    pub fn delete(&self, service: &Service) {
        let path = self.path(&service.file_stem());
        fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Writes a node, with these pod CIDRs.
    pub fn write_node(&self, node: &Node, pod_cidrs: &[String]) {
        self.write(&node.name, &[node_object(node, pod_cidrs)]);
    }

    /// Removes a node.
    pub fn delete_node(&self, node: &Node) {
        let path = self.path(&node.name);
        fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Writes any objects to the file `<stem>.yaml`, atomically.
    pub fn write(&self, stem: &str, objects: &[Value]) {
        self.write_text(stem, &to_yaml(objects));
    }

    /// Writes any text to the file `<stem>.yaml`, atomically.
    pub fn write_text(&self, stem: &str, text: &str) {
        // Until it is complete it is hidden and not named like a manifest.
        let temporary = self.directory.join(format!(".{stem}.tmp"));
        let path = self.path(stem);
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn path(&self, stem: &str) -> PathBuf {
        self.directory.join(format!("{stem}.yaml"))
    }
}

/// The objects as one multi-document YAML text.
fn to_yaml(objects: &[Value]) -> String {
    let documents = objects.iter().map(|object| serde_saphyr::to_string(object).expect("plain data is YAML"));
    documents.collect::<Vec<_>>().join("---\n")
}

fn service_cidr_object() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": SERVICE_CIDRS },
    })
}

/// A ready node with these pod CIDRs.
pub(crate) fn node_object(node: &Node, pod_cidrs: &[String]) -> Value {
    let addresses = node.address.both().map(|address| json!({ "type": "InternalIP", "address": address }));
    let name = &node.name;
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": node.zone },
        },
        "spec": { "podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs },
        "status": { "addresses": addresses, "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

//! A directory of manifests of any size: one file for each Service with its EndpointSlice, and one for the measured
//! node.

use std::{
    fmt::Write as _,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use proto::model::Protocol;

/// The node that is measured.
pub(crate) const NODE: &str = "node-0";
/// The addresses of all pods.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";
/// The number of nodes with pods, including [`NODE`].
const NODES: u32 = 1_000;
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
const FIRST_CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 1);

/// The directory, and its size.
#[derive(Debug)]
pub(crate) struct Manifests {
    directory: PathBuf,
    /// A directory beside it, for files that replace others.
    staging: PathBuf,
    services: u32,
    each: u32,
    protocol: Protocol,
}

/// A file in the staging directory, which a rename applies.
#[derive(Debug)]
pub(crate) struct Edit {
    staged: PathBuf,
    file: PathBuf,
}

impl Manifests {
    /// Writes `services` services of TCP with `each` endpoints each, all different.
    pub(crate) fn write(parent: &Path, services: u32, each: u32) -> Result<Self> {
        Self::write_protocol(parent, services, each, Protocol::Tcp)
    }

    /// As [`Self::write`], with services of this protocol.
    pub(crate) fn write_protocol(parent: &Path, services: u32, each: u32, protocol: Protocol) -> Result<Self> {
        let (directory, staging) = (parent.join("manifests"), parent.join("staging"));
        for path in [&directory, &staging] {
            fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
        }
        let manifests = Self { directory, staging, services, each, protocol };
        fs::write(manifests.directory.join("node.yaml"), node()).context("write the node")?;
        for service in 0..services {
            let first = manifests.pod(service * each);
            fs::write(manifests.file(service), manifests.text(service, first)).context("write a service")?;
        }
        Ok(manifests)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Prepares an edit that replaces the first pod of a service. Different numbers give different pods and, as long as
    /// there are enough, different services.
    pub(crate) fn stage(&self, number: u32) -> Result<Edit> {
        let service = number.wrapping_mul(7_919) % self.services;
        let pod = self.pod(self.services * self.each + number);
        let edit = Edit { staged: self.staging.join("edit.yaml"), file: self.file(service) };
        fs::write(&edit.staged, self.text(service, pod)).context("write an edit")?;
        Ok(edit)
    }

    /// The cluster IP of a service, and a pod of it that no edit replaces.
    pub(crate) fn unchanged(&self) -> (Ipv4Addr, Ipv4Addr) {
        (FIRST_CLUSTER_IP, self.pod(1))
    }

    fn file(&self, service: u32) -> PathBuf {
        self.directory.join(format!("service-{service}.yaml"))
    }

    fn pod(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(FIRST_POD) + number)
    }

    fn text(&self, service: u32, first: Ipv4Addr) -> String {
        let cluster_ip = Ipv4Addr::from(u32::from(FIRST_CLUSTER_IP) + service);
        let protocol = self.protocol;
        let mut text = format!(
            "\
apiVersion: v1
kind: Service
metadata: {{ name: service-{service}, namespace: default }}
spec:
  clusterIP: {cluster_ip}
  ports:
    - {{ name: http, protocol: {protocol}, port: 80, targetPort: 8080 }}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: service-{service}-1
  namespace: default
  labels: {{ kubernetes.io/service-name: service-{service} }}
addressType: IPv4
ports:
  - {{ name: http, protocol: {protocol}, port: 8080 }}
endpoints:
"
        );
        let numbers = service * self.each..(service + 1) * self.each;
        let others = numbers.clone().skip(1).map(|number| self.pod(number));
        for (number, pod) in numbers.zip([first].into_iter().chain(others)) {
            let node = number % NODES;
            // Writing to a String cannot fail.
            let _ =
                writeln!(text, "  - {{ addresses: [{pod}], nodeName: node-{node}, conditions: {{ ready: true }} }}");
        }
        text
    }
}

impl Edit {
    /// Replaces the file.
    pub(crate) fn apply(self) -> Result<()> {
        fs::rename(&self.staged, &self.file).context("rename an edit")
    }
}

fn node() -> String {
    format!(
        "\
apiVersion: v1
kind: Node
metadata:
  name: {NODE}
  labels: {{ topology.kubernetes.io/zone: zone-a }}
spec:
  podCIDRs: [10.128.0.0/24]
status:
  addresses:
    - {{ type: InternalIP, address: 172.16.0.11 }}
"
    )
}

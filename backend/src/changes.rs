//! What one commit changed, so that a backend need not inspect the rest.

use std::collections::BTreeSet;

use proto::model::ServicePortKey;

/// The difference between two committed states. Exact: a key is listed only if its service port or one of its pools
/// differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The service ports that were added, removed or changed, or whose pools changed.
    pub service_ports: BTreeSet<ServicePortKey>,
    /// Whether the node's facts changed.
    pub node: bool,
    /// Whether the cluster's facts changed.
    pub cluster: bool,
}

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { service_ports, node, cluster } = self;
        service_ports.is_empty() && !node && !cluster
    }

    /// Adds the changes of a later commit.
    pub fn merge(&mut self, later: Self) {
        let Self { service_ports, node, cluster } = later;
        self.service_ports.extend(service_ports);
        self.node |= node;
        self.cluster |= cluster;
    }
}

//! What one commit changed, so that a backend need not look at the rest.

use std::collections::BTreeSet;

use proto::model::ServicePortKey;

/// What differs between two committed states. Compared, not guessed: a key is in here only if its service port or one of
/// its pools really differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The service ports that were added, removed or changed, or whose pools did.
    pub services: BTreeSet<ServicePortKey>,
    /// Whether the node's facts changed.
    pub node: bool,
    /// Whether the cluster's facts changed.
    pub cluster: bool,
}

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { services, node, cluster } = self;
        services.is_empty() && !node && !cluster
    }

    /// Takes in the changes of a later commit.
    pub fn merge(&mut self, later: Self) {
        let Self { services, node, cluster } = later;
        self.services.extend(services);
        self.node |= node;
        self.cluster |= cluster;
    }
}

//! The chains that all service ports share.

use iptables::Table;

use crate::names;

/// The tables that the backend writes.
pub(crate) const TABLES: [Table; 2] = [Table::Filter, Table::Nat];

/// A chain with rules of many service ports, in any order, before or after its [`FixedRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SharedChain {
    /// Jumps for cluster IPs, external IPs and load-balancer IPs.
    Services,
    /// Jumps for node ports.
    NodePorts,
    /// Rejects connections to cluster IPs without endpoints.
    UnservedServices,
    /// Rejects or drops connections to external and load-balancer IPs without endpoints.
    UnservedExternal,
    /// Rejects or drops connections to node ports without endpoints.
    UnservedNodePorts,
    /// Accepts connections to health-check node ports.
    HealthPorts,
    /// Drops connections to load-balancer IPs from outside the source ranges.
    Firewall,
    /// Rejects connections to ports of cluster IPs that no service port has.
    ClusterIps,
}

/// The rules of a [`SharedChain`] that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedRules {
    pub(crate) head: Vec<String>,
    pub(crate) tail: Vec<String>,
}

// === impl SharedChain ===

impl SharedChain {
    pub(crate) const ALL: [Self; 8] = [
        Self::Services,
        Self::NodePorts,
        Self::UnservedServices,
        Self::UnservedExternal,
        Self::UnservedNodePorts,
        Self::HealthPorts,
        Self::Firewall,
        Self::ClusterIps,
    ];

    pub(crate) const fn table(self) -> Table {
        match self {
            Self::Services | Self::NodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(crate) const fn chain(self) -> &'static str {
        match self {
            Self::Services | Self::UnservedServices => names::SERVICES,
            Self::NodePorts | Self::HealthPorts => names::NODEPORTS,
            Self::UnservedExternal => names::EXTERNAL_SERVICES,
            Self::UnservedNodePorts => names::UNSERVED_NODEPORTS,
            Self::Firewall => names::PROXY_FIREWALL,
            Self::ClusterIps => names::CLUSTER_IPS,
        }
    }

    /// The shared chain with this name.
    pub(crate) fn of(table: Table, chain: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shared| shared.table() == table && shared.chain() == chain)
    }
}

// === impl FixedRules ===

impl FixedRules {
    pub(crate) fn lines(&self) -> impl Iterator<Item = &String> {
        self.head.iter().chain(&self.tail)
    }
}

//! What there is in the two tables: chains with their rules as texts, and the chains that hold lines of many service ports.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use iptables::{ChainSpec, Hook, Table};

use crate::names;

/// The tables that the backend writes to, in the order in which it does.
pub(crate) const TABLES: [Table; 2] = [Table::Filter, Table::Nat];

/// A chain to which service ports contribute a line each, in any order; what comes before and behind is [`Ends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dispatch {
    /// To cluster IPs, external and load-balancer IPs.
    Services,
    /// To node ports.
    NodePorts,
    /// Cluster IPs without an endpoint.
    UnservedServices,
    /// External and load-balancer IPs without an endpoint.
    UnservedExternal,
    /// Node ports without an endpoint.
    UnservedNodePorts,
    /// Health-check node ports.
    HealthPorts,
    /// Load-balancer IPs, for those that source ranges do not allow.
    Firewall,
    /// Cluster IPs, for the ports that nobody has there.
    ClusterIps,
}

/// The rules of a [`Dispatch`] that belong to no service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) head: Vec<String>,
    pub(crate) tail: Vec<String>,
}

/// Where in its chain a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    First,
    Last,
}

/// Stands for a chain with its rules, a line of a [`Dispatch`] or a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mark(u64);

/// Stands for everything of ours in a family: the sum of its [`Mark`]s, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

// === impl Dispatch ===

impl Dispatch {
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

    /// Which one a chain is.
    pub(crate) fn of(table: Table, chain: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dispatch| dispatch.table() == table && dispatch.chain() == chain)
    }

    /// Whether several service ports may contribute the same line.
    pub(crate) const fn is_shared(self) -> bool {
        matches!(self, Self::HealthPorts | Self::ClusterIps)
    }

    /// What stands for a line in it.
    pub(crate) fn mark(self, line: &str) -> Mark {
        Mark::of(self.table(), self.chain(), &[line])
    }
}

// === impl Ends ===

impl Ends {
    pub(crate) fn lines(&self) -> impl Iterator<Item = &String> {
        self.head.iter().chain(&self.tail)
    }

    /// Where another line goes: no chain has both a head and a tail.
    pub(crate) fn place(&self) -> Place {
        if self.tail.is_empty() { Place::Last } else { Place::First }
    }
}

// === impl Mark ===

impl Mark {
    pub(crate) fn of<R: AsRef<str>>(table: Table, chain: &str, rules: &[R]) -> Self {
        let mut hasher = DefaultHasher::new();
        (table, chain).hash(&mut hasher);
        rules.iter().for_each(|rule| rule.as_ref().hash(&mut hasher));
        Self(hasher.finish())
    }

    pub(crate) fn of_chain(chain: &ChainSpec) -> Self {
        Self::of(chain.table, &chain.name, &chain.rules)
    }

    pub(crate) fn of_hook(hook: &Hook) -> Self {
        Self::of(hook.table, hook.chain, &[&hook.rule])
    }
}

impl FromIterator<Mark> for Fingerprint {
    fn from_iter<I: IntoIterator<Item = Mark>>(marks: I) -> Self {
        Self(marks.into_iter().fold(0, |sum, Mark(mark)| sum.wrapping_add(mark)))
    }
}

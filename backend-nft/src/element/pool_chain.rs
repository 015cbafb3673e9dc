//! The names of the chains that select an endpoint, and their parts.

use std::{fmt, num::NonZeroU32};

use proto::model::TrafficPolicy;

use super::{
    Map,
    affinity::{Affinity, PORT_CLIENT_BUCKETS},
};

/// The pool from which a chain selects an endpoint, and the steps before the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PoolChainKind {
    /// Cluster pool of a cluster IP.
    Pool,
    /// Local pool of a cluster IP.
    LocalPool,
    /// Cluster pool of a cluster IP, after the masquerade rule for cluster IPs.
    ClusterIpPool,
    /// Local pool of a cluster IP, after the same rule.
    ClusterIpLocalPool,
    /// Cluster pool of an external VIP.
    AliasPool,
    /// Local pool of an external VIP.
    AliasLocalPool,
    /// Cluster pool of an external VIP, always masqueraded.
    MasqAliasPool,
    /// Cluster pool of a node port.
    NodePortPool,
    /// Local pool of a node port.
    NodePortLocalPool,
    /// Cluster pool of a node port, always masqueraded.
    MasqNodePortPool,
}

/// A chain for pools with a number of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolChain {
    pub(crate) kind: PoolChainKind,
    /// Never 0.
    pub(crate) count: u32,
    pub(crate) affinity: Option<Affinity>,
}

/// The prefix of the names of chains with session affinity.
const AFFINE_PREFIX: &str = "affine-";

// === impl PoolChainKind ===

impl PoolChainKind {
    /// All of them, in their order, with the prefix of the chain names before the number.
    pub(crate) const ALL: [(Self, &'static str); 10] = [
        (Self::Pool, "pool-"),
        (Self::LocalPool, "local-pool-"),
        (Self::ClusterIpPool, "cluster-ip-pool-"),
        (Self::ClusterIpLocalPool, "cluster-ip-local-pool-"),
        (Self::AliasPool, "alias-pool-"),
        (Self::AliasLocalPool, "alias-local-pool-"),
        (Self::MasqAliasPool, "masq-alias-pool-"),
        (Self::NodePortPool, "nodeport-alias-pool-"),
        (Self::NodePortLocalPool, "nodeport-alias-local-pool-"),
        (Self::MasqNodePortPool, "masq-nodeport-alias-pool-"),
    ];

    /// The pool that it selects from.
    pub(crate) const fn policy(self) -> TrafficPolicy {
        match self {
            Self::LocalPool | Self::ClusterIpLocalPool | Self::AliasLocalPool | Self::NodePortLocalPool => {
                TrafficPolicy::Local
            }
            _ => TrafficPolicy::Cluster,
        }
    }

    /// The map from a VIP to the key of its pool; `None`: the VIP is the key.
    pub(crate) const fn aliases(self) -> Option<Map> {
        match self {
            Self::Pool | Self::LocalPool | Self::ClusterIpPool | Self::ClusterIpLocalPool => None,
            Self::AliasPool | Self::AliasLocalPool | Self::MasqAliasPool => Some(Map::Aliases),
            Self::NodePortPool | Self::NodePortLocalPool | Self::MasqNodePortPool => Some(Map::NodePortAliases),
        }
    }

    /// The kind of the chain that follows after the mark is set.
    pub(crate) const fn target(self) -> Option<Self> {
        match self {
            Self::ClusterIpPool => Some(Self::Pool),
            Self::ClusterIpLocalPool => Some(Self::LocalPool),
            Self::MasqAliasPool => Some(Self::AliasPool),
            Self::MasqNodePortPool => Some(Self::NodePortPool),
            _ => None,
        }
    }
}

// === impl PoolChain ===

impl PoolChain {
    /// Parses the name of a chain.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (name, affinity) = match name.strip_prefix(AFFINE_PREFIX) {
            None => (name, None),
            Some(affine) => {
                let (name, affinity) = parse_affinity(affine)?;
                (name, Some(affinity))
            }
        };

        PoolChainKind::ALL.into_iter().find_map(|(kind, prefix)| {
            let count = number(name.strip_prefix(prefix)?)?.get();
            Some(Self { kind, count, affinity })
        })
    }

    /// The chain that it jumps to.
    pub(crate) fn target(self) -> Option<Self> {
        match (self.kind.target(), self.affinity) {
            (Some(kind), _) => Some(Self { kind, ..self }),
            (None, Some(_)) => Some(Self { affinity: None, ..self }),
            (None, None) => None,
        }
    }

    /// This chain, the chain that it jumps to, and so on.
    pub(crate) fn path(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |chain| chain.target())
    }
}

impl fmt::Display for PoolChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, affinity } = self;
        let (_, prefix) = PoolChainKind::ALL[*kind as usize];
        match affinity {
            None => write!(f, "{prefix}{count}"),
            Some(Affinity { timeout, buckets }) => {
                write!(f, "{AFFINE_PREFIX}{prefix}{count}-{timeout}s")?;
                if buckets.get() == PORT_CLIENT_BUCKETS { Ok(()) } else { write!(f, "-{buckets}") }
            }
        }
    }
}

/// Splits `pool-3-60s` or `pool-3-60s-512` into the part before the timeout, and the affinity.
fn parse_affinity(name: &str) -> Option<(&str, Affinity)> {
    let (until_timeout, buckets) = match name.strip_suffix('s') {
        Some(until_timeout) => (until_timeout, NonZeroU32::new(PORT_CLIENT_BUCKETS)?),
        None => {
            let (until_timeout, digits) = name.rsplit_once('-')?;
            let buckets = number(digits)?;
            // The usual number is not written.
            if buckets.get() >= PORT_CLIENT_BUCKETS {
                return None;
            }
            (until_timeout.strip_suffix('s')?, buckets)
        }
    };
    let (pool, seconds) = until_timeout.rsplit_once('-')?;
    Some((pool, Affinity { timeout: number(seconds)?, buckets }))
}

/// A number without sign and leading zeros, as we write it.
fn number(digits: &str) -> Option<NonZeroU32> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    if is_plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pool_chains_are_parsed() {
        for name in [
            "pool-3",
            "local-pool-10",
            "alias-pool-3",
            "alias-local-pool-3",
            "nodeport-alias-pool-1",
            "nodeport-alias-local-pool-4294967295",
            "cluster-ip-pool-2",
            "cluster-ip-local-pool-2",
            "masq-alias-pool-250",
            "masq-nodeport-alias-pool-7",
            "affine-pool-3-1s",
            "affine-pool-3-1s-512",
            "affine-nodeport-alias-local-pool-10-10800s",
            "affine-cluster-ip-pool-2-4294967295s",
        ] {
            assert_eq!(PoolChain::parse(name).map(|chain| chain.to_string()).as_deref(), Some(name));
        }
        for name in [
            "pool-",
            "pool-0",
            "pool-03",
            "pool-+3",
            "pool-3 ",
            "pool-4294967296",
            "services",
            "my-pool-3",
            "pool-3-10s",
            "affine-pool-3",
            "affine-pool-3s",
            "affine-pool-3-0s",
            "affine-pool-3-010s",
            "affine-pool-3-10",
            "affine-pool-3-10s-16384",
            "affine-pool-3-10s-2048",
            "affine-pool-3-10s-0",
            "affine-pool-3-10s-512s",
            "masq-pool-2",
            "affine-pool-0-10s",
            "affine-affine-pool-3-10s",
        ] {
            assert_eq!(PoolChain::parse(name), None, "{name:?}");
        }
    }
}

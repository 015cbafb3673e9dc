//! The chains that select an endpoint: one for each number of endpoints, shared by all service ports with that number.
//! A chain is created when the first service port needs it; unused chains are deleted when there are many.
//!
//! ```text
//!   vips      ──▶ cluster-ip-pool-3 (mark, unless from a pod) ──▶ pool-3 ──▶ endpoints { VIP . 0, VIP . 1, VIP . 2 }
//!   vips      ──▶ masq-alias-pool-3 (mark) ──▶ alias-pool-3 ──aliases { other } = VIP──▶ endpoints { VIP . 0, ... }
//!   nodeports ──▶ masq-nodeport-alias-pool-3 ─▶ nodeport-alias-pool-3 ── ... ──▶ endpoints { VIP . 0, ... }
//!
//!   with session affinity, one chain for each number, timeout and (if there are many ports) number of client buckets:
//!   vips ──▶ affine-cluster-ip-pool-3-60s (mark, ...) ──▶ affine-pool-3-60s ──set full──▶ pool-3
//! ```

use std::{fmt, num::NonZeroU32};

use backend::dataplane::{EffectiveOptions, Masquerade};
use netlink::nft::Rule;
use proto::model::{IpFamily, TrafficPolicy};

use super::{
    affinity::{self, Affinity, AffinityMaps, PORT_CLIENT_BUCKETS},
    rule::{PoolAccess, RuleBuilder},
};
use crate::element::Map;

/// What a chain does before it selects an endpoint, and from which pool.
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
const AFFINE: &str = "affine-";

// === impl PoolChainKind ===

impl PoolChainKind {
    /// All of them, in their order, with the prefix of the chain names before the number.
    pub(super) const ALL: [(Self, &'static str); 10] = [
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

    const fn access(self) -> PoolAccess {
        match self {
            Self::Pool | Self::LocalPool | Self::ClusterIpPool | Self::ClusterIpLocalPool => PoolAccess::Direct,
            Self::AliasPool | Self::AliasLocalPool | Self::MasqAliasPool => PoolAccess::Alias,
            Self::NodePortPool | Self::NodePortLocalPool | Self::MasqNodePortPool => PoolAccess::NodePort,
        }
    }

    /// The map from a VIP to the key of its pool; `None`: the VIP is the key.
    pub(crate) const fn aliases(self) -> Option<Map> {
        match self.access() {
            PoolAccess::Direct => None,
            PoolAccess::Alias => Some(Map::Aliases),
            PoolAccess::NodePort => Some(Map::NodePortAliases),
        }
    }

    /// The kind of the chain that follows after the mark is set.
    const fn target(self) -> Option<Self> {
        match self {
            Self::ClusterIpPool => Some(Self::Pool),
            Self::ClusterIpLocalPool => Some(Self::LocalPool),
            Self::MasqAliasPool => Some(Self::AliasPool),
            Self::MasqNodePortPool => Some(Self::NodePortPool),
            _ => None,
        }
    }
}

/// The map with the endpoints of a pool for this policy and size.
pub(crate) const fn endpoints(policy: TrafficPolicy, count: u32) -> Map {
    match policy {
        TrafficPolicy::Cluster => Map::endpoints(count),
        TrafficPolicy::Local => Map::LocalEndpoints,
    }
}

/// The maps and sets for session affinity with a pool for this policy.
pub(super) const fn affinity_maps(policy: TrafficPolicy) -> AffinityMaps {
    match policy {
        TrafficPolicy::Cluster => AffinityMaps { endpoints: Map::AffineEndpoints, live: Map::Live },
        TrafficPolicy::Local => AffinityMaps { endpoints: Map::LocalAffineEndpoints, live: Map::LocalLive },
    }
}

// === impl PoolChain ===

impl PoolChain {
    /// Parses the name of a chain.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (name, affinity) = match name.strip_prefix(AFFINE) {
            None => (name, None),
            Some(affine) => {
                let (affine, buckets) = match affine.strip_suffix('s') {
                    Some(affine) => (affine, NonZeroU32::new(PORT_CLIENT_BUCKETS)?),
                    None => {
                        let (affine, buckets) = affine.rsplit_once('-')?;
                        let is_less = |buckets: &NonZeroU32| buckets.get() < PORT_CLIENT_BUCKETS;
                        (affine.strip_suffix('s')?, number(buckets).filter(is_less)?)
                    }
                };
                let (name, seconds) = affine.rsplit_once('-')?;
                (name, Some(Affinity { timeout: number(seconds)?, buckets }))
            }
        };
        PoolChainKind::ALL.into_iter().find_map(|(kind, prefix)| {
            let count = number(name.strip_prefix(prefix)?)?.get();
            Some(Self { kind, count, affinity })
        })
    }

    /// The map with the endpoints that it selects from.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn endpoints(self) -> Map {
        endpoints(self.kind.policy(), self.count)
    }

    /// The same for rules of session affinity.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn affine_endpoints(self) -> Map {
        affinity_maps(self.kind.policy()).endpoints
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

    pub(crate) fn rules(self, family: IpFamily, effective: &EffectiveOptions) -> Vec<Rule> {
        let Some(target) = self.target() else { return self.endpoint_rules(family) };
        if let (None, Some(affinity)) = (self.kind.target(), self.affinity) {
            return affinity::rules(family, self.kind.access(), affinity_maps(self.kind.policy()), affinity, target);
        }
        let mark = effective.masquerade_mark;
        let builder = RuleBuilder::new(family);
        let marking = match self.kind {
            PoolChainKind::ClusterIpPool | PoolChainKind::ClusterIpLocalPool => match effective.masquerade[family] {
                Masquerade::Never => None,
                Masquerade::Always => Some(builder.set_mark(mark).comment("masquerade all")),
                Masquerade::UnlessPod => builder
                    .not_from_pod(&effective.pods[family])
                    .map(|builder| builder.set_mark(mark).comment("masquerade, unless from a pod")),
            },
            _ => Some(builder.set_mark(mark).comment("masquerade")),
        };
        let jump = RuleBuilder::new(family).goto(target.to_string()).build();
        marking.into_iter().chain([jump]).collect()
    }

    /// A packet may be matched with an old verdict and new maps, or the reverse. Then its slot may not exist any more,
    /// but slot 0 exists as long as the pool is not empty. Otherwise the packet is dropped: if it left untranslated,
    /// conntrack would leave its connection untranslated.
    fn endpoint_rules(self, family: IpFamily) -> Vec<Rule> {
        let (access, map) = (self.kind.access(), endpoints(self.kind.policy(), self.count));
        let suffix = match self.kind.policy() {
            TrafficPolicy::Cluster => "",
            TrafficPolicy::Local => " on this node",
        };
        // nft prints a key that was looked up like that of the packet.
        let of_pool = self.kind.aliases().map(|aliases| format!(", of the pool in @{}", aliases.name()));
        let of_pool = of_pool.unwrap_or_default();
        let what = match self.count {
            1 => format!("the only endpoint{suffix}{of_pool}"),
            count => format!("one of {count} endpoints{suffix}{of_pool}"),
        };
        let mut rules = vec![RuleBuilder::new(family).dnat(access, map, self.count).comment(what)];
        if self.count > 1 {
            rules.push(RuleBuilder::new(family).dnat(access, map, 1).comment("the pool has just shrunk: its first"));
        }
        rules.push(RuleBuilder::new(family).drop_packet().comment("the pool has just gone"));
        rules
    }
}

impl fmt::Display for PoolChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, affinity } = self;
        let (_, prefix) = PoolChainKind::ALL[*kind as usize];
        match affinity {
            None => write!(f, "{prefix}{count}"),
            Some(Affinity { timeout, buckets }) => {
                write!(f, "{AFFINE}{prefix}{count}-{timeout}s")?;
                if buckets.get() == PORT_CLIENT_BUCKETS { Ok(()) } else { write!(f, "-{buckets}") }
            }
        }
    }
}

/// A number without sign and leading zeros, as we write it.
fn number(digits: &str) -> Option<NonZeroU32> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

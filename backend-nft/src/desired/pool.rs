//! The chains that select an endpoint: one for each number of endpoints, shared by all service ports with that number.
//! A chain is created when the first service port needs it; unused chains are deleted when there are many.
//!
//! ```text
//!   vips ──▶ cluster-ip-pool-3 (mark, unless from a pod) ──▶ pool-3 ──▶ endpoints { VIP . 0, VIP . 1, VIP . 2 }
//!   vips ──▶ masq-pool-3       (mark)                    ──▶ pool-3
//!
//!   with session affinity, one chain for each number and timeout:
//!   vips ──▶ affine-cluster-ip-pool-3-60s (mark, ...) ──▶ affine-pool-3-60s ──set full──▶ pool-3
//! ```

use std::{fmt, num::NonZeroU32};

use backend::dataplane::{EffectiveOptions, Masquerade, PodMatch};
use netlink::nft::{CmpOp, Rule};
use proto::model::{IpFamily, PoolClass};

use super::{
    affinity::{self, AffinityMaps},
    rule::{PacketAddress, RuleBuilder},
};
use crate::element::Map;

/// What a chain does before it selects an endpoint, and from which pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PoolChainKind {
    /// Cluster pool of a VIP.
    Pool,
    /// Local pool of a VIP.
    LocalPool,
    /// Cluster pool of a node port.
    NodePortPool,
    /// Local pool of a node port.
    NodePortLocalPool,
    /// Cluster pool of a cluster IP, after the masquerade rule for cluster IPs.
    ClusterIpPool,
    /// Local pool of a cluster IP, after the same rule.
    ClusterIpLocalPool,
    /// Cluster pool of a VIP, always masqueraded.
    MasqPool,
    /// Cluster pool of a node port, always masqueraded.
    MasqNodePortPool,
}

/// A chain for pools with a number of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolChain {
    pub(crate) kind: PoolChainKind,
    /// Never 0.
    pub(crate) count: u32,
    /// The timeout of session affinity: seconds from the last connection of a client to its removal.
    pub(crate) affinity: Option<NonZeroU32>,
}

/// The prefix of the names of chains with session affinity.
const AFFINE: &str = "affine-";

// === impl PoolChainKind ===

impl PoolChainKind {
    /// All of them, in their order, with the prefix of the chain names before the number.
    const ALL: [(Self, &'static str); 8] = [
        (Self::Pool, "pool-"),
        (Self::LocalPool, "local-pool-"),
        (Self::NodePortPool, "nodeport-pool-"),
        (Self::NodePortLocalPool, "nodeport-local-pool-"),
        (Self::ClusterIpPool, "cluster-ip-pool-"),
        (Self::ClusterIpLocalPool, "cluster-ip-local-pool-"),
        (Self::MasqPool, "masq-pool-"),
        (Self::MasqNodePortPool, "masq-nodeport-pool-"),
    ];

    /// The pool that it selects from.
    pub(crate) const fn class(self) -> PoolClass {
        match self {
            Self::LocalPool | Self::NodePortLocalPool | Self::ClusterIpLocalPool => PoolClass::Local,
            _ => PoolClass::Cluster,
        }
    }

    /// The map with the endpoints of pools of this size.
    pub(crate) const fn endpoints(self, count: u32) -> Map {
        match self {
            Self::Pool | Self::ClusterIpPool | Self::MasqPool => Map::endpoints(count),
            Self::LocalPool | Self::ClusterIpLocalPool => Map::LocalEndpoints,
            Self::NodePortPool | Self::MasqNodePortPool => Map::NodePortEndpoints,
            Self::NodePortLocalPool => Map::NodePortLocalEndpoints,
        }
    }

    /// The maps and sets for session affinity.
    pub(super) const fn affinity(self) -> AffinityMaps {
        let (endpoints, clients, live) = match self {
            Self::Pool | Self::ClusterIpPool | Self::MasqPool => (Map::AffineEndpoints, Map::Affinity, Map::Live),
            Self::LocalPool | Self::ClusterIpLocalPool => (Map::LocalAffineEndpoints, Map::Affinity, Map::LocalLive),
            Self::NodePortPool | Self::MasqNodePortPool => {
                (Map::NodePortAffineEndpoints, Map::NodePortAffinity, Map::NodePortLive)
            }
            Self::NodePortLocalPool => {
                (Map::NodePortLocalAffineEndpoints, Map::NodePortAffinity, Map::NodePortLocalLive)
            }
        };
        AffinityMaps { endpoints, clients, live }
    }

    /// The kind of the chain that follows after the mark is set.
    const fn target(self) -> Option<Self> {
        match self {
            Self::ClusterIpPool | Self::MasqPool => Some(Self::Pool),
            Self::ClusterIpLocalPool => Some(Self::LocalPool),
            Self::MasqNodePortPool => Some(Self::NodePortPool),
            _ => None,
        }
    }
}

// === impl PoolChain ===

impl PoolChain {
    /// Parses the name of a chain.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (name, affinity) = match name.strip_prefix(AFFINE) {
            None => (name, None),
            Some(affine) => {
                let (name, seconds) = affine.strip_suffix('s')?.rsplit_once('-')?;
                (name, Some(number(seconds)?))
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

    /// The rules of the chain.
    pub(crate) fn rules(self, family: IpFamily, effective: &EffectiveOptions) -> Vec<Rule> {
        let Some(target) = self.target() else { return self.endpoint_rules(family) };
        if let (None, Some(timeout)) = (self.kind.target(), self.affinity) {
            return affinity::rules(family, self.kind.affinity(), timeout, target);
        }
        let mark = effective.masquerade_mark;
        let builder = RuleBuilder::new(family);
        let marking = match self.kind {
            PoolChainKind::ClusterIpPool | PoolChainKind::ClusterIpLocalPool => match effective.masquerade[family] {
                Masquerade::Never => None,
                Masquerade::Always => Some(builder.set_mark(mark).comment("masquerade all")),
                Masquerade::UnlessPod => unless_from_pod(builder, &effective.pods[family])
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
        let map = self.kind.endpoints(self.count);
        let suffix = match self.kind.class() {
            PoolClass::Cluster => "",
            PoolClass::Local => " on this node",
        };
        let what = match self.count {
            1 => format!("the only endpoint{suffix}"),
            count => format!("one of {count} endpoints{suffix}"),
        };
        let mut rules = vec![RuleBuilder::new(family).dnat(map, self.count).comment(what)];
        if self.count > 1 {
            rules.push(RuleBuilder::new(family).dnat(map, 1).comment("the pool has just shrunk: its first"));
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
            Some(seconds) => write!(f, "{AFFINE}{prefix}{count}-{seconds}s"),
        }
    }
}

/// Adds the condition that the source is not a pod. `None`: pods are not recognized, or all sources are pods.
fn unless_from_pod(builder: RuleBuilder, pods: &PodMatch) -> Option<RuleBuilder> {
    match pods {
        PodMatch::Unknown => None,
        // No address is outside of this CIDR.
        PodMatch::Source(cidrs) if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
        PodMatch::Source(cidrs) => Some(builder.not_in_cidrs(PacketAddress::Source, cidrs)),
        PodMatch::Interface(interface) => Some(builder.input_interface(CmpOp::Neq, interface)),
        PodMatch::InterfacePrefix(prefix) => Some(builder.input_interface_prefix(CmpOp::Neq, prefix)),
    }
}

/// A number without sign and leading zeros, as we write it.
fn number(digits: &str) -> Option<NonZeroU32> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

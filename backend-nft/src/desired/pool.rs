//! The chains that choose an endpoint: one for each distinct number of endpoints, shared by all service ports that have
//! so many, made when the first needs it and deleted when nobody does any more.
//!
//! ```text
//!   vips ──▶ cluster-ip-pool-3 (mark, unless from a pod) ──▶ pool-3 ──▶ endpoints { VIP . 0, VIP . 1, VIP . 2 }
//!   vips ──▶ masq-pool-3       (mark)                    ──▶ pool-3
//!
//!   with session affinity, one for each number and timeout:
//!   vips ──▶ affine-cluster-ip-pool-3-60s (mark, ...) ──▶ affine-pool-3-60s ──set full──▶ pool-3
//! ```

use std::{fmt, num::NonZeroU32};

use backend::dataplane::{EffectiveOptions, Masquerade, PodMatch};
use netlink::nft::{CmpOp, Rule};
use proto::model::{IpFamily, PoolClass};

use super::{
    affinity,
    rule::{Address, Line},
};
use crate::element::Map;

/// What happens on the way to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PoolKind {
    /// Cluster pool of a VIP.
    Pool,
    /// Local pool of a VIP.
    LocalPool,
    /// Cluster pool of a node port.
    NodePortPool,
    /// Local pool of a node port.
    NodePortLocalPool,
    /// Cluster pool of a cluster IP, behind the masquerade rule for cluster IPs.
    ClusterIpPool,
    /// Local pool of a cluster IP, behind the same rule.
    ClusterIpLocalPool,
    /// Cluster pool of a VIP, always masqueraded.
    MasqPool,
    /// Cluster pool of a node port, always masqueraded.
    MasqNodePortPool,
}

/// A chain for pools of so many endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolChain {
    pub(crate) kind: PoolKind,
    /// Never 0.
    pub(crate) count: u32,
    /// With session affinity: how many seconds after its last connection a client is forgotten.
    pub(crate) affinity: Option<NonZeroU32>,
}

/// What the names of chains with session affinity begin with.
const AFFINE: &str = "affine-";

// === impl PoolKind ===

impl PoolKind {
    const ALL: [Self; 8] = [
        Self::Pool,
        Self::LocalPool,
        Self::NodePortPool,
        Self::NodePortLocalPool,
        Self::ClusterIpPool,
        Self::ClusterIpLocalPool,
        Self::MasqPool,
        Self::MasqNodePortPool,
    ];

    /// Its chains' names, up to the number.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Pool => "pool-",
            Self::LocalPool => "local-pool-",
            Self::NodePortPool => "nodeport-pool-",
            Self::NodePortLocalPool => "nodeport-local-pool-",
            Self::ClusterIpPool => "cluster-ip-pool-",
            Self::ClusterIpLocalPool => "cluster-ip-local-pool-",
            Self::MasqPool => "masq-pool-",
            Self::MasqNodePortPool => "masq-nodeport-pool-",
        }
    }

    /// Which pool's endpoints it leads to.
    pub(crate) const fn class(self) -> PoolClass {
        match self {
            Self::LocalPool | Self::NodePortLocalPool | Self::ClusterIpLocalPool => PoolClass::Local,
            _ => PoolClass::Cluster,
        }
    }

    /// The map with these endpoints, of pools that have so many.
    pub(crate) const fn endpoints(self, count: u32) -> Map {
        match self {
            Self::Pool | Self::ClusterIpPool | Self::MasqPool => Map::endpoints(count),
            Self::LocalPool | Self::ClusterIpLocalPool => Map::LocalEndpoints,
            Self::NodePortPool | Self::MasqNodePortPool => Map::NodePortEndpoints,
            Self::NodePortLocalPool => Map::NodePortLocalEndpoints,
        }
    }

    /// The maps and sets for session affinity with these endpoints.
    pub(super) const fn affinity(self) -> affinity::Maps {
        match self {
            Self::Pool | Self::ClusterIpPool | Self::MasqPool => {
                affinity::Maps { endpoints: Map::AffineEndpoints, clients: Map::Affinity, live: Map::Live }
            }
            Self::LocalPool | Self::ClusterIpLocalPool => {
                affinity::Maps { endpoints: Map::LocalAffineEndpoints, clients: Map::Affinity, live: Map::LocalLive }
            }
            Self::NodePortPool | Self::MasqNodePortPool => affinity::Maps {
                endpoints: Map::NodePortAffineEndpoints,
                clients: Map::NodePortAffinity,
                live: Map::NodePortLive,
            },
            Self::NodePortLocalPool => affinity::Maps {
                endpoints: Map::NodePortLocalAffineEndpoints,
                clients: Map::NodePortAffinity,
                live: Map::NodePortLocalLive,
            },
        }
    }

    /// The kind of chain behind the mark.
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
    /// Reads a name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (name, affinity) = match name.strip_prefix(AFFINE) {
            None => (name, None),
            Some(affine) => {
                let (name, seconds) = affine.strip_suffix('s')?.rsplit_once('-')?;
                (name, Some(number(seconds)?))
            }
        };
        PoolKind::ALL.into_iter().find_map(|kind| {
            let count = number(name.strip_prefix(kind.prefix())?)?.get();
            Some(Self { kind, count, affinity })
        })
    }

    /// The chain that it goes on to.
    pub(crate) fn target(self) -> Option<Self> {
        match (self.kind.target(), self.affinity) {
            (Some(kind), _) => Some(Self { kind, ..self }),
            (None, Some(_)) => Some(Self { affinity: None, ..self }),
            (None, None) => None,
        }
    }

    /// It, the chain that it goes on to, and so on.
    pub(crate) fn path(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |chain| chain.target())
    }

    /// Its rules.
    pub(crate) fn rules(self, family: IpFamily, effective: &EffectiveOptions) -> Vec<Rule> {
        let Some(target) = self.target() else { return self.choose(family) };
        if let (None, Some(timeout)) = (self.kind.target(), self.affinity) {
            return affinity::rules(family, self.kind.affinity(), timeout, target);
        }
        let mark = effective.masquerade_mark;
        let line = Line::new(family);
        let marking = match self.kind {
            PoolKind::ClusterIpPool | PoolKind::ClusterIpLocalPool => match effective.masquerade[family] {
                Masquerade::Never => None,
                Masquerade::Always => Some(line.mark(mark).comment("masquerade all")),
                Masquerade::UnlessPod => not_from_a_pod(line, &effective.pods[family])
                    .map(|line| line.mark(mark).comment("masquerade, unless from a pod")),
            },
            _ => Some(line.mark(mark).comment("masquerade")),
        };
        let go_on = Line::new(family).goto(target.to_string()).end();
        marking.into_iter().chain([go_on]).collect()
    }

    /// A packet may see an old verdict and new maps, or the reverse: then its place may be gone, but there is place 0
    /// while there is any. It must never leave untranslated, for its connection would stay so.
    fn choose(self, family: IpFamily) -> Vec<Rule> {
        let map = self.kind.endpoints(self.count);
        let place = match self.kind.class() {
            PoolClass::Cluster => "",
            PoolClass::Local => " on this node",
        };
        let what = match self.count {
            1 => format!("the only endpoint{place}"),
            count => format!("one of {count} endpoints{place}"),
        };
        let mut rules = vec![Line::new(family).dnat(map, self.count).comment(what)];
        if self.count > 1 {
            rules.push(Line::new(family).dnat(map, 1).comment("the pool has just shrunk: its first"));
        }
        rules.push(Line::new(family).discard().comment("the pool has just gone"));
        rules
    }
}

impl fmt::Display for PoolChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, affinity } = self;
        match affinity {
            None => write!(f, "{}{count}", kind.prefix()),
            Some(seconds) => write!(f, "{AFFINE}{}{count}-{seconds}s", kind.prefix()),
        }
    }
}

/// `None`: pods cannot be told from others at present.
fn not_from_a_pod(line: Line, pods: &PodMatch) -> Option<Line> {
    match pods {
        PodMatch::Unknown => None,
        // What nothing is outside of needs no rule.
        PodMatch::Source(cidrs) if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
        PodMatch::Source(cidrs) => Some(line.outside(Address::Source, cidrs)),
        PodMatch::Interface(interface) => Some(line.behind(CmpOp::Neq, interface)),
        PodMatch::InterfacePrefix(prefix) => Some(line.behind_prefix(CmpOp::Neq, prefix)),
    }
}

/// A number as we write it.
fn number(digits: &str) -> Option<NonZeroU32> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

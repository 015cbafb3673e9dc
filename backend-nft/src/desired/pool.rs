//! The rules of the chains that select an endpoint: one chain for each number of endpoints, shared by all service ports
//! with that number. It is created when the first service port needs it; unused chains are deleted when there are many.
//!
//! ```text
//!   vips      ──▶ cluster-ip-pool-3 (mark, unless from a pod) ──▶ pool-3 ──▶ endpoints { VIP . 0, VIP . 1, VIP . 2 }
//!   vips      ──▶ masq-alias-pool-3 (mark) ──▶ alias-pool-3 ──aliases { other } = VIP──▶ endpoints { VIP . 0, ... }
//!   nodeports ──▶ masq-nodeport-alias-pool-3 ─▶ nodeport-alias-pool-3 ── ... ──▶ endpoints { VIP . 0, ... }
//!
//!   with session affinity, one chain for each number, timeout and (if there are many ports) number of client buckets:
//!   vips ──▶ affine-cluster-ip-pool-3-60s (mark, ...) ──▶ affine-pool-3-60s ──set full──▶ pool-3
//! ```

use backend::dataplane::{EffectiveOptions, Masquerade};
use netlink::nft::Rule;
use proto::model::{IpFamily, TrafficPolicy};

use super::{affinity, rule::RuleBuilder};
use crate::element::{Map, PoolChain, PoolChainKind};

/// The map with the endpoints of a pool for this policy and size.
pub(crate) const fn endpoints(policy: TrafficPolicy, count: u32) -> Map {
    match policy {
        TrafficPolicy::Cluster => Map::endpoints(count),
        TrafficPolicy::Local => Map::LocalEndpoints,
    }
}

// === impl PoolChain ===

impl PoolChain {
    /// The map with the endpoints that it selects from.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn endpoints(self) -> Map {
        endpoints(self.kind.policy(), self.count)
    }

    /// The map with the endpoints that rules of session affinity select from.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn affine_endpoints(self) -> Map {
        affinity::endpoints(self.kind.policy())
    }

    /// The rules of the chain.
    pub(crate) fn rules(self, family: IpFamily, effective: &EffectiveOptions) -> Vec<Rule> {
        let Some(target) = self.target() else { return self.endpoint_rules(family) };
        if let (None, Some(affinity)) = (self.kind.target(), self.affinity) {
            return affinity::rules(family, self.kind.aliases(), self.kind.policy(), affinity, target);
        }

        let mut rules = Vec::new();
        rules.extend(self.masquerade_rule(family, effective));
        rules.push(RuleBuilder::new(family).goto(target.to_string()).build());
        rules
    }

    /// The rule that marks packets to be masqueraded; `None`: no packet is.
    fn masquerade_rule(self, family: IpFamily, effective: &EffectiveOptions) -> Option<Rule> {
        let mark = effective.masquerade_mark;
        let builder = RuleBuilder::new(family);
        if !matches!(self.kind, PoolChainKind::ClusterIpPool | PoolChainKind::ClusterIpLocalPool) {
            return Some(builder.set_mark(mark).comment("masquerade"));
        }
        match effective.masquerade[family] {
            Masquerade::Never => None,
            Masquerade::Always => Some(builder.set_mark(mark).comment("masquerade all")),
            Masquerade::UnlessPod => {
                let not_from_pod = builder.not_from_pod(&effective.pods[family])?;
                Some(not_from_pod.set_mark(mark).comment("masquerade, unless from a pod"))
            }
        }
    }

    /// A packet may be matched with an old verdict and new maps, or the reverse. Then its slot may not exist any more,
    /// but slot 0 exists as long as the pool is not empty. Otherwise the packet is dropped: if it left untranslated,
    /// conntrack would leave its connection untranslated.
    fn endpoint_rules(self, family: IpFamily) -> Vec<Rule> {
        let aliases = self.kind.aliases();
        let map = endpoints(self.kind.policy(), self.count);
        let mut comment = match self.count {
            1 => "the only endpoint".to_owned(),
            count => format!("one of {count} endpoints"),
        };
        if self.kind.policy() == TrafficPolicy::Local {
            comment += " on this node";
        }
        if let Some(aliases) = aliases {
            // nft prints a key that was looked up like that of the packet.
            comment += ", of the pool in @";
            comment += aliases.name();
        }

        let mut rules = vec![RuleBuilder::new(family).dnat(aliases, map, self.count).comment(comment)];
        if self.count > 1 {
            rules.push(RuleBuilder::new(family).dnat(aliases, map, 1).comment("the pool has just shrunk: its first"));
        }
        rules.push(RuleBuilder::new(family).drop_packet().comment("the pool has just gone"));
        rules
    }
}

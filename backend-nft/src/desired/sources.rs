//! Groups of source ranges: which sources may use the load-balancer IPs of a service port.
//!
//! The ranges of a service port are one list of disjoint prefixes, whose hash names the group. All service ports with
//! the same list share the group: its chain, and its elements in one set. So the cost is that of the distinct lists,
//! however many VIPs and ports use them. The set is exact-match, since the kernel's time to insert ranges into an
//! interval set grows with the square of their number; the chain has a rule for each prefix length of its group.
//!
//! ```text
//!   restricted-vips { VIP } ─▶ sources-<group>:  allowed-sources { group . 8  . source & 255.0.0.0 }     return
//!                                                allowed-sources { group . 24 . source & 255.255.255.0 } return
//!                                                drop
//! ```

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use backend::dataplane::allowed_sources_of_family;
use ipnet::IpNet;
use netlink::nft::Rule;
use proto::model::{IpFamily, ServicePort};

use super::rule::RuleBuilder;
use crate::element::SourceGroupId;

/// A group of source ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceGroup {
    pub(crate) id: SourceGroupId,
    /// The source ranges as prefixes of one family: sorted, disjoint, as few as possible.
    pub(crate) prefixes: Arc<[IpNet]>,
}

/// The sources that may use the load-balancer IPs of a service port; `None`: all. `node`: the addresses of the node.
pub(super) fn allowed(port: &ServicePort, family: IpFamily, node: &[IpAddr]) -> Option<SourceGroup> {
    SourceGroup::new(&allowed_sources_of_family(port, family, node)?)
}

// === impl SourceGroup ===

impl SourceGroup {
    /// `None`: the prefixes contain all addresses.
    fn new(cidrs: &Vec<IpNet>) -> Option<Self> {
        let mut prefixes = IpNet::aggregate(cidrs);
        if prefixes.iter().any(|prefix| prefix.prefix_len() == 0) {
            return None;
        }
        prefixes.sort_unstable();
        Some(Self { id: SourceGroupId::of(&prefixes), prefixes: prefixes.into() })
    }

    /// The rules of its chain.
    pub(crate) fn rules(&self, family: IpFamily) -> Vec<Rule> {
        let lengths: BTreeSet<u8> = self.prefixes.iter().map(IpNet::prefix_len).collect();
        let mut rules = Vec::with_capacity(lengths.len() + 1);
        for length in lengths {
            let allowed = RuleBuilder::new(family).source_in_group(self.id, length).return_to_caller();
            rules.push(allowed.comment(format!("a source range with prefix length {length}")));
        }
        rules.push(RuleBuilder::new(family).drop_packet().comment("not from a source range of the service"));
        rules
    }
}

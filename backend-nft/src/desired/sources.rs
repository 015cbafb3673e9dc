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

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use backend::dataplane::{Vip, allowed_sources_of_family};
use ipnet::IpNet;
use netlink::nft::Rule;
use proto::model::{IpFamily, ServicePort};
use ring::digest::{SHA256, digest};

use super::rule::RuleBuilder;
use crate::element::{Element, ElementData, Map};

/// The first half of the SHA-256 hash of the prefixes: a tenant must not be able to construct a list with the hash of
/// another tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceGroupId(pub(crate) [u8; 16]);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceGroup {
    pub(crate) id: SourceGroupId,
    /// Sorted, disjoint, as few as possible, of one family.
    pub(crate) prefixes: Arc<[IpNet]>,
}

/// The prefix of the names of chains.
const CHAIN: &str = "sources-";

/// The sources that may use the load-balancer IPs of a service port; `None`: all. `node`: the addresses of the node.
pub(super) fn allowed(port: &ServicePort, family: IpFamily, node: &[IpAddr]) -> Option<SourceGroup> {
    SourceGroup::new(&allowed_sources_of_family(port, family, node)?)
}

// === impl SourceGroup ===

impl SourceGroup {
    /// `None`: the prefixes contain all addresses.
    fn new(cidrs: &Vec<IpNet>) -> Option<Self> {
        let mut prefixes = IpNet::aggregate(cidrs);
        prefixes.sort_unstable();
        let is_restricted = prefixes.iter().all(|prefix| prefix.prefix_len() > 0);
        is_restricted.then(|| Self { id: SourceGroupId::of(&prefixes), prefixes: prefixes.into() })
    }

    pub(crate) fn rules(&self, family: IpFamily) -> Vec<Rule> {
        let lengths: BTreeSet<u8> = self.prefixes.iter().map(IpNet::prefix_len).collect();
        let allowed = lengths.into_iter().map(|length| {
            let builder = RuleBuilder::new(family).source_in_group(self.id, length).return_to_caller();
            builder.comment(format!("a source range with prefix length {length}"))
        });
        let drop = RuleBuilder::new(family).drop_packet().comment("not from a source range of the service");
        allowed.chain([drop]).collect()
    }
}

// === impl SourceGroupId ===

impl SourceGroupId {
    /// The id of a group with these prefixes, which are sorted.
    pub(crate) fn of(prefixes: &[IpNet]) -> Self {
        let mut bytes = Vec::with_capacity(prefixes.len() * 17);
        for prefix in prefixes {
            match prefix.addr() {
                IpAddr::V4(address) => bytes.extend(address.octets()),
                IpAddr::V6(address) => bytes.extend(address.octets()),
            }
            bytes.push(prefix.prefix_len());
        }
        let mut id = [0; 16];
        id.iter_mut().zip(digest(&SHA256, &bytes).as_ref()).for_each(|(to, byte)| *to = *byte);
        Self(id)
    }

    /// Parses the name of a chain.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(name.strip_prefix(CHAIN)?, 16).ok()?.to_be_bytes());
        (id.to_string() == name).then_some(id)
    }

    pub(crate) fn element(self, prefix: &IpNet) -> Element {
        let data = ElementData::Source(self);
        let index = prefix.prefix_len().into();
        Element { vip: Vip::Address(prefix.network()), map: Map::AllowedSources, index, data }
    }
}

impl fmt::Display for SourceGroupId {
    /// The name of its chain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CHAIN}{:032x}", u128::from_be_bytes(self.0))
    }
}

//! The names of groups of source ranges.

use std::{fmt, net::IpAddr};

use backend::dataplane::Vip;
use ipnet::IpNet;
use ring::digest::{SHA256, digest};

use super::{Element, ElementData, Map};

/// The first half of the SHA-256 hash of the prefixes: a tenant must not be able to construct a list with the hash of
/// another tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourceGroupId(pub(crate) [u8; 16]);

/// The prefix of the names of chains.
const CHAIN: &str = "sources-";

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

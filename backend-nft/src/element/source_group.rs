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
const CHAIN_PREFIX: &str = "sources-";

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

        let hash = digest(&SHA256, &bytes);
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_ref()[..16]);
        Self(id)
    }

    /// Parses the name of a chain.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let number = u128::from_str_radix(name.strip_prefix(CHAIN_PREFIX)?, 16).ok()?;
        let id = Self(number.to_be_bytes());
        // Only as it is written: without a sign, with leading zeros, in lower case.
        if id.to_string() == name { Some(id) } else { None }
    }

    /// The element of [`Map::AllowedSources`] for a prefix of the group.
    pub(crate) fn element(self, prefix: &IpNet) -> Element {
        let vip = Vip::Address(prefix.network());
        let index = prefix.prefix_len().into();
        Element { vip, map: Map::AllowedSources, index, data: ElementData::Source(self) }
    }
}

impl fmt::Display for SourceGroupId {
    /// The name of its chain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CHAIN_PREFIX}{:032x}", u128::from_be_bytes(self.0))
    }
}

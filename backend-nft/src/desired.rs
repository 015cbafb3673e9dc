//! What should be in the kernel, pure: the fixed chains and rules ([`base`]), the chains that are made on demand
//! ([`PoolChain`]), and what each service port puts into the maps ([`Desired`]).

mod affinity;
mod base;
mod endpoint_keys;
mod pool;
mod rule;
mod service;
mod sources;
#[cfg(test)]
mod tests;

pub(crate) use base::{Base, FixedChain, base, table};
pub(crate) use endpoint_keys::EndpointKeys;
pub(crate) use pool::{PoolChain, PoolKind};
pub(crate) use service::{Desired, Slots, desired};

/// The family as nft calls it.
pub(crate) fn nft_family(family: proto::model::IpFamily) -> netlink::nft::TableFamily {
    match family {
        proto::model::IpFamily::V4 => netlink::nft::TableFamily::Ip,
        proto::model::IpFamily::V6 => netlink::nft::TableFamily::Ip6,
    }
}

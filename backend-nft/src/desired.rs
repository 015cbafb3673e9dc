//! The desired state, pure: the base ruleset ([`base`]), the rules of the chains that are created on demand
//! ([`PoolChain`](crate::element::PoolChain)), and the map elements of each service port ([`Desired`]).

mod affinity;
mod base;
mod endpoint_keys;
mod pool;
mod rule;
mod service;
mod sources;
#[cfg(test)]
mod tests;

pub use base::is_own_table;
pub(crate) use base::{Base, FixedChain, base, table};
pub(crate) use endpoint_keys::EndpointKeys;
#[cfg(test)]
pub(crate) use service::work;
pub(crate) use service::{Desired, Slots, desired, pool_key, vip_of_key};
pub(crate) use sources::SourceGroup;

/// What one service port should have.
pub(crate) type Update = backend::driver::ServicePortUpdate<Box<Desired>>;

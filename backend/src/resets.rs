//! Resets TCP connections to endpoints that are gone. Nothing answers for such an endpoint: its clients would wait
//! until they give up, for up to a quarter of an hour.
//!
//! ```text
//!   GonePort: VIP ──▶ gone endpoints      conntrack: client ──▶ VIP, endpoint ──▶ client
//!        └──────────── is_gone(flow) ──────────────┘
//!   for each such connection:
//!     rejecter  packets from VIP to endpoint are rejected with a reset        (for at most a minute)
//!     probe     client ◀── SYN ACK ── "endpoint"; client ── ACK ──▶ rejected  (a segment that no client accepts)
//! ```
//!
//! A client answers the probe with an ACK of what it expects next (RFC 5961, section 4). That ACK is rejected with a
//! reset of exactly this sequence number, which a client accepts. So a client that only waits is reset, too.

mod chain;
mod leftovers;
mod probe;
mod rejecter;
mod table;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use netlink::conntrack::Flow;
use proto::model::{Endpoint, IpFamily, PerFamily};

pub use leftovers::remove_reset_rules;
pub(crate) use worker::ConnectionResetter;
#[cfg(any(test, feature = "testing"))]
pub(crate) use worker::pass_once;

use crate::{
    ServicePortState,
    conntrack::FlowVips,
    dataplane::{Vip, vips},
};

/// What decides about the connections of one TCP service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GonePort(PerFamily<(Vec<Vip>, GoneEndpoints)>);

/// The endpoints of a service port that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GoneEndpoints {
    /// These, sorted.
    Listed(Arc<[SocketAddr]>),
    /// All but those with these addresses, sorted.
    AllBut(Arc<[IpAddr]>),
}

/// The VIPs of service ports with endpoints that are gone, in one family.
pub(crate) type GoneVips = FlowVips<GoneEndpoints>;

impl GonePort {
    /// `None` if none of its endpoints can be gone.
    pub(crate) fn of(service: &ServicePortState) -> Option<Self> {
        if service.gone.v4.is_empty() && service.gone.v6.is_empty() {
            return None;
        }
        Some(Self(PerFamily::from_fn(|family| {
            let vips = vips(&service.port, family).into_iter().map(|(vip, _)| vip);
            (vips.collect(), GoneEndpoints::of(service, family))
        })))
    }

    /// Whether a connection may have become one to an endpoint that is gone.
    pub(crate) fn has_more_than(&self, before: Option<&Self>) -> bool {
        let Some(Self(before)) = before else { return true };
        self.0.iter().any(|(family, (vips, gone))| {
            let (vips_before, gone_before) = &before[family];
            vips != vips_before || gone.has_more_than(gone_before)
        })
    }
}

impl GoneEndpoints {
    fn of(service: &ServicePortState, family: IpFamily) -> Self {
        let gone = &service.gone[family];
        if !gone.contains(&Endpoint::any_other(family)) {
            let endpoints = gone.iter().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get()));
            return Self::Listed(endpoints.collect());
        }
        let pools = [&service.cluster[family], &service.local[family], &service.established[family]];
        let mut addresses: Vec<_> = pools.into_iter().flat_map(|pool| pool.iter()).map(|known| known.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self::AllBut(addresses.into())
    }

    /// Whether this endpoint is gone.
    pub(crate) fn contains(&self, endpoint: &SocketAddr) -> bool {
        match self {
            Self::Listed(gone) => gone.binary_search(endpoint).is_ok(),
            Self::AllBut(known) => known.binary_search(&endpoint.ip()).is_err(),
        }
    }

    fn has_more_than(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Listed(gone), Self::Listed(before)) => gone.iter().any(|one| before.binary_search(one).is_err()),
            (Self::AllBut(known), Self::AllBut(before)) => before.iter().any(|one| known.binary_search(one).is_err()),
            _ => true,
        }
    }
}

impl GoneVips {
    /// Whether the connection leads from one of these VIPs to an endpoint that is gone. One that is not translated is
    /// older than the VIP: its peer may be alive.
    pub(crate) fn is_gone(&self, flow: &Flow) -> bool {
        flow.reply.source != flow.original.destination
            && self.get(flow).is_some_and(|gone| gone.contains(&flow.reply.source))
    }
}

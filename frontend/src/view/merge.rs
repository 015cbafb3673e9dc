//! Merges the slices of a Service into one list of endpoints with each address and port once.

use std::{cmp::Reverse, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, IpFamily, ServicePortKey};

use crate::object::{SliceEndpoint, SliceObject};

use super::ServiceEndpoints;

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergedEndpoint<'a> {
    /// Its entry in the slice.
    pub(super) endpoint: &'a SliceEndpoint,
    pub(super) slice: &'a SliceObject,
    pub(super) port: NonZeroU16,
}

/// Whether an endpoint serves new connections. The first that some endpoint has decides which are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Usability {
    /// It is ready.
    Ready,
    /// It is terminating and still serving: used if no endpoint is ready.
    Fallback,
    /// It is never used.
    Unused,
}

impl Usability {
    pub(super) fn of(endpoint: &SliceEndpoint) -> Self {
        match endpoint {
            SliceEndpoint { ready: true, .. } => Self::Ready,
            SliceEndpoint { serving: true, terminating: true, .. } => Self::Fallback,
            _ => Self::Unused,
        }
    }
}

impl MergedEndpoint<'_> {
    pub(super) fn family(&self) -> IpFamily {
        IpFamily::of(&self.endpoint.address)
    }

    pub(super) fn usability(&self) -> Usability {
        Usability::of(self.endpoint)
    }

    pub(super) fn to_endpoint(self, terminating: bool) -> Endpoint {
        Endpoint { address: self.endpoint.address, port: self.port, terminating }
    }

    pub(super) fn identity(&self) -> (IpAddr, NonZeroU16) {
        (self.endpoint.address, self.port)
    }
}

/// The endpoints of a service port, sorted by address and port. Of duplicates the preferred entry.
pub(super) fn merge<'a>(key: &ServicePortKey, endpoints: &ServiceEndpoints<'a>) -> Vec<MergedEndpoint<'a>> {
    let mut entries = entries(key, endpoints);
    entries.dedup_by_key(|entry| entry.identity());
    entries
}

/// The entries for a service port that are used, sorted by address and port.
///
/// An address and port can be listed twice, while an endpoint moves between slices or when an address is reused. The
/// preferred entry comes first: one that is not terminating; then, arbitrarily but deterministically, by ready,
/// serving, the name of the slice, and the index in it.
pub(super) fn entries<'a>(key: &ServicePortKey, endpoints: &ServiceEndpoints<'a>) -> Vec<MergedEndpoint<'a>> {
    let mut entries = endpoints.entries(key);
    // Stable: those of one slice are in its order already.
    entries.sort_by_key(|entry: &MergedEndpoint<'a>| {
        let MergedEndpoint { endpoint, slice, .. } = *entry;
        (entry.identity(), endpoint.terminating, Reverse(endpoint.ready), Reverse(endpoint.serving), &slice.name)
    });
    entries
}

//! Merges the slices of a Service into one list of endpoints with each address and port once.

use std::{cmp::Reverse, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, IpFamily, ServicePortKey};

use crate::object::{SliceEndpoint, SliceObject};

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergedEndpoint<'a> {
    /// Its entry in the slice.
    pub(super) endpoint: &'a SliceEndpoint,
    /// The slice.
    pub(super) slice: &'a SliceObject,
    pub(super) port: NonZeroU16,
}

impl MergedEndpoint<'_> {
    pub(super) fn family(&self) -> IpFamily {
        IpFamily::of(&self.endpoint.address)
    }

    /// Whether it takes new connections.
    pub(super) fn ready(&self) -> bool {
        self.endpoint.ready
    }

    /// Whether it is used if no endpoint is ready: it is terminating and still serving.
    pub(super) fn fallback(&self) -> bool {
        self.endpoint.serving && self.endpoint.terminating
    }

    pub(super) fn to_endpoint(self, terminating: bool) -> Endpoint {
        Endpoint { address: self.endpoint.address, port: self.port, terminating }
    }

    pub(super) fn identity(&self) -> (IpAddr, NonZeroU16) {
        (self.endpoint.address, self.port)
    }
}

/// The endpoints of a service port, sorted by address and port. Of duplicates the preferred entry.
pub(super) fn merge<'a>(
    key: &ServicePortKey,
    slices: impl IntoIterator<Item = &'a SliceObject>,
) -> Vec<MergedEndpoint<'a>> {
    let mut entries = entries(key, slices);
    entries.dedup_by_key(|entry| entry.identity());
    entries
}

/// All entries for a service port, sorted by address and port.
///
/// An address and port can be listed twice, while an endpoint moves between slices or when an address is reused. The
/// preferred entry comes first: one that is not terminating; then, arbitrarily but deterministically, by ready,
/// serving, the name of the slice, and the index in it.
pub(super) fn entries<'a>(
    key: &ServicePortKey,
    slices: impl IntoIterator<Item = &'a SliceObject>,
) -> Vec<MergedEndpoint<'a>> {
    let mut candidates = Vec::new();
    for slice in slices {
        let ports = slice.ports.iter().filter(|port| port.name == key.port_name && port.protocol == key.protocol);
        for port in ports {
            let endpoints = slice.endpoints.iter().enumerate();
            candidates.extend(endpoints.map(|(index, endpoint)| {
                let merged = MergedEndpoint { endpoint, slice, port: port.port };
                let preference =
                    (endpoint.terminating, Reverse(endpoint.ready), Reverse(endpoint.serving), &slice.name, index);
                (merged, preference)
            }));
        }
    }
    candidates.sort_unstable_by(|(left, left_preference), (right, right_preference)| {
        left.identity().cmp(&right.identity()).then_with(|| left_preference.cmp(right_preference))
    });
    candidates.into_iter().map(|(merged, _)| merged).collect()
}

//! One list of endpoints out of all slices of a service, each address and port once.

use std::{cmp::Reverse, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, IpFamily, ServicePortKey};

use crate::object::{SliceEndpoint, SliceObject};

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merged<'a> {
    /// What its slice says about it.
    pub(super) endpoint: &'a SliceEndpoint,
    /// That slice.
    pub(super) slice: &'a SliceObject,
    pub(super) port: NonZeroU16,
}

impl Merged<'_> {
    pub(super) fn family(&self) -> IpFamily {
        IpFamily::of(&self.endpoint.address)
    }

    /// May be used for new connections.
    pub(super) fn ready(&self) -> bool {
        self.endpoint.ready
    }

    /// May be used when nothing is ready.
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

/// The endpoints of a service port in the order of address and port: of each the best entry.
pub(super) fn merge<'a>(key: &ServicePortKey, slices: impl IntoIterator<Item = &'a SliceObject>) -> Vec<Merged<'a>> {
    let mut entries = entries(key, slices);
    entries.dedup_by_key(|entry| entry.identity());
    entries
}

/// All entries for a service port in the order of address and port.
///
/// The same address and port can be listed twice, while an endpoint moves between slices or when an address is used
/// again; the best comes first then. One that is not terminating wins; beyond that the choice is arbitrary but always the same: ready,
/// then serving, then the name of the slice, then the place in it.
pub(super) fn entries<'a>(key: &ServicePortKey, slices: impl IntoIterator<Item = &'a SliceObject>) -> Vec<Merged<'a>> {
    let mut candidates = Vec::new();
    for slice in slices {
        let ports = slice.ports.iter().filter(|port| port.name == key.port_name && port.protocol == key.protocol);
        for port in ports {
            let endpoints = slice.endpoints.iter().enumerate();
            candidates.extend(endpoints.map(|(at, endpoint)| {
                let merged = Merged { endpoint, slice, port: port.port };
                let preference =
                    (endpoint.terminating, Reverse(endpoint.ready), Reverse(endpoint.serving), &slice.name, at);
                (merged, preference)
            }));
        }
    }
    candidates.sort_unstable_by(|(left, left_preference), (right, right_preference)| {
        left.identity().cmp(&right.identity()).then_with(|| left_preference.cmp(right_preference))
    });
    candidates.into_iter().map(|(merged, _)| merged).collect()
}

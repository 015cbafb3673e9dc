//! How a pool changed in one commit, and what several such deltas amount to.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, Operation, Pool, PoolId};

use super::chunk;

/// The endpoints of a pool that one commit touched. None: the pool is what it was.
#[derive(Debug, Default)]
pub(super) struct PoolDelta(Box<[EndpointDelta]>);

#[derive(Clone, Copy, Debug)]
struct EndpointDelta {
    address: IpAddr,
    port: NonZeroU16,
    before: Presence,
    after: Presence,
}

/// Whether, and how, an endpoint is in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Present,
    Terminating,
}

impl PoolDelta {
    /// What leads from one pool to another.
    pub(super) fn between(before: &Pool, after: &Pool) -> Self {
        let (add, remove) = before.diff(after);
        let touched = |endpoint: &Endpoint| EndpointDelta {
            address: endpoint.address,
            port: endpoint.port,
            before: Presence::of(before.get(endpoint)),
            after: Presence::of(after.get(endpoint)),
        };
        Self(add.iter().chain(&remove).map(touched).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// About how many bytes of memory it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.0.len() * size_of::<EndpointDelta>()
    }

    /// Appends the operations that do all at once what the deltas, each following on the one before, did one by one.
    /// `current` is what the pool is after the last.
    pub(super) fn net<'a>(
        deltas: impl IntoIterator<Item = &'a Self>,
        pool: PoolId,
        current: &Pool,
        operations: &mut Vec<Operation>,
    ) {
        let mut net = BTreeMap::<(IpAddr, NonZeroU16), (Presence, Presence)>::new();
        for touched in deltas.into_iter().flat_map(|delta| &delta.0) {
            let EndpointDelta { address, port, before, after } = *touched;
            net.entry((address, port)).and_modify(|(_, last)| *last = after).or_insert((before, after));
        }
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        for ((address, port), (before, after)) in net {
            if before == after {
                continue;
            }
            let endpoint = Endpoint { address, port, terminating: after == Presence::Terminating };
            if after == Presence::Absent {
                remove.push(endpoint);
            } else {
                add.push(endpoint);
            }
        }
        if add.is_empty() && remove.is_empty() {
            return;
        }
        if add.len() + remove.len() >= current.len() {
            chunk::replace(pool, current, operations);
        } else {
            chunk::change(pool, add, remove, operations);
        }
    }
}

impl Presence {
    fn of(endpoint: Option<&Endpoint>) -> Self {
        match endpoint {
            None => Self::Absent,
            Some(Endpoint { terminating: false, .. }) => Self::Present,
            Some(Endpoint { terminating: true, .. }) => Self::Terminating,
        }
    }
}

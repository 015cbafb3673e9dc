//! The change of a pool in one commit, and the net change over several commits.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, Operation, Pool, PoolId};

use super::chunk;

/// The endpoints of a pool that a commit changed.
#[derive(Debug, Default)]
pub(super) struct PoolDelta(Box<[EndpointDelta]>);

/// `before` and `after` are whether the endpoint is terminating; `None`: it is not in the pool.
#[derive(Clone, Copy, Debug)]
struct EndpointDelta {
    address: IpAddr,
    port: NonZeroU16,
    before: Option<bool>,
    after: Option<bool>,
}

impl PoolDelta {
    /// The difference between two pools.
    pub(super) fn between(before: &Pool, after: &Pool) -> Self {
        let (add, remove) = before.diff(after);
        let endpoint_delta = |endpoint: &Endpoint| EndpointDelta {
            address: endpoint.address,
            port: endpoint.port,
            before: before.get(endpoint).map(|endpoint| endpoint.terminating),
            after: after.get(endpoint).map(|endpoint| endpoint.terminating),
        };
        Self(add.iter().chain(&remove).map(endpoint_delta).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its approximate size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.0.len() * size_of::<EndpointDelta>()
    }

    /// Appends operations with the net effect of successive deltas. `current` is the pool after the last one.
    pub(super) fn net<'a>(
        deltas: impl IntoIterator<Item = &'a Self>,
        pool: PoolId,
        current: &Pool,
        operations: &mut Vec<Operation>,
    ) {
        let mut net = BTreeMap::<(IpAddr, NonZeroU16), (Option<bool>, Option<bool>)>::new();
        for delta in deltas.into_iter().flat_map(|deltas| &deltas.0) {
            let EndpointDelta { address, port, before, after } = *delta;
            net.entry((address, port)).and_modify(|(_, last)| *last = after).or_insert((before, after));
        }
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        for ((address, port), (before, after)) in net {
            if before == after {
                continue;
            }
            let list = if after.is_some() { &mut add } else { &mut remove };
            list.push(Endpoint { address, port, terminating: after == Some(true) });
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

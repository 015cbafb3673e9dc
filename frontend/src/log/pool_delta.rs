//! The change of a pool in one commit, and the net change over several commits.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use proto::model::{Endpoint, Operation, Pool, PoolId};

use super::chunk;

/// What a commit changed in a pool.
#[derive(Debug)]
pub(super) enum PoolDelta {
    /// These endpoints.
    Endpoints(Box<[EndpointDelta]>),
    /// More than is worth keeping: the pool is sent as it is now.
    Replaced,
}

/// `before` and `after` are whether the endpoint is terminating; `None`: it is not in the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointDelta {
    address: IpAddr,
    port: NonZeroU16,
    before: Option<bool>,
    after: Option<bool>,
}

impl Default for PoolDelta {
    fn default() -> Self {
        Self::Endpoints(Box::default())
    }
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
        Self::Endpoints(add.iter().chain(&remove).map(endpoint_delta).collect())
    }

    /// The difference between a pool of a zone or a node and the wider one that it replaces, or that replaces it. It is
    /// never larger than the narrow pool: hints make many narrow pools of one wide pool, and what is kept about each of
    /// them must not grow with the wide one.
    pub(super) fn between_scopes(before: &Pool, after: &Pool, narrow: &Pool) -> Self {
        if before.len().abs_diff(after.len()) > narrow.len() {
            return Self::Replaced;
        }
        match Self::between(before, after) {
            Self::Endpoints(endpoints) if endpoints.len() > narrow.len() => Self::Replaced,
            delta => delta,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Endpoints(endpoints) if endpoints.is_empty())
    }

    pub(super) fn is_replaced(&self) -> bool {
        matches!(self, Self::Replaced)
    }

    /// Its approximate size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        let endpoints = match self {
            Self::Endpoints(endpoints) => endpoints.len(),
            Self::Replaced => 0,
        };
        size_of::<Self>() + endpoints * size_of::<EndpointDelta>()
    }

    /// Appends operations with the net effect of successive deltas. `current` is the pool after the last one.
    pub(super) fn net<'a>(
        deltas: impl IntoIterator<Item = &'a Self>,
        pool: PoolId,
        current: &Pool,
        operations: &mut Vec<Operation>,
    ) {
        let mut net = BTreeMap::<(IpAddr, NonZeroU16), (Option<bool>, Option<bool>)>::new();
        for delta in deltas {
            let Self::Endpoints(endpoints) = delta else {
                chunk::replace(pool, current, operations);
                return;
            };
            for EndpointDelta { address, port, before, after } in endpoints.iter().copied() {
                net.entry((address, port)).and_modify(|(_, last)| *last = after).or_insert((before, after));
            }
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

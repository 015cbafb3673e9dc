//! The expected digests of nodes, updated with each change: one vector for all nodes, one per zone with what differs
//! there, and (in `node_entry`) one per node with what differs on it.

use std::{collections::HashMap, sync::Arc};

use proto::{
    digest::{Digest, DigestVector, KeyHash},
    model::{Pool, PoolClass},
};

use crate::view::{Scoped, ServicePortView};

/// The digests for all nodes and for zones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DigestIndex {
    all_nodes: DigestVector,
    /// What is added for a zone.
    zones: HashMap<Arc<str>, DigestVector>,
}

/// [`Digest::add`] or [`Digest::remove`].
pub(super) type ApplyDigest = fn(&mut Digest, Digest);

impl DigestIndex {
    /// The digests of all service ports, and of the pools that nodes in a zone share.
    pub(super) fn digests(&self, zone: &str) -> DigestVector {
        let mut digests = self.all_nodes.clone();
        if let Some(zone_sum) = self.zones.get(zone) {
            digests.add_all(zone_sum);
        }
        digests
    }

    /// The sum of [`Self::digests`].
    pub(super) fn digest(&self, zone: &str) -> Digest {
        let mut sum = self.all_nodes.total();
        if let Some(zone_sum) = self.zones.get(zone) {
            sum.add(zone_sum.total());
        }
        sum
    }

    /// Adds or removes a service port with the pools that nodes share. Returns the digest of each by zone, for
    /// [`own_digest`].
    pub(super) fn account(&mut self, hash: KeyHash, view: &ServicePortView, apply: ApplyDigest) -> Vec<Scoped<Digest>> {
        apply(&mut self.all_nodes[hash.bucket()], Digest::of_service_port(&view.port));
        view.pools().map(|(class, _, pools)| self.account_pool(hash, class, pools, apply)).collect()
    }

    fn account_pool(
        &mut self,
        hash: KeyHash,
        class: PoolClass,
        pools: &Scoped<Pool>,
        apply: ApplyDigest,
    ) -> Scoped<Digest> {
        let bucket = hash.bucket();
        let default = hash.pool(class, &pools.default);
        apply(&mut self.all_nodes[bucket], default);

        let mut by_zone = Scoped { default, ..Scoped::default() };
        for (zone, pool) in &pools.zones {
            let digest = hash.pool(class, pool);
            let zone_sum = self.zones.entry(zone.clone()).or_default();
            apply(&mut zone_sum[bucket], difference(digest, default));
            // EndpointSlices may name any number of zones: those without pools are not kept.
            if *zone_sum == DigestVector::default() {
                self.zones.remove(zone);
            }
            by_zone.zones.insert(zone.clone(), digest);
        }
        by_zone
    }
}

/// What a service port adds to the digests of one node, relative to its zone. `in_zone` returns the digest of a pool
/// there, by its number.
pub(super) fn own_digest(
    hash: KeyHash,
    view: &ServicePortView,
    node: &str,
    in_zone: impl Fn(usize, PoolClass, &Scoped<Pool>) -> Digest,
) -> Digest {
    let mut own = Digest::default();
    for (at, (class, _, pools)) in view.pools().enumerate() {
        if let Some(pool) = pools.nodes.get(node) {
            own.add(difference(hash.pool(class, pool), in_zone(at, class, pools)));
        }
    }
    own
}

fn difference(mut digest: Digest, other: Digest) -> Digest {
    digest.remove(other);
    digest
}

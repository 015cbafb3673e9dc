//! The expected digests of nodes, updated with each change: one vector for all nodes, one per zone with what differs
//! there, and (in `node_entry`) one per node with what differs on it.

use std::{collections::HashMap, sync::Arc};

use proto::{
    digest::{Digest, DigestVector, KeyHash},
    model::{IpFamily, PerFamily, Pool, PoolClass},
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

/// The digests of the cluster pools of a service port by zone.
pub(super) type ZoneDigests = PerFamily<Scoped<Digest>>;

impl DigestIndex {
    /// The digests of all service ports and cluster pools in a zone.
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

    /// Adds or removes a service port with its cluster pools. Returns the digests of the pools, for [`own_digests`].
    pub(super) fn account(&mut self, hash: KeyHash, view: &ServicePortView, apply: ApplyDigest) -> ZoneDigests {
        let bucket = hash.bucket();
        apply(&mut self.all_nodes[bucket], Digest::of_service_port(&view.port));
        PerFamily::from_fn(|family| {
            let pools = &view.cluster[family];
            let default = cluster_digest(hash, &pools.default);
            apply(&mut self.all_nodes[bucket], default);
            let mut zone_digests = Scoped { default, ..Scoped::default() };
            for (zone, pool) in &pools.zones {
                let digest = cluster_digest(hash, pool);
                let zone_sum = self.zones.entry(zone.clone()).or_default();
                apply(&mut zone_sum[bucket], difference(digest, default));
                // EndpointSlices may name any number of zones: those without pools are not kept.
                if *zone_sum == DigestVector::default() {
                    self.zones.remove(zone);
                }
                zone_digests.zones.insert(zone.clone(), digest);
            }
            zone_digests
        })
    }
}

/// What a service port adds to the digests of nodes with pools of their own, relative to their zones.
pub(super) fn own_digests<'a, 'z>(
    hash: KeyHash,
    view: &'a ServicePortView,
    zone_digests: &ZoneDigests,
    zone_of: impl Fn(&str) -> &'z str,
) -> Vec<(&'a Arc<str>, Digest)> {
    let mut own = Vec::new();
    for (family, pools) in view.cluster.iter() {
        for (node, pool) in &pools.nodes {
            let in_zone = *zone_digests[family].in_zone(zone_of(node));
            own.push((node, difference(cluster_digest(hash, pool), in_zone)));
        }
    }
    let locals = view.local.iter();
    own.extend(locals.map(|(node, pools)| (node, local_digest(hash, pools))));
    own
}

/// What a service port adds to the digests of one node, relative to its zone.
pub(super) fn own_digest(hash: KeyHash, view: &ServicePortView, node: &str, zone: &str) -> Digest {
    let mut own = view.local.get(node).map_or_else(Digest::default, |pools| local_digest(hash, pools));
    for family in IpFamily::ALL {
        let pools = &view.cluster[family];
        if let Some(pool) = pools.nodes.get(node) {
            own.add(difference(cluster_digest(hash, pool), cluster_digest(hash, pools.in_zone(zone))));
        }
    }
    own
}

fn cluster_digest(hash: KeyHash, pool: &Pool) -> Digest {
    hash.pool(PoolClass::Cluster, pool)
}

fn local_digest(hash: KeyHash, pools: &PerFamily<Pool>) -> Digest {
    let mut sum = hash.pool(PoolClass::Local, &pools.v4);
    sum.add(hash.pool(PoolClass::Local, &pools.v6));
    sum
}

fn difference(mut digest: Digest, other: Digest) -> Digest {
    digest.remove(other);
    digest
}

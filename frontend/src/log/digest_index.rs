//! The digests of what nodes hold, kept up to date by what changes: one vector for everyone, one per zone for what is
//! different there, and (in `node_entry`) one per node for what is different on it.

use std::{collections::HashMap, sync::Arc};

use proto::{
    digest::{Digest, DigestVector, KeyHash},
    model::{IpFamily, PerFamily, Pool, PoolClass},
};

use crate::view::{Scoped, ServicePortView};

/// The digests for everyone and for zones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DigestIndex {
    everyone: DigestVector,
    /// What is to be added in a zone.
    zones: HashMap<Arc<str>, DigestVector>,
}

/// Whether something is taken in or out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Add,
    Remove,
}

/// The digests of the cluster pools of a service port, except on special nodes.
pub(super) type ZoneDigests = PerFamily<Scoped<Digest>>;

impl Sign {
    pub(super) fn apply(self, sum: &mut Digest, digest: Digest) {
        match self {
            Self::Add => sum.add(digest),
            Self::Remove => sum.remove(digest),
        }
    }
}

impl DigestIndex {
    /// The digests of all service ports and cluster pools in a zone.
    pub(super) fn digests(&self, zone: &str) -> DigestVector {
        let mut digests = self.everyone.clone();
        if let Some(special) = self.zones.get(zone) {
            digests.add_all(special);
        }
        digests
    }

    /// The sum of [`Self::digests`].
    pub(super) fn digest(&self, zone: &str) -> Digest {
        let mut sum = self.everyone.total();
        if let Some(special) = self.zones.get(zone) {
            sum.add(special.total());
        }
        sum
    }

    /// Adds or removes a service port with its cluster pools. Gives their digests, to account for nodes.
    pub(super) fn account(&mut self, hash: KeyHash, view: &ServicePortView, sign: Sign) -> ZoneDigests {
        let bucket = hash.bucket();
        sign.apply(&mut self.everyone[bucket], Digest::of_service_port(&view.port));
        PerFamily::from_fn(|family| {
            let pools = &view.cluster[family];
            let default = cluster_digest(hash, &pools.default);
            sign.apply(&mut self.everyone[bucket], default);
            let mut zone_digests = Scoped::everywhere(default);
            for (zone, pool) in &pools.zones {
                let digest = cluster_digest(hash, pool);
                let special = self.zones.entry(zone.clone()).or_default();
                sign.apply(&mut special[bucket], minus(digest, default));
                // Who may write slices may name any zone.
                if sign == Sign::Remove && *special == DigestVector::default() {
                    self.zones.remove(zone);
                }
                zone_digests.zones.insert(zone.clone(), digest);
            }
            zone_digests
        })
    }
}

/// What a service port adds to the digests of the nodes that it is special for, beyond those of their zones.
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
            own.push((node, minus(cluster_digest(hash, pool), in_zone)));
        }
    }
    let locals = view.local.iter();
    own.extend(locals.map(|(node, pools)| (node, local_digest(hash, pools))));
    own
}

/// What a service port adds to the digests of one node, beyond those of its zone.
pub(super) fn own_digest(hash: KeyHash, view: &ServicePortView, node: &str, zone: &str) -> Digest {
    let mut own = view.local.get(node).map_or_else(Digest::default, |pools| local_digest(hash, pools));
    for family in IpFamily::ALL {
        let pools = &view.cluster[family];
        if let Some(pool) = pools.nodes.get(node) {
            own.add(minus(cluster_digest(hash, pool), cluster_digest(hash, pools.in_zone(zone))));
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

fn minus(mut digest: Digest, other: Digest) -> Digest {
    digest.remove(other);
    digest
}

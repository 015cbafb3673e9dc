//! The expected digests of nodes, updated with each change: one vector for all nodes, one per zone with what differs
//! there, and (in `node_entry`) one per node with what differs on it. Established and gone pools have vectors of their
//! own: they are added for clients with that feature.

use std::{collections::HashMap, iter, sync::Arc};

use proto::{
    digest::{Digest, DigestVector, KeyHash},
    model::{Feature, Features, IpFamily, PerFamily, Pool, PoolClass},
};

use crate::view::{Scoped, ServicePortView};

/// One `T` for what every client has, and one for what is added with [`Feature::EstablishedPools`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByFeature<T> {
    pub(super) common: T,
    pub(super) established: T,
}

/// The digests for all nodes and for zones.
pub(super) type DigestIndex = ByFeature<SharedDigests>;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SharedDigests {
    all_nodes: DigestVector,
    /// What is added for a zone.
    zones: HashMap<Arc<str>, DigestVector>,
}

/// [`Digest::add`] or [`Digest::remove`].
pub(super) type ApplyDigest = fn(&mut Digest, Digest);

/// The digests of the pools of a service port and class by zone.
pub(super) type ZoneDigests = PerFamily<Scoped<Digest>>;

impl<T> ByFeature<T> {
    /// What a client with these features has.
    pub(super) fn of(&self, features: Features) -> impl Iterator<Item = &T> {
        let established = features.contains(Feature::EstablishedPools).then_some(&self.established);
        iter::once(&self.common).chain(established)
    }
}

impl DigestIndex {
    /// The digests of all service ports and shared pools in a zone.
    pub(super) fn digests(&self, zone: &str, features: Features) -> DigestVector {
        let mut digests = DigestVector::default();
        for SharedDigests { all_nodes, zones } in self.of(features) {
            digests.add_all(all_nodes);
            if let Some(zone_sum) = zones.get(zone) {
                digests.add_all(zone_sum);
            }
        }
        digests
    }

    /// The sum of [`Self::digests`].
    pub(super) fn digest(&self, zone: &str, features: Features) -> Digest {
        let mut sum = Digest::default();
        for SharedDigests { all_nodes, zones } in self.of(features) {
            sum.add(all_nodes.total());
            if let Some(zone_sum) = zones.get(zone) {
                sum.add(zone_sum.total());
            }
        }
        sum
    }

    /// Adds or removes a service port with its shared pools. Returns the digests of the pools, for [`own_digests`].
    pub(super) fn account(
        &mut self,
        hash: KeyHash,
        view: &ServicePortView,
        apply: ApplyDigest,
    ) -> ByFeature<ZoneDigests> {
        apply(&mut self.common.all_nodes[hash.bucket()], Digest::of_service_port(&view.port));
        // Gone pools are the same for all nodes.
        self.established.account(hash, PoolClass::Gone, &view.gone, apply);
        ByFeature {
            common: self.common.account(hash, PoolClass::Cluster, &view.cluster, apply),
            established: self.established.account(hash, PoolClass::Established, &view.established, apply),
        }
    }
}

impl SharedDigests {
    fn account(
        &mut self,
        hash: KeyHash,
        class: PoolClass,
        pools: &PerFamily<Scoped<Pool>>,
        apply: ApplyDigest,
    ) -> ZoneDigests {
        let bucket = hash.bucket();
        PerFamily::from_fn(|family| {
            let pools = &pools[family];
            let default = hash.pool(class, &pools.default);
            apply(&mut self.all_nodes[bucket], default);
            let mut zone_digests = Scoped { default, ..Scoped::default() };
            for (zone, pool) in &pools.zones {
                let digest = hash.pool(class, pool);
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
    zone_digests: &ByFeature<ZoneDigests>,
    zone_of: impl Fn(&str) -> &'z str,
) -> ByFeature<Vec<(&'a Arc<str>, Digest)>> {
    let own_of = |class, pools: &'a PerFamily<Scoped<Pool>>, zone_digests: &ZoneDigests| {
        let mut own = Vec::new();
        for (family, pools) in pools.iter() {
            for (node, pool) in &pools.nodes {
                let in_zone = *zone_digests[family].in_zone(zone_of(node));
                own.push((node, difference(hash.pool(class, pool), in_zone)));
            }
        }
        own
    };
    let mut common = own_of(PoolClass::Cluster, &view.cluster, &zone_digests.common);
    common.extend(view.local.iter().map(|(node, pools)| (node, local_digest(hash, pools))));
    ByFeature { common, established: own_of(PoolClass::Established, &view.established, &zone_digests.established) }
}

/// What a service port adds to the digests of one node, relative to its zone.
pub(super) fn own_digest(hash: KeyHash, view: &ServicePortView, node: &str, zone: &str) -> ByFeature<Digest> {
    let own_of = |class, pools: &PerFamily<Scoped<Pool>>| {
        let mut own = Digest::default();
        for family in IpFamily::ALL {
            let pools = &pools[family];
            if let Some(pool) = pools.nodes.get(node) {
                own.add(difference(hash.pool(class, pool), hash.pool(class, pools.in_zone(zone))));
            }
        }
        own
    };
    let mut common = own_of(PoolClass::Cluster, &view.cluster);
    if let Some(pools) = view.local.get(node) {
        common.add(local_digest(hash, pools));
    }
    ByFeature { common, established: own_of(PoolClass::Established, &view.established) }
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

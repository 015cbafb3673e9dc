//! A service port with its pools.

use std::{fmt, iter, sync::Arc};

use serde::Serialize;

use crate::{
    digest::{Digest, KeyHash},
    model::{Endpoint, IpFamily, Operation, PerFamily, Pool, PoolClass, PoolId, Protocol, ServicePort, ServicePortKey},
};

/// A service port with its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortState {
    /// The service port.
    pub port: ServicePort,
    /// The pools for traffic policy Cluster.
    pub cluster: PerFamily<Pool>,
    /// The pools for traffic policy Local: the endpoints on this node.
    pub local: PerFamily<Pool>,
    /// The endpoints that established flows may keep, besides those of the other pools.
    pub established: PerFamily<Pool>,
    /// The endpoints whose TCP connections are reset.
    pub gone: PerFamily<Pool>,
}

/// A Service: several service ports share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ServiceName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ServiceName {
    /// The Service that a service port belongs to.
    #[must_use]
    pub fn of(key: &ServicePortKey) -> Self {
        Self { namespace: key.namespace.clone(), name: key.name.clone() }
    }

    /// The lowest key that a service port of the Service can have: all of them follow each other.
    #[must_use]
    pub fn first_key(&self) -> ServicePortKey {
        ServicePortKey::new(self.namespace.clone(), self.name.clone(), "", Protocol::Tcp)
    }

    /// Whether a service port is one of the Service.
    #[must_use]
    pub fn contains(&self, key: &ServicePortKey) -> bool {
        key.namespace == self.namespace && key.name == self.name
    }
}

impl fmt::Display for ServiceName {
    /// `namespace/name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl ServicePortState {
    /// A service port with empty pools.
    #[must_use]
    pub fn new(port: ServicePort) -> Self {
        Self {
            port,
            cluster: PerFamily::default(),
            local: PerFamily::default(),
            established: PerFamily::default(),
            gone: PerFamily::default(),
        }
    }

    /// The pool of a class and family.
    #[must_use]
    pub fn pool(&self, class: PoolClass, family: IpFamily) -> &Pool {
        match class {
            PoolClass::Cluster => &self.cluster[family],
            PoolClass::Local => &self.local[family],
            PoolClass::Established => &self.established[family],
            PoolClass::Gone => &self.gone[family],
        }
    }

    /// The pool of a class and family, mutable.
    pub fn pool_mut(&mut self, class: PoolClass, family: IpFamily) -> &mut Pool {
        match class {
            PoolClass::Cluster => &mut self.cluster[family],
            PoolClass::Local => &mut self.local[family],
            PoolClass::Established => &mut self.established[family],
            PoolClass::Gone => &mut self.gone[family],
        }
    }

    /// All pools.
    pub fn pools(&self) -> impl Iterator<Item = (PoolClass, IpFamily, &Pool)> {
        let of_class = |class| IpFamily::ALL.map(|family| (class, family, self.pool(class, family)));
        PoolClass::ALL.into_iter().flat_map(of_class)
    }

    /// The pools that new connections use.
    pub fn selectable(&self) -> impl Iterator<Item = (PoolClass, IpFamily, &Pool)> {
        self.pools().filter(|(class, ..)| class.is_selectable())
    }

    /// Whether any pool, except for those of endpoints that are gone, has this endpoint.
    #[must_use]
    pub fn has_endpoint(&self, endpoint: &Endpoint) -> bool {
        let family = IpFamily::of(&endpoint.address);
        [&self.cluster, &self.local, &self.established].iter().any(|pools| pools[family].contains(endpoint))
    }

    /// The endpoints that are in none of the pools of a later state, except for those of endpoints that are gone.
    pub(super) fn departed(&self, after: &Self) -> Vec<Endpoint> {
        let pools = self.pools().filter(|(class, ..)| *class != PoolClass::Gone);
        let removed = pools.flat_map(|(class, family, pool)| pool.diff(after.pool(class, family)).1);
        let mut departed: Vec<_> = removed.filter(|endpoint| !after.has_endpoint(endpoint)).collect();
        departed.sort_unstable();
        departed.dedup_by_key(|endpoint| endpoint.identity());
        departed
    }

    /// The operations that create this service port with its pools.
    pub(super) fn snapshot(&self) -> impl Iterator<Item = Operation> {
        let pools = self.pools().filter(|(.., endpoints)| !endpoints.is_empty());
        let replacements = pools.map(|(class, family, endpoints)| {
            let pool = PoolId { key: self.port.key.clone(), class, family };
            Operation::ReplacePool { pool, endpoints: endpoints.clone() }
        });
        iter::once(Operation::PutServicePort(self.port.clone())).chain(replacements)
    }

    /// Whether a new connection has an endpoint.
    #[must_use]
    pub fn has_endpoints(&self) -> bool {
        self.selectable().any(|(.., pool)| !pool.is_empty())
    }

    /// The service port without the endpoints of the local pools that are not `kept`, in any pool; `None` if it has no
    /// such endpoints. Without any other endpoints, its traffic is rejected, as if the cluster had no endpoint.
    pub fn without_local(&self, kept: impl Fn(&Endpoint) -> bool) -> Option<Self> {
        let mut without = self.clone();
        for family in IpFamily::ALL {
            for endpoint in self.local[family].iter().filter(|endpoint| !kept(endpoint)) {
                without.local[family].remove(endpoint);
                without.cluster[family].remove(endpoint);
            }
            without.port.any_endpoints[family] &=
                !(without.local[family].is_empty() && without.cluster[family].is_empty());
        }
        if without == *self { None } else { Some(without) }
    }

    /// The sum of the content hashes of the service port, whose key has this hash, and of all its endpoints.
    pub(super) fn digest(&self, hash: KeyHash) -> Digest {
        let mut sum = Digest::of_service_port(&self.port);
        for (class, _, pool) in self.pools() {
            sum.add(hash.pool(class, pool));
        }
        sum
    }
}

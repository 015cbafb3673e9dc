//! The committed state of a node: service ports with their pools, the node's and the cluster's facts, and the digests
//! of all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
};

use proto::{
    digest::{Digest, DigestVector, INFO_ENTRY, KeyHash},
    model::{
        ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, PerFamily, Pool, PoolClass, PoolId, Protocol,
        ServicePort, ServicePortKey,
    },
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

/// A committed state of a node. Changes only as a whole, at a commit (see `stage`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    node: NodeInfo,
    /// The last facts of the Node object, while there is none: it may have been deleted by mistake, and the node is
    /// still there.
    retained_node: Option<NodeInfo>,
    cluster: ClusterInfo,
    service_ports: BTreeMap<ServicePortKey, ServicePortState>,
    digests: Box<DigestVector>,
}

/// The difference between two committed states, so that a backend need not inspect the rest. Exact: a key is listed
/// only if its service port or one of its pools differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The service ports that were added, removed or changed, or whose pools changed.
    pub service_ports: BTreeSet<ServicePortKey>,
    /// Whether the node's facts changed.
    pub node: bool,
    /// Whether the cluster's facts changed.
    pub cluster: bool,
}

/// A Service: several service ports share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl Changes {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the changes of a later commit.
    pub fn merge(&mut self, later: Self) {
        let Self { service_ports, node, cluster } = later;
        self.service_ports.extend(service_ports);
        self.node |= node;
        self.cluster |= cluster;
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
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolClass, IpFamily, &Pool)> {
        let of_class = |class| IpFamily::ALL.map(|family| (class, family, self.pool(class, family)));
        PoolClass::ALL.into_iter().flat_map(of_class)
    }

    /// The service port without the endpoints of the local pools that are not `kept`, in any pool; `None` if it has no
    /// such endpoints. One that has no other endpoints is as one without endpoints in the cluster: it is rejected.
    pub(crate) fn without_local(&self, kept: impl Fn(&Endpoint) -> bool) -> Option<Self> {
        let mut without = self.clone();
        for family in IpFamily::ALL {
            for endpoint in self.local[family].iter().filter(|endpoint| !kept(endpoint)) {
                without.local[family].remove(endpoint);
                without.cluster[family].remove(endpoint);
            }
            without.port.any_endpoints[family] &=
                !(without.local[family].is_empty() && without.cluster[family].is_empty());
        }
        (without != *self).then_some(without)
    }

    /// The pools that new connections use.
    pub(crate) fn selectable(&self) -> impl Iterator<Item = (PoolClass, IpFamily, &Pool)> {
        self.pools().filter(|(class, ..)| class.is_selectable())
    }

    /// Whether any pool, except for those of endpoints that are gone, has this endpoint.
    pub(crate) fn has_endpoint(&self, endpoint: &Endpoint) -> bool {
        let family = IpFamily::of(&endpoint.address);
        [&self.cluster, &self.local, &self.established].iter().any(|pools| pools[family].contains(endpoint))
    }

    /// Whether a new connection has an endpoint.
    pub(crate) fn has_endpoints(&self) -> bool {
        self.selectable().any(|(.., pool)| !pool.is_empty())
    }

    /// The content hashes of the service port and of all its endpoints.
    fn digest(&self) -> Digest {
        let hash = KeyHash::of(&self.port.key);
        let mut sum = Digest::of_service_port(&self.port);
        self.pools().for_each(|(class, _, pool)| sum.add(hash.pool(class, pool)));
        sum
    }
}

impl NodeState {
    /// A node without service ports.
    #[must_use]
    pub fn new(node: NodeInfo) -> Self {
        let mut state = Self {
            node,
            retained_node: None,
            cluster: ClusterInfo::default(),
            service_ports: BTreeMap::new(),
            digests: Box::default(),
        };
        state.digest_facts();
        state
    }

    /// The node's facts: the last known ones while it has no Node object.
    #[must_use]
    pub fn node(&self) -> &NodeInfo {
        self.retained_node.as_ref().unwrap_or(&self.node)
    }

    /// Whether the Node object is gone, and its last facts are retained.
    #[must_use]
    pub fn retains_node(&self) -> bool {
        self.retained_node.is_some()
    }

    /// The cluster's facts.
    #[must_use]
    pub fn cluster(&self) -> &ClusterInfo {
        &self.cluster
    }

    /// The service ports, in the order of their keys.
    #[must_use]
    pub fn service_ports(&self) -> &BTreeMap<ServicePortKey, ServicePortState> {
        &self.service_ports
    }

    /// One service port.
    #[must_use]
    pub fn service_port(&self, key: &ServicePortKey) -> Option<&ServicePortState> {
        self.service_ports.get(key)
    }

    /// All service ports of a Service, which are adjacent in key order.
    pub(crate) fn ports_of<'a>(&'a self, service: &'a ServiceName) -> impl Iterator<Item = &'a ServicePortState> {
        // The lowest port name and protocol.
        let first = ServicePortKey::new(service.namespace.clone(), service.name.clone(), "", Protocol::Tcp);
        let following = self.service_ports.range(first..).map(|(_, port)| port);
        following.take_while(|port| {
            let key = &port.port.key;
            key.namespace == service.namespace && key.name == service.name
        })
    }

    /// The operations that lead to these facts.
    pub(crate) fn put_facts(&self) -> Vec<Operation> {
        let retained = self.retained_node.iter().chain([&self.node]).cloned().map(Operation::PutNode);
        retained.chain([Operation::PutCluster(self.cluster.clone())]).collect()
    }

    /// The digests of the whole state, as committed.
    #[must_use]
    pub fn digests(&self) -> &DigestVector {
        &self.digests
    }

    /// Replaces the node's facts. Those of a Node object that is gone are retained. Returns whether [`Self::node`]
    /// changed.
    pub(crate) fn put_node(&mut self, node: NodeInfo) -> bool {
        let before = self.retained_node.take().unwrap_or_else(|| self.node.clone());
        self.node = node;
        if self.node.is_unknown() && !before.is_unknown() {
            self.retained_node = Some(before.clone());
        }
        self.digest_facts();
        *self.node() != before
    }

    /// Replaces the cluster's facts. Returns whether they changed.
    pub(crate) fn put_cluster(&mut self, cluster: ClusterInfo) -> bool {
        let changed = self.cluster != cluster;
        self.cluster = cluster;
        self.digest_facts();
        changed
    }

    /// Sets or removes a service port with its pools. Returns whether anything changed.
    pub(crate) fn set_service_port(&mut self, key: &ServicePortKey, service: Option<ServicePortState>) -> bool {
        let differs = self.service_ports.get(key) != service.as_ref();
        if differs {
            self.swap_service_port(key, service);
        }
        differs
    }

    /// Sets or removes a service port with its pools. Returns what it was.
    pub(crate) fn swap_service_port(
        &mut self,
        key: &ServicePortKey,
        service: Option<ServicePortState>,
    ) -> Option<ServicePortState> {
        let bucket = &mut self.digests[KeyHash::of(key).bucket()];
        if let Some(service) = &service {
            bucket.add(service.digest());
        }
        let old = match service {
            Some(service) => self.service_ports.insert(key.clone(), service),
            None => self.service_ports.remove(key),
        };
        if let Some(old) = &old {
            bucket.remove(old.digest());
        }
        old
    }

    /// Replaces an existing service port and keeps its pools. Returns whether it changed.
    pub(crate) fn set_port(&mut self, port: ServicePort) -> bool {
        let Some(service) = self.service_ports.get_mut(&port.key) else { return false };
        if service.port == port {
            return false;
        }
        let bucket = &mut self.digests[KeyHash::of(&port.key).bucket()];
        bucket.remove(Digest::of_service_port(&service.port));
        bucket.add(Digest::of_service_port(&port));
        service.port = port;
        true
    }

    /// Replaces a pool of an existing service port. Returns whether it changed.
    pub(crate) fn set_pool(&mut self, id: &PoolId, endpoints: Pool) -> bool {
        let Some(service) = self.service_ports.get_mut(&id.key) else { return false };
        let pool = service.pool_mut(id.class, id.family);
        if *pool == endpoints {
            return false;
        }
        let hash = KeyHash::of(&id.key);
        let bucket = &mut self.digests[hash.bucket()];
        bucket.remove(hash.pool(id.class, pool));
        bucket.add(hash.pool(id.class, &endpoints));
        *pool = endpoints;
        true
    }

    /// Adds an endpoint to a pool of an existing service port, replaces its flags, or removes it. Returns whether
    /// anything changed.
    pub(crate) fn set_endpoint(
        &mut self,
        id: &PoolId,
        address: IpAddr,
        port: NonZeroU16,
        endpoint: Option<Endpoint>,
    ) -> bool {
        let Some(service) = self.service_ports.get_mut(&id.key) else { return false };
        let pool = service.pool_mut(id.class, id.family);
        let old = pool.get(&Endpoint::new(address, port)).copied();
        if old == endpoint {
            return false;
        }
        let hash = KeyHash::of(&id.key);
        let bucket = &mut self.digests[hash.bucket()];
        if let Some(old) = old {
            pool.remove(&old);
            bucket.remove(hash.endpoint(id.class, &old));
        }
        if let Some(endpoint) = endpoint {
            pool.insert(endpoint);
            bucket.add(hash.endpoint(id.class, &endpoint));
        }
        true
    }

    fn digest_facts(&mut self) {
        let mut sum = Digest::of_node(&self.node);
        sum.add(Digest::of_cluster(&self.cluster));
        self.digests[INFO_ENTRY] = sum;
    }
}

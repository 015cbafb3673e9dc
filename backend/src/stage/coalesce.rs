//! Coalesces operations into their net effect on a state, and applies it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU16,
};

use proto::{
    digest::{BUCKETS, KeyHash},
    model::{
        ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, Protocol, ServicePort,
        ServicePortKey,
    },
};

use super::{DepartedEndpoints, RejectedOperation};
use crate::{Changes, NodeState, ServicePortState};

/// The state that the operations apply to, and their net effect so far.
pub(super) struct Coalescer<'a> {
    state: &'a NodeState,
    net_effect: NetEffect,
}

/// The net effect of some operations.
pub(super) struct NetEffect {
    /// The last facts of the node; if they are unknown, preceded by the last known ones.
    nodes: Vec<NodeInfo>,
    cluster: Option<ClusterInfo>,
    buckets: Vec<Bucket>,
}

/// The service ports of one digest bucket.
#[derive(Default)]
struct Bucket {
    /// Whether the service ports that are not listed are removed.
    is_reset: bool,
    service_ports: BTreeMap<ServicePortKey, ServicePortEffect>,
}

/// The net effect on one service port.
enum ServicePortEffect {
    /// Changes to an existing one, at a cost proportional to the changes.
    Edited { port: Option<ServicePort>, pools: BTreeMap<(PoolClass, IpFamily), PoolEdit> },
    /// Replaces it, or removes it.
    Replaced(Option<ServicePortState>),
}

enum PoolEdit {
    /// Endpoints that are added or changed, and those that are removed (`None`).
    Endpoints(BTreeMap<(IpAddr, NonZeroU16), Option<Endpoint>>),
    Whole(Pool),
}

// === impl Coalescer ===

impl<'a> Coalescer<'a> {
    pub(super) fn new(state: &'a NodeState) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Self { state, net_effect: NetEffect { nodes: Vec::new(), cluster: None, buckets } }
    }

    /// Adds the next operation, without endpoints that no traffic may be sent to. The frontend checks them too; this
    /// limits what a frontend that was taken over can do.
    pub(super) fn add(&mut self, mut operation: Operation) -> Result<(), RejectedOperation> {
        let unusable = remove_unusable(&mut operation);
        self.add_usable(operation)?;
        unusable.map_or(Ok(()), Err)
    }

    fn add_usable(&mut self, operation: Operation) -> Result<(), RejectedOperation> {
        match operation {
            Operation::PutServicePort(port) => self.put(port),
            Operation::RemoveServicePort(key) => {
                self.bucket(&key).service_ports.insert(key, ServicePortEffect::Replaced(None));
            }
            Operation::ChangePool { pool, add, remove } => {
                check_family(&pool, add.iter().chain(&remove))?;
                self.existing(&pool.key)?.change_pool(&pool, add, remove);
            }
            Operation::ReplacePool { pool, endpoints } => {
                check_family(&pool, endpoints.iter())?;
                self.existing(&pool.key)?.replace_pool(&pool, endpoints);
            }
            Operation::PutNode(node) if node.name != self.state.node().name => {
                return Err(RejectedOperation::OtherNode(node.name.to_string()));
            }
            Operation::PutNode(node) => {
                let nodes = &mut self.net_effect.nodes;
                nodes.retain(|earlier| node.is_unknown() && !earlier.is_unknown());
                nodes.push(node);
            }
            Operation::PutCluster(cluster) => self.net_effect.cluster = Some(cluster),
            Operation::ResetBucket(number) => {
                let bucket = self.net_effect.buckets.get_mut(usize::from(number));
                let bucket = bucket.ok_or(RejectedOperation::UnknownBucket(number))?;
                *bucket = Bucket { is_reset: true, ..Bucket::default() };
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> NetEffect {
        self.net_effect
    }

    fn put(&mut self, port: ServicePort) {
        match self.existing(&port.key) {
            Ok(ServicePortEffect::Edited { port: edited, .. }) => *edited = Some(port),
            Ok(ServicePortEffect::Replaced(Some(service))) => service.port = port,
            Ok(ServicePortEffect::Replaced(None)) | Err(_) => {
                let key = port.key.clone();
                let effect = ServicePortEffect::Replaced(Some(ServicePortState::new(port)));
                self.bucket(&key).service_ports.insert(key, effect);
            }
        }
    }

    /// The net effect on a service port that exists at this point.
    fn existing(&mut self, key: &ServicePortKey) -> Result<&mut ServicePortEffect, RejectedOperation> {
        let in_state = self.state.service_port(key).is_some();
        let bucket = self.bucket(key);
        if !bucket.service_ports.contains_key(key) && in_state && !bucket.is_reset {
            let unchanged = ServicePortEffect::Edited { port: None, pools: BTreeMap::new() };
            bucket.service_ports.insert(key.clone(), unchanged);
        }
        match bucket.service_ports.get_mut(key) {
            None | Some(ServicePortEffect::Replaced(None)) => Err(RejectedOperation::UnknownServicePort(key.clone())),
            Some(effect) => Ok(effect),
        }
    }

    fn bucket(&mut self, key: &ServicePortKey) -> &mut Bucket {
        &mut self.net_effect.buckets[usize::from(KeyHash::of(key).bucket())]
    }
}

// === impl ServicePortEffect ===

impl ServicePortEffect {
    fn change_pool(&mut self, id: &PoolId, add: Vec<Endpoint>, remove: Vec<Endpoint>) {
        match self {
            Self::Edited { pools, .. } => {
                let unchanged = || PoolEdit::Endpoints(BTreeMap::new());
                pools.entry((id.class, id.family)).or_insert_with(unchanged).change(add, remove);
            }
            Self::Replaced(Some(service)) => change(service.pool_mut(id.class, id.family), add, &remove),
            Self::Replaced(None) => {}
        }
    }

    fn replace_pool(&mut self, id: &PoolId, endpoints: Pool) {
        match self {
            Self::Edited { pools, .. } => drop(pools.insert((id.class, id.family), PoolEdit::Whole(endpoints))),
            Self::Replaced(Some(service)) => *service.pool_mut(id.class, id.family) = endpoints,
            Self::Replaced(None) => {}
        }
    }

    /// Whether the service port has no endpoints afterwards.
    fn empties(&self, service: &ServicePortState) -> bool {
        match self {
            Self::Edited { pools, .. } => service.selectable().all(|(class, family, pool)| {
                pools.get(&(class, family)).map_or(pool.is_empty(), |edit| edit.empties(pool))
            }),
            Self::Replaced(service) => !service.as_ref().is_some_and(ServicePortState::has_endpoints),
        }
    }

    /// The endpoints that leave a pool of the service port.
    fn leaving(&self, service: &ServicePortState) -> Vec<Endpoint> {
        let pools = service.pools().filter(|(class, ..)| *class != PoolClass::Gone);
        match self {
            Self::Edited { pools: edits, .. } => pools
                .filter_map(|(class, family, pool)| Some(edits.get(&(class, family))?.leaving(pool)))
                .flatten()
                .collect(),
            Self::Replaced(Some(_)) => pools.flat_map(|(.., pool)| pool.iter().copied()).collect(),
            Self::Replaced(None) => Vec::new(),
        }
    }

    fn apply(self, key: ServicePortKey, state: &mut NodeState) -> bool {
        match self {
            Self::Edited { port, pools } => {
                let mut changed = port.is_some_and(|port| state.set_port(port));
                let mut id = PoolId { key, class: PoolClass::Cluster, family: IpFamily::V4 };
                for ((class, family), edit) in pools {
                    id.class = class;
                    id.family = family;
                    changed |= edit.apply(&id, state);
                }
                changed
            }
            Self::Replaced(service) => state.set_service_port(&key, service),
        }
    }
}

// === impl PoolEdit ===

impl PoolEdit {
    /// Whether the pool is empty afterwards.
    fn empties(&self, pool: &Pool) -> bool {
        match self {
            Self::Whole(pool) => pool.is_empty(),
            Self::Endpoints(edits) => {
                let is_removed = |endpoint: &Endpoint| matches!(edits.get(&endpoint.identity()), Some(None));
                edits.values().all(Option::is_none) && pool.iter().all(is_removed)
            }
        }
    }

    /// The endpoints that leave the pool.
    fn leaving(&self, pool: &Pool) -> Vec<Endpoint> {
        match self {
            Self::Whole(after) => pool.iter().filter(|endpoint| !after.contains(endpoint)).copied().collect(),
            Self::Endpoints(edits) => {
                let removed = edits.iter().filter(|(_, endpoint)| endpoint.is_none());
                removed.filter_map(|((address, port), _)| pool.get(&Endpoint::new(*address, *port)).copied()).collect()
            }
        }
    }

    fn change(&mut self, add: Vec<Endpoint>, remove: Vec<Endpoint>) {
        match self {
            Self::Whole(pool) => change(pool, add, &remove),
            Self::Endpoints(edits) => {
                edits.extend(remove.iter().map(|endpoint| (endpoint.identity(), None)));
                edits.extend(add.into_iter().map(|endpoint| (endpoint.identity(), Some(endpoint))));
            }
        }
    }

    fn apply(self, id: &PoolId, state: &mut NodeState) -> bool {
        match self {
            Self::Whole(pool) => state.set_pool(id, pool),
            Self::Endpoints(edits) => edits.into_iter().fold(false, |changed, ((address, port), endpoint)| {
                changed | state.set_endpoint(id, address, port, endpoint)
            }),
        }
    }
}

/// An endpoint that is both removed and added is in the pool afterwards.
fn change(pool: &mut Pool, add: Vec<Endpoint>, remove: &[Endpoint]) {
    for endpoint in remove {
        pool.remove(endpoint);
    }
    for endpoint in add {
        pool.insert(endpoint);
    }
}

/// Removes the endpoints that no traffic may be sent to. Returns the first one.
fn remove_unusable(operation: &mut Operation) -> Option<RejectedOperation> {
    let is_unusable = |pool: &PoolId, endpoint: &Endpoint| {
        let stands_for_others = pool.class == PoolClass::Gone && *endpoint == Endpoint::any_other(pool.family);
        !stands_for_others && unusable(endpoint.address).is_some()
    };
    let (pool, removed): (_, Vec<Endpoint>) = match operation {
        Operation::ChangePool { pool, add, .. } => {
            let list = add.extract_if(.., |endpoint| is_unusable(pool, endpoint)).collect();
            (pool, list)
        }
        Operation::ReplacePool { pool, endpoints } => {
            let list: Vec<_> = endpoints.iter().filter(|endpoint| is_unusable(pool, endpoint)).copied().collect();
            for endpoint in &list {
                endpoints.remove(endpoint);
            }
            (pool, list)
        }
        _ => return None,
    };
    let endpoint = removed.first()?;
    let key = pool.key.clone();
    let address = endpoint.address;
    let reason = unusable(address)?;
    Some(RejectedOperation::UnusableEndpoint { key, address, reason, count: removed.len() })
}

/// Why no traffic may be sent to an address: it would reach the node itself, its link, or several hosts.
fn unusable(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if is_link_local => Some("a link-local address"),
        _ if address.is_multicast() || address == Ipv4Addr::BROADCAST => Some("a multicast or broadcast address"),
        _ if is_mapped => Some("an IPv4-mapped IPv6 address"),
        _ => None,
    }
}

/// Checks that all endpoints of a pool operation have the family of the pool.
fn check_family<'a>(pool: &PoolId, mut endpoints: impl Iterator<Item = &'a Endpoint>) -> Result<(), RejectedOperation> {
    let is_of_family = endpoints.all(|endpoint| IpFamily::of(&endpoint.address) == pool.family);
    is_of_family.then_some(()).ok_or_else(|| RejectedOperation::OtherFamily(pool.clone()))
}

// === impl NetEffect ===

impl NetEffect {
    /// The service ports that lose all their endpoints, as they are in `state`.
    pub(super) fn emptied(&self, state: &NodeState) -> Vec<ServicePortState> {
        let with_endpoints = |key| state.service_port(key).filter(|service| service.has_endpoints());
        let removed = self.removed_by_reset(state);
        let removed = removed.iter().filter_map(with_endpoints);
        let effects = self.buckets.iter().flat_map(|bucket| &bucket.service_ports);
        let emptied = effects.filter_map(|(key, effect)| with_endpoints(key).filter(|service| effect.empties(service)));
        removed.chain(emptied).cloned().collect()
    }

    /// Changes the state. Returns what actually differs, and which endpoints left TCP service ports.
    pub(super) fn apply(self, state: &mut NodeState) -> (Changes, DepartedEndpoints) {
        let mut changed = self.removed_by_reset(state);
        let Self { nodes, cluster, buckets } = self;
        for key in &changed {
            state.set_service_port(key, None);
        }
        let mut effects: Vec<_> = buckets.into_iter().flat_map(|bucket| bucket.service_ports).collect();
        // Inserting a snapshot in key order appends to the state's tree.
        effects.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut departed = DepartedEndpoints::new();
        for (key, effect) in effects {
            let before = state.service_port(&key).filter(|_| key.protocol == Protocol::Tcp);
            let mut leaving = before.map(|service| effect.leaving(service)).unwrap_or_default();
            if !effect.apply(key.clone(), state) {
                continue;
            }
            leaving.retain(|endpoint| state.service_port(&key).is_some_and(|after| !after.has_endpoint(endpoint)));
            if !leaving.is_empty() {
                departed.insert(key.clone(), leaving);
            }
            changed.push(key);
        }
        let changes = Changes {
            service_ports: changed.into_iter().collect(),
            node: nodes.into_iter().fold(false, |changed, node| state.put_node(node) | changed),
            cluster: cluster.is_some_and(|cluster| state.put_cluster(cluster)),
        };
        (changes, departed)
    }

    /// The service ports of reset buckets that were not put again. Inspects the whole state, but only after a reset.
    fn removed_by_reset(&self, state: &NodeState) -> Vec<ServicePortKey> {
        if self.buckets.iter().all(|bucket| !bucket.is_reset) {
            return Vec::new();
        }
        let keys = state.service_ports().keys().filter(|key| {
            let bucket = &self.buckets[usize::from(KeyHash::of(key).bucket())];
            bucket.is_reset && !bucket.service_ports.contains_key(*key)
        });
        keys.cloned().collect()
    }
}

//! Folds operations, one after the other, into their net effect on a state, and then applies that.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use proto::{
    digest::{BUCKETS, KeyHash},
    model::{
        ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, Pool, PoolClass, PoolId, ServicePort, ServicePortKey,
    },
};

use super::{RejectedOperation, check_family};
use crate::{Changes, NodeState, ServicePortState};

/// Folding in progress: the state that the operations are about, and what they amount to so far.
pub(super) struct Coalescer<'a> {
    state: &'a NodeState,
    folded: NetEffect,
}

/// The net effect of some operations.
pub(super) struct NetEffect {
    node: Option<NodeInfo>,
    cluster: Option<ClusterInfo>,
    buckets: Vec<Bucket>,
}

/// The service ports of one digest bucket.
#[derive(Default)]
struct Bucket {
    kept: Kept,
    services: BTreeMap<ServicePortKey, Staged>,
}

/// What happens to the service ports of a bucket that are not mentioned.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kept {
    #[default]
    Kept,
    Forgotten,
}

/// The net effect on one service port.
enum Staged {
    /// Changes to the one that the state holds; so they cost what they are, not what it is.
    Edited(Edit),
    /// This instead of what the state holds, if anything.
    Replaced(Option<ServicePortState>),
}

#[derive(Default)]
struct Edit {
    port: Option<ServicePort>,
    pools: BTreeMap<(PoolClass, IpFamily), PoolEdit>,
}

enum PoolEdit {
    /// What becomes of single endpoints: present as given, or absent.
    Endpoints(BTreeMap<(IpAddr, NonZeroU16), Presence>),
    Whole(Pool),
}

enum Presence {
    Present(Endpoint),
    Absent(Endpoint),
}

// === impl Coalescer ===

impl<'a> Coalescer<'a> {
    pub(super) fn new(state: &'a NodeState) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Self { state, folded: NetEffect { node: None, cluster: None, buckets } }
    }

    /// Takes in the next operation.
    pub(super) fn take(&mut self, operation: Operation) -> Result<(), RejectedOperation> {
        match operation {
            Operation::PutServicePort(port) => self.put(port),
            Operation::RemoveServicePort(key) => {
                self.bucket(&key).services.insert(key, Staged::Replaced(None));
            }
            Operation::ChangePool { pool, add, remove } => {
                check_family(&pool, add.iter().chain(&remove))?;
                self.known(&pool.key)?.change_pool(&pool, add, remove);
            }
            Operation::ReplacePool { pool, endpoints } => {
                check_family(&pool, endpoints.iter())?;
                self.known(&pool.key)?.replace_pool(&pool, endpoints);
            }
            Operation::PutNode(node) if node.name != self.state.node().name => {
                return Err(RejectedOperation::OtherNode(node.name.to_string()));
            }
            Operation::PutNode(node) => self.folded.node = Some(node),
            Operation::PutCluster(cluster) => self.folded.cluster = Some(cluster),
            Operation::ResetBucket(number) => {
                let bucket = self.folded.buckets.get_mut(usize::from(number));
                let bucket = bucket.ok_or(RejectedOperation::UnknownBucket(number))?;
                *bucket = Bucket { kept: Kept::Forgotten, services: BTreeMap::new() };
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> NetEffect {
        self.folded
    }

    fn put(&mut self, port: ServicePort) {
        match self.known(&port.key) {
            Ok(Staged::Edited(edit)) => edit.port = Some(port),
            Ok(Staged::Replaced(Some(service))) => service.port = port,
            Ok(Staged::Replaced(None)) | Err(_) => {
                let key = port.key.clone();
                let staged = Staged::Replaced(Some(ServicePortState::new(port)));
                self.bucket(&key).services.insert(key, staged);
            }
        }
    }

    /// What is staged for a service port that exists at this point.
    fn known(&mut self, key: &ServicePortKey) -> Result<&mut Staged, RejectedOperation> {
        let in_state = self.state.service_port(key).is_some();
        let bucket = self.bucket(key);
        if !bucket.services.contains_key(key) && in_state && bucket.kept == Kept::Kept {
            bucket.services.insert(key.clone(), Staged::Edited(Edit::default()));
        }
        match bucket.services.get_mut(key) {
            None | Some(Staged::Replaced(None)) => Err(RejectedOperation::UnknownServicePort(key.clone())),
            Some(staged) => Ok(staged),
        }
    }

    fn bucket(&mut self, key: &ServicePortKey) -> &mut Bucket {
        &mut self.folded.buckets[usize::from(KeyHash::of(key).bucket())]
    }
}

// === impl Staged ===

impl Staged {
    fn change_pool(&mut self, id: &PoolId, add: Vec<Endpoint>, remove: Vec<Endpoint>) {
        match self {
            Self::Edited(edit) => edit.pool(id).change(add, remove),
            Self::Replaced(Some(service)) => change(service.pool_mut(id.class, id.family), add, &remove),
            Self::Replaced(None) => {}
        }
    }

    fn replace_pool(&mut self, id: &PoolId, endpoints: Pool) {
        match self {
            Self::Edited(edit) => *edit.pool(id) = PoolEdit::Whole(endpoints),
            Self::Replaced(Some(service)) => *service.pool_mut(id.class, id.family) = endpoints,
            Self::Replaced(None) => {}
        }
    }

    /// Whether nothing that serves is left of a service.
    fn empties(&self, service: &ServicePortState) -> bool {
        match self {
            Self::Edited(edit) => edit.empties(service),
            Self::Replaced(service) => !service.as_ref().is_some_and(ServicePortState::has_endpoints),
        }
    }

    fn apply(self, key: ServicePortKey, state: &mut NodeState) -> bool {
        match self {
            Self::Edited(edit) => edit.apply(key, state),
            Self::Replaced(service) => state.set_service_port(&key, service),
        }
    }
}

// === impl Edit ===

impl Edit {
    /// Whether a service is left without an endpoint.
    fn empties(&self, service: &ServicePortState) -> bool {
        let pools = [PoolClass::Cluster, PoolClass::Local]
            .into_iter()
            .flat_map(|class| IpFamily::ALL.map(|family| (class, family)));
        pools.into_iter().all(|(class, family)| {
            let pool = service.pool(class, family);
            self.pools.get(&(class, family)).map_or(pool.is_empty(), |edit| edit.empties(pool))
        })
    }

    fn pool(&mut self, id: &PoolId) -> &mut PoolEdit {
        self.pools.entry((id.class, id.family)).or_insert_with(|| PoolEdit::Endpoints(BTreeMap::new()))
    }

    fn apply(self, key: ServicePortKey, state: &mut NodeState) -> bool {
        let Self { port, pools } = self;
        let mut changed = port.is_some_and(|port| state.set_port(port));
        let mut id = PoolId { key, class: PoolClass::Cluster, family: IpFamily::V4 };
        for ((class, family), edit) in pools {
            (id.class, id.family) = (class, family);
            changed |= edit.apply(&id, state);
        }
        changed
    }
}

// === impl PoolEdit ===

impl PoolEdit {
    /// Whether nothing is left of a pool.
    fn empties(&self, pool: &Pool) -> bool {
        match self {
            Self::Whole(pool) => pool.is_empty(),
            Self::Endpoints(edits) => {
                let stays = |endpoint: &Endpoint| !matches!(edits.get(&endpoint.identity()), Some(Presence::Absent(_)));
                let comes = |edit: &Presence| matches!(edit, Presence::Present(_));
                !edits.values().any(comes) && !pool.iter().any(stays)
            }
        }
    }

    fn change(&mut self, add: Vec<Endpoint>, remove: Vec<Endpoint>) {
        match self {
            Self::Whole(pool) => change(pool, add, &remove),
            Self::Endpoints(edits) => {
                let absent = remove.into_iter().map(|endpoint| (endpoint.identity(), Presence::Absent(endpoint)));
                edits.extend(absent);
                let present = add.into_iter().map(|endpoint| (endpoint.identity(), Presence::Present(endpoint)));
                edits.extend(present);
            }
        }
    }

    fn apply(self, id: &PoolId, state: &mut NodeState) -> bool {
        match self {
            Self::Whole(pool) => state.set_pool(id, pool),
            Self::Endpoints(edits) => edits.into_values().fold(false, |changed, edit| {
                changed
                    | match edit {
                        Presence::Present(endpoint) => state.add_endpoint(id, endpoint),
                        Presence::Absent(endpoint) => state.remove_endpoint(id, &endpoint),
                    }
            }),
        }
    }
}

/// What is both added and removed is there afterwards.
fn change(pool: &mut Pool, add: Vec<Endpoint>, remove: &[Endpoint]) {
    for endpoint in remove {
        pool.remove(endpoint);
    }
    for endpoint in add {
        pool.insert(endpoint);
    }
}

// === impl NetEffect ===

impl NetEffect {
    /// How many service ports that have endpoints will have none, or be gone.
    pub(super) fn lost(&self, state: &NodeState) -> usize {
        let has_endpoints =
            |key: &&ServicePortKey| state.service_port(key).is_some_and(ServicePortState::has_endpoints);
        let staged = self.buckets.iter().flat_map(|bucket| &bucket.services);
        let emptied = staged.filter(|(key, staged)| {
            state.service_port(key).is_some_and(|service| service.has_endpoints() && staged.empties(service))
        });
        self.forgotten(state).iter().filter(has_endpoints).count() + emptied.count()
    }

    /// Changes the state. What comes out as it was is no change.
    pub(super) fn apply(self, state: &mut NodeState) -> Changes {
        let forgotten = self.forgotten(state);
        let Self { node, cluster, buckets } = self;
        let mut services = forgotten;
        for key in &services {
            state.set_service_port(key, None);
        }
        let mut staged: Vec<_> = buckets.into_iter().flat_map(|bucket| bucket.services).collect();
        // A snapshot in the order of the keys grows the state at its end, instead of all over it.
        staged.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, staged) in staged {
            if staged.apply(key.clone(), state) {
                services.push(key);
            }
        }
        Changes {
            service_ports: services.into_iter().collect(),
            node: node.is_some_and(|node| state.put_node(node)),
            cluster: cluster.is_some_and(|cluster| state.put_cluster(cluster)),
        }
    }

    /// The service ports of reset buckets that did not come back. Looks at the whole state, but only after a reset.
    fn forgotten(&self, state: &NodeState) -> Vec<ServicePortKey> {
        if self.buckets.iter().all(|bucket| bucket.kept == Kept::Kept) {
            return Vec::new();
        }
        let keys = state.service_ports().keys().filter(|key| {
            let bucket = &self.buckets[usize::from(KeyHash::of(key).bucket())];
            bucket.kept == Kept::Forgotten && !bucket.services.contains_key(*key)
        });
        keys.cloned().collect()
    }
}

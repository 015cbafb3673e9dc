//! What each operation does to a state, and which operations are refused.

use std::{
    mem,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use super::{NodeState, ServicePortState};
use crate::{
    digest::{BUCKETS, Digest, KeyHash},
    model::{Endpoint, IpFamily, Operation, Pool, PoolClass, PoolId, ServicePort, ServicePortKey},
};

/// An operation that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedOperation {
    /// A pool operation for a service port that does not exist.
    #[error("service port {0} does not exist")]
    UnknownServicePort(ServicePortKey),
    /// An address of the other family in a pool.
    #[error("{}: the {} pool contains an address that is not {}", .0.key, .0.class, .0.family)]
    OtherFamily(PoolId),
    /// Endpoints that no traffic may be sent to. The rest of the operation is applied.
    #[error("{key}: ignored {count} endpoints, such as {address}: {reason}")]
    UnusableEndpoint {
        /// The service port.
        key: ServicePortKey,
        /// The address of the first one.
        address: IpAddr,
        /// What the address is.
        reason: &'static str,
        /// How many of them there are.
        count: usize,
    },
    /// The info of another node.
    #[error("node info is for node {0}, not for this node")]
    OtherNode(String),
    /// A number without a digest bucket.
    #[error("digest bucket {0} does not exist")]
    UnknownBucket(u8),
}

impl NodeState {
    /// Applies operations, in order. Returns why some cannot be applied; the digests then differ from the frontend's.
    pub fn apply(&mut self, operations: impl IntoIterator<Item = Operation>) -> Vec<RejectedOperation> {
        let mut rejected = Vec::new();
        // Buckets are reset together: each reset inspects all service ports.
        let mut resets = [false; BUCKETS];
        for operation in operations {
            if let Operation::ResetBucket(number) = operation
                && let Some(reset) = resets.get_mut(usize::from(number))
            {
                *reset = true;
                continue;
            }
            self.reset(mem::replace(&mut resets, [false; BUCKETS]));
            rejected.extend(self.apply_one(operation));
        }
        self.reset(resets);
        rejected
    }

    /// Applies an operation without the endpoints that no traffic may be sent to. The frontend checks them too; this
    /// limits what a frontend that was taken over can do.
    fn apply_one(&mut self, mut operation: Operation) -> Option<RejectedOperation> {
        let unusable = remove_unusable(&mut operation);
        let mut rejected = None;
        match operation {
            Operation::PutServicePort(port) => self.put_service_port(port),
            Operation::RemoveServicePort(key) => self.set_service_port(&key, None),
            Operation::ChangePool { pool, add, remove } => rejected = self.change_pool(&pool, add, &remove).err(),
            Operation::ReplacePool { pool, endpoints } => rejected = self.replace_pool(&pool, endpoints).err(),
            Operation::PutNode(node) if node.name != self.node().name => {
                rejected = Some(RejectedOperation::OtherNode(node.name.to_string()));
            }
            Operation::PutNode(node) => self.put_node(node),
            Operation::PutCluster(cluster) => self.put_cluster(cluster),
            Operation::ResetBucket(number) => rejected = Some(RejectedOperation::UnknownBucket(number)),
        }
        rejected.or(unusable)
    }

    /// Creates or replaces a service port. Its pools stay.
    fn put_service_port(&mut self, port: ServicePort) {
        match self.service_port(&port.key) {
            None => self.set_service_port(&port.key.clone(), Some(ServicePortState::new(port))),
            Some(before) if before.port != port => {
                if let Some((hash, service_port)) = self.service_ports.get_mut(&port.key) {
                    let mut change = Digest::of_service_port(&port);
                    change.remove(Digest::of_service_port(&service_port.port));
                    service_port.port = port;
                    self.digest_mut(hash).add(change);
                }
            }
            Some(_) => {}
        }
    }

    /// An endpoint that is both removed and added is in the pool afterwards.
    fn change_pool(&mut self, id: &PoolId, add: Vec<Endpoint>, remove: &[Endpoint]) -> Result<(), RejectedOperation> {
        check_family(id, add.iter().chain(remove))?;
        let pool = self.pool(id)?;
        let has_all = add.iter().all(|endpoint| pool.get(endpoint) == Some(endpoint));
        if has_all && !remove.iter().any(|endpoint| pool.contains(endpoint)) {
            return Ok(());
        }

        self.change(id, |hash, pool| {
            let mut change = Digest::default();
            for endpoint in remove {
                if let Some(before) = pool.remove(endpoint) {
                    change.remove(hash.endpoint(id.class, &before));
                }
            }
            for endpoint in add {
                if let Some(before) = pool.get(&endpoint) {
                    change.remove(hash.endpoint(id.class, before));
                }
                change.add(hash.endpoint(id.class, &endpoint));
                pool.insert(endpoint);
            }
            change
        })
    }

    fn replace_pool(&mut self, id: &PoolId, endpoints: Pool) -> Result<(), RejectedOperation> {
        check_family(id, endpoints.iter())?;
        if *self.pool(id)? == endpoints {
            return Ok(());
        }
        self.change(id, |hash, pool| {
            let mut change = hash.pool(id.class, &endpoints);
            change.remove(hash.pool(id.class, pool));
            *pool = endpoints;
            change
        })
    }

    fn pool(&self, id: &PoolId) -> Result<&Pool, RejectedOperation> {
        match self.service_port(&id.key) {
            Some(service_port) => Ok(service_port.pool(id.class, id.family)),
            None => Err(RejectedOperation::UnknownServicePort(id.key.clone())),
        }
    }

    /// Changes a pool of an existing service port. `change` returns how much the digest grows.
    fn change(
        &mut self,
        id: &PoolId,
        change: impl FnOnce(KeyHash, &mut Pool) -> Digest,
    ) -> Result<(), RejectedOperation> {
        let Some((hash, service_port)) = self.service_ports.get_mut(&id.key) else {
            return Err(RejectedOperation::UnknownServicePort(id.key.clone()));
        };
        let change = change(hash, service_port.pool_mut(id.class, id.family));
        self.digest_mut(hash).add(change);
        Ok(())
    }

    /// Removes all service ports of some buckets.
    fn reset(&mut self, buckets: [bool; BUCKETS]) {
        if !buckets.contains(&true) {
            return;
        }
        self.service_ports.remove_buckets(&buckets);
        let digests = Arc::make_mut(&mut self.digests);
        for (number, is_reset) in (0..=u8::MAX).zip(buckets) {
            if is_reset {
                digests[number] = Digest::default();
            }
        }
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

    let address = removed.first()?.address;
    Some(RejectedOperation::UnusableEndpoint {
        key: pool.key.clone(),
        address,
        reason: unusable(address)?,
        count: removed.len(),
    })
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
    if endpoints.all(|endpoint| IpFamily::of(&endpoint.address) == pool.family) {
        return Ok(());
    }
    Err(RejectedOperation::OtherFamily(pool.clone()))
}

//! Operations that are sent together, and encoded and compressed at most once for all streams.

use std::sync::{Arc, OnceLock};

use proto::{
    encoded::{DeflatedOperations, EncodedOperation},
    model::{Endpoint, Operation, Pool, PoolId, ServicePort, ServicePortKey},
};

use crate::metrics::Metrics;

/// The target size of a chunk in bytes; a single operation may be larger. A change replaces those of its buckets.
pub(crate) const CHUNK_BYTES: usize = 24 << 10;

/// The maximum number of endpoints in one operation: at 19 bytes each they fit into a chunk.
const OPERATION_ENDPOINTS: usize = 1_000;

/// The bytes of an address with tag and length, IPv6.
const ADDRESS_BYTES: usize = 18;
/// The bytes of a `Cidr` with tag and length, IPv6.
const CIDR_BYTES: usize = 23;
/// The bytes of an endpoint of a local pool, IPv6.
const ENDPOINT_BYTES: usize = 19;
/// An upper bound for all fixed-size fields, tags and lengths of any operation.
const FIXED_BYTES: usize = 128;

/// Operations that are sent together, in chunks of about [`CHUNK_BYTES`].
pub(super) type Chunks = Arc<[Arc<EncodedChunk>]>;

/// Some operations, as values and, after the first use, in encoded form.
#[derive(Debug)]
pub(crate) struct EncodedChunk {
    operations: Box<[Operation]>,
    size: usize,
    encoded: OnceLock<EncodedOperation>,
    deflated: OnceLock<DeflatedOperations>,
}

impl EncodedChunk {
    fn new(operations: Vec<Operation>, size: usize) -> Arc<Self> {
        Arc::new(Self { operations: operations.into(), size, encoded: OnceLock::new(), deflated: OnceLock::new() })
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// An upper bound of the encoded size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The encoded operations, to be sent. The first call encodes them.
    pub(crate) fn encoded(&self, metrics: &Metrics) -> EncodedOperation {
        metrics.chunks_sent.inc();
        self.encoded.get_or_init(|| self.encode(metrics)).clone()
    }

    /// The operations in compressed form, to be sent. The first call compresses them, and encodes them for that.
    pub(crate) fn deflated(&self, metrics: &Metrics) -> DeflatedOperations {
        metrics.chunks_sent.inc();
        let encoded = || self.encoded.get().cloned().unwrap_or_else(|| self.encode(metrics));
        self.deflated.get_or_init(|| DeflatedOperations::new(&encoded())).clone()
    }

    fn encode(&self, metrics: &Metrics) -> EncodedOperation {
        metrics.chunks_encoded.inc();
        EncodedOperation::all(&self.operations)
    }

    /// About the memory that it takes, in bytes: the values, their encoded form, and half of that for the compressed.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.operations.len() * size_of::<Operation>() + 5 * self.size / 2
    }

    /// Packs operations into chunks, in order.
    pub(super) fn pack(operations: impl IntoIterator<Item = Operation>) -> Chunks {
        let mut chunks = Vec::new();
        let mut pending = Vec::new();
        let mut size = 0;
        for operation in operations {
            let more = size_bound(&operation);
            if size + more > CHUNK_BYTES && !pending.is_empty() {
                chunks.push(Self::new(std::mem::take(&mut pending), size));
                size = 0;
            }
            pending.push(operation);
            size += more;
        }
        if !pending.is_empty() {
            chunks.push(Self::new(pending, size));
        }
        chunks.into()
    }
}

/// Appends operations that replace a pool.
pub(super) fn replace(pool: PoolId, endpoints: &Pool, operations: &mut Vec<Operation>) {
    let mut parts = endpoints.chunks(OPERATION_ENDPOINTS);
    let first = parts.next().unwrap_or_default().iter().copied().collect();
    operations.push(Operation::ReplacePool { pool: pool.clone(), endpoints: first });
    for part in parts {
        operations.push(Operation::ChangePool { pool: pool.clone(), add: part.to_vec(), remove: Vec::new() });
    }
}

/// Appends operations that add and remove endpoints of a pool.
pub(super) fn change(pool: PoolId, add: Vec<Endpoint>, remove: Vec<Endpoint>, operations: &mut Vec<Operation>) {
    if add.len() + remove.len() <= OPERATION_ENDPOINTS {
        operations.push(Operation::ChangePool { pool, add, remove });
        return;
    }
    for part in remove.chunks(OPERATION_ENDPOINTS) {
        operations.push(Operation::ChangePool { pool: pool.clone(), add: Vec::new(), remove: part.to_vec() });
    }
    for part in add.chunks(OPERATION_ENDPOINTS) {
        operations.push(Operation::ChangePool { pool: pool.clone(), add: part.to_vec(), remove: Vec::new() });
    }
}

/// An upper bound of the encoded size of an operation in bytes.
fn size_bound(operation: &Operation) -> usize {
    let variable = match operation {
        Operation::PutServicePort(port) => service_port_bytes(port),
        Operation::RemoveServicePort(key) => key_bytes(key),
        Operation::ChangePool { pool, add, remove } => {
            key_bytes(&pool.key) + ENDPOINT_BYTES * (add.len() + remove.len())
        }
        Operation::ReplacePool { pool, endpoints } => key_bytes(&pool.key) + ENDPOINT_BYTES * endpoints.len(),
        Operation::PutNode(node) => {
            node.name.len() + node.zone.len() + ADDRESS_BYTES * node.addresses.len() + CIDR_BYTES * node.pod_cidrs.len()
        }
        Operation::PutCluster(cluster) => CIDR_BYTES * cluster.service_cidrs.len(),
        Operation::ResetBucket(_) => 0,
    };
    FIXED_BYTES + variable
}

fn service_port_bytes(port: &ServicePort) -> usize {
    let ips = port.external_ips.len() + port.load_balancer_ips.len();
    key_bytes(&port.key) + ADDRESS_BYTES * ips + CIDR_BYTES * port.source_ranges.len()
}

fn key_bytes(key: &ServicePortKey) -> usize {
    key.namespace.len() + key.name.len() + key.port_name.len()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proto::model::{ClusterInfo, IpFamily, NodeInfo, PoolClass, Protocol};

    use super::*;

    fn key() -> ServicePortKey {
        ServicePortKey::new("n".repeat(63), "s".repeat(63), "p".repeat(63), Protocol::Sctp)
    }

    fn endpoints(count: u16) -> Vec<Endpoint> {
        let endpoint = |low: u16| Endpoint {
            address: std::net::Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, low).into(),
            port: NonZeroU16::MAX,
            terminating: true,
        };
        (0..count).map(endpoint).collect()
    }

    fn pool_id() -> PoolId {
        PoolId { key: key(), class: PoolClass::Local, family: IpFamily::V6 }
    }

    #[test]
    fn size_bound_is_never_below_the_encoded_size() {
        let addresses: Vec<_> = endpoints(40).iter().map(|endpoint| endpoint.address).collect();
        let cidrs: Vec<_> = addresses.iter().map(|address| ipnet::IpNet::from(*address)).collect();
        let mut port = ServicePort::new(key(), NonZeroU16::MAX);
        port.cluster_ips.v4 = Some("192.0.2.1".parse().unwrap());
        port.cluster_ips.v6 = Some(addresses[0]);
        port.node_port = Some(NonZeroU16::MAX);
        port.external_ips = addresses.clone();
        port.load_balancer_ips = addresses.clone();
        port.source_ranges = cidrs.clone();
        port.internal_policy = proto::model::TrafficPolicy::Local;
        port.external_policy = proto::model::TrafficPolicy::Local;
        port.affinity_seconds = std::num::NonZeroU32::new(u32::MAX);
        port.health_check_node_port = Some(NonZeroU16::MAX);
        port.any_endpoints = proto::model::PerFamily { v4: true, v6: true };
        let mut node = NodeInfo::unknown("n".repeat(253));
        node.zone = "z".repeat(63).into();
        node.addresses = addresses;
        node.pod_cidrs = cidrs.clone();
        node.eligible = true;
        let pool = endpoints(5000).into_iter().collect();
        for operation in [
            Operation::PutServicePort(port),
            Operation::PutServicePort(ServicePort::new(key(), NonZeroU16::MIN)),
            Operation::RemoveServicePort(key()),
            Operation::ChangePool { pool: pool_id(), add: endpoints(700), remove: endpoints(300) },
            Operation::ReplacePool { pool: pool_id(), endpoints: pool },
            Operation::PutNode(node),
            Operation::PutCluster(ClusterInfo { service_cidrs: cidrs }),
            Operation::ResetBucket(127),
        ] {
            assert!(EncodedOperation::new(&operation).size() <= size_bound(&operation), "{operation:?}");
        }
    }

    #[test]
    fn large_pools_are_split_below_the_message_size_limit() {
        let all: Pool = endpoints(u16::MAX).into_iter().collect();
        let mut operations = Vec::new();
        replace(pool_id(), &all, &mut operations);
        change(pool_id(), all.to_vec(), all.to_vec(), &mut operations);
        let chunks = EncodedChunk::pack(operations);
        assert!(chunks.iter().all(|chunk| chunk.size() < proto::MAX_MESSAGE_BYTES - 1024));
        let sent = chunks.iter().flat_map(|chunk| chunk.operations()).map(|operation| match operation {
            Operation::ReplacePool { endpoints, .. } => endpoints.len(),
            Operation::ChangePool { add, remove, .. } => add.len() + remove.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(sent.sum::<usize>(), 3 * all.len());
    }

    #[test]
    fn packing_keeps_the_order_and_limits_the_size() {
        let operations: Vec<_> = (0..2000).map(|n| Operation::ResetBucket((n % 128) as u8)).collect();
        let chunks = EncodedChunk::pack(operations.clone());
        assert!(chunks.len() > 1);
        assert!(chunks.iter().all(|chunk| chunk.size() <= CHUNK_BYTES));
        let packed: Vec<_> = chunks.iter().flat_map(|chunk| chunk.operations().to_vec()).collect();
        assert_eq!(packed, operations);
        assert!(EncodedChunk::pack([]).is_empty());
    }
}

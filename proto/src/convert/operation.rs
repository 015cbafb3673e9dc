//! Operations, the node and cluster info that they set, and batches.

use super::{
    InvalidMessage, each,
    enums::WireEnum as _,
    from_unix_micros,
    message::wire_kind_versions,
    pack::{addresses, pack_address, pack_endpoints, unpack_endpoints},
    service_port::required_key,
    sorted, unix_micros, within,
};
use crate::{
    digest::BUCKETS,
    model::{Batch, ClusterInfo, IpFamily, NodeInfo, Operation, PoolClass, PoolId, Revision, SourceVersion},
    v1,
};

fn pool_id(wire: Option<v1::ServicePortKey>, class: i32, family: i32) -> Result<PoolId, InvalidMessage> {
    let class = PoolClass::from_wire(class, "class")?;
    let family = IpFamily::from_wire(family, "family")?;
    Ok(PoolId { key: required_key(wire)?, class, family })
}

fn bucket(value: u32) -> Result<u8, InvalidMessage> {
    let bucket = u8::try_from(value).ok().filter(|bucket| usize::from(*bucket) < BUCKETS);
    bucket.ok_or_else(|| InvalidMessage::new("reset_bucket", format!("{value} is not a bucket (0 to {})", BUCKETS - 1)))
}

impl From<&Operation> for v1::Operation {
    fn from(operation: &Operation) -> Self {
        use v1::operation::Operation as Wire;
        let operation = match operation {
            Operation::PutServicePort(port) => Wire::PutServicePort(port.into()),
            Operation::RemoveServicePort(key) => Wire::RemoveServicePort(key.into()),
            Operation::ChangePool { pool, add, remove } => Wire::ChangePool(v1::PoolChange {
                key: Some((&pool.key).into()),
                class: pool.class.to_wire(),
                family: pool.family.to_wire(),
                add: pack_endpoints(pool.class, add),
                remove: pack_endpoints(pool.class, remove),
            }),
            Operation::ReplacePool { pool, endpoints } => Wire::ReplacePool(v1::PoolReplacement {
                key: Some((&pool.key).into()),
                class: pool.class.to_wire(),
                family: pool.family.to_wire(),
                endpoints: pack_endpoints(pool.class, endpoints),
            }),
            Operation::PutNode(node) => Wire::PutNode(node.into()),
            Operation::PutCluster(cluster) => Wire::PutCluster(cluster.into()),
            Operation::ResetBucket(bucket) => Wire::ResetBucket((*bucket).into()),
        };
        Self { operation: Some(operation) }
    }
}

impl TryFrom<v1::Operation> for Operation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Operation) -> Result<Self, InvalidMessage> {
        use v1::operation::Operation as Wire;
        let operation = wire.operation.ok_or_else(|| {
            InvalidMessage::new("operation", "is unknown: the frontend is newer than this backend; upgrade the backend")
        })?;
        Ok(match operation {
            Wire::PutServicePort(port) => Self::PutServicePort(port.try_into().map_err(within("put_service_port"))?),
            Wire::RemoveServicePort(key) => {
                Self::RemoveServicePort(key.try_into().map_err(within("remove_service_port"))?)
            }
            Wire::ChangePool(wire) => change_pool(wire).map_err(within("change_pool"))?,
            Wire::ReplacePool(wire) => replace_pool(wire).map_err(within("replace_pool"))?,
            Wire::PutNode(node) => Self::PutNode(node.try_into().map_err(within("put_node"))?),
            Wire::PutCluster(cluster) => Self::PutCluster(cluster.try_into().map_err(within("put_cluster"))?),
            Wire::ResetBucket(value) => Self::ResetBucket(bucket(value)?),
        })
    }
}

fn change_pool(wire: v1::PoolChange) -> Result<Operation, InvalidMessage> {
    let pool = pool_id(wire.key, wire.class, wire.family)?;
    let add = unpack_endpoints(pool.class, pool.family, &wire.add, "add")?;
    let remove = unpack_endpoints(pool.class, pool.family, &wire.remove, "remove")?;
    Ok(Operation::ChangePool { pool, add, remove })
}

fn replace_pool(wire: v1::PoolReplacement) -> Result<Operation, InvalidMessage> {
    let pool = pool_id(wire.key, wire.class, wire.family)?;
    let endpoints = unpack_endpoints(pool.class, pool.family, &wire.endpoints, "endpoints")?;
    Ok(Operation::ReplacePool { pool, endpoints: endpoints.into_iter().collect() })
}

impl From<&NodeInfo> for v1::NodeInfo {
    fn from(node: &NodeInfo) -> Self {
        Self {
            name: node.name.to_string(),
            addresses: node.addresses.iter().map(pack_address).collect(),
            pod_cidrs: node.pod_cidrs.iter().map(Into::into).collect(),
            zone: node.zone.to_string(),
            eligible: node.eligible,
        }
    }
}

impl TryFrom<v1::NodeInfo> for NodeInfo {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodeInfo) -> Result<Self, InvalidMessage> {
        if wire.name.is_empty() {
            return Err(InvalidMessage::new("name", "is empty"));
        }
        Ok(Self {
            name: wire.name.into(),
            addresses: addresses(&wire.addresses, "addresses")?,
            pod_cidrs: each(&wire.pod_cidrs, "pod_cidrs")?,
            zone: wire.zone.into(),
            eligible: wire.eligible,
        })
    }
}

impl From<&ClusterInfo> for v1::ClusterInfo {
    fn from(cluster: &ClusterInfo) -> Self {
        Self { service_cidrs: cluster.service_cidrs.iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::ClusterInfo> for ClusterInfo {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ClusterInfo) -> Result<Self, InvalidMessage> {
        Ok(Self { service_cidrs: sorted(each(&wire.service_cidrs, "service_cidrs")?) })
    }
}

impl From<&Batch> for v1::Batch {
    fn from(batch: &Batch) -> Self {
        Self {
            base_revision: batch.base.0,
            target_revision: batch.target.0,
            operations: batch.operations.iter().map(Into::into).collect(),
            commit: batch.commit,
            oldest_trigger_micros: batch.oldest_trigger.map_or(0, unix_micros),
            source_version: batch.source_version.0,
            kind_versions: wire_kind_versions(batch.kind_versions),
        }
    }
}

impl TryFrom<v1::Batch> for Batch {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Batch) -> Result<Self, InvalidMessage> {
        Ok(Self {
            base: Revision(wire.base_revision),
            target: Revision(wire.target_revision),
            operations: each(wire.operations, "operations")?,
            commit: wire.commit,
            oldest_trigger: from_unix_micros(wire.oldest_trigger_micros),
            source_version: SourceVersion(wire.source_version),
            kind_versions: wire.kind_versions.unwrap_or_default(),
        })
    }
}

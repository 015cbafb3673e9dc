//! Model to wire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;

use super::pack::{pack_address, pack_endpoints};
use crate::{
    digest::DigestVector,
    model::{
        Ack, Batch, ClientMessage, ClusterInfo, FailureKind, Hello, IpFamily, NodeInfo, Operation, PoolClass, Protocol,
        Role, ServerMessage, ServicePort, ServicePortFailure, ServicePortKey, SyncMode, TrafficPolicy, Welcome,
    },
    v1,
};

/// A length of time in whole microseconds, as the wire has it.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn unix_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, micros)
}

impl From<Protocol> for v1::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}

impl From<TrafficPolicy> for v1::TrafficPolicy {
    fn from(policy: TrafficPolicy) -> Self {
        match policy {
            TrafficPolicy::Cluster => Self::Cluster,
            TrafficPolicy::Local => Self::Local,
        }
    }
}

impl From<PoolClass> for v1::PoolClass {
    fn from(class: PoolClass) -> Self {
        match class {
            PoolClass::Cluster => Self::Cluster,
            PoolClass::Local => Self::Local,
        }
    }
}

impl From<IpFamily> for v1::IpFamily {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::V4,
            IpFamily::V6 => Self::V6,
        }
    }
}

impl From<Role> for v1::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Backend => Self::Backend,
            Role::Observer => Self::Observer,
            Role::Shadow => Self::Shadow,
        }
    }
}

impl From<SyncMode> for v1::SyncMode {
    fn from(mode: SyncMode) -> Self {
        match mode {
            SyncMode::Resume => Self::Resume,
            SyncMode::Repair => Self::Repair,
            SyncMode::Snapshot => Self::Snapshot,
        }
    }
}

impl From<&ServicePortKey> for v1::ServicePortKey {
    fn from(key: &ServicePortKey) -> Self {
        Self {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            port_name: key.port_name.to_string(),
            protocol: v1::Protocol::from(key.protocol).into(),
        }
    }
}

impl From<&IpNet> for v1::Cidr {
    fn from(range: &IpNet) -> Self {
        Self { address: pack_address(&range.addr()), prefix_length: range.prefix_len().into() }
    }
}

impl From<&ServicePort> for v1::ServicePort {
    fn from(port: &ServicePort) -> Self {
        let ServicePort {
            key,
            port,
            cluster_ips,
            node_port,
            external_ips,
            load_balancer_ips,
            source_ranges,
            internal_policy,
            external_policy,
            affinity_seconds,
            health_check_node_port,
            any_endpoints,
            ipvs_scheduler,
        } = port;
        Self {
            key: Some(key.into()),
            port: port.get().into(),
            cluster_ips: cluster_ips.iter().filter_map(|(_, ip)| ip.as_ref()).map(pack_address).collect(),
            node_port: node_port.map_or(0, |port| port.get().into()),
            external_ips: external_ips.iter().map(pack_address).collect(),
            load_balancer_ips: load_balancer_ips.iter().map(pack_address).collect(),
            source_ranges: source_ranges.iter().map(Into::into).collect(),
            internal_policy: v1::TrafficPolicy::from(*internal_policy).into(),
            external_policy: v1::TrafficPolicy::from(*external_policy).into(),
            affinity_seconds: affinity_seconds.map_or(0, Into::into),
            health_check_node_port: health_check_node_port.map_or(0, |port| port.get().into()),
            any_endpoints_v4: any_endpoints.v4,
            any_endpoints_v6: any_endpoints.v6,
            ipvs_scheduler: ipvs_scheduler.map_or_else(String::new, |scheduler| scheduler.to_string()),
        }
    }
}

impl From<&NodeInfo> for v1::NodeInfo {
    fn from(node: &NodeInfo) -> Self {
        let NodeInfo { name, addresses, pod_cidrs, zone, eligible } = node;
        Self {
            name: name.to_string(),
            addresses: addresses.iter().map(pack_address).collect(),
            pod_cidrs: pod_cidrs.iter().map(Into::into).collect(),
            zone: zone.to_string(),
            eligible: *eligible,
        }
    }
}

impl From<&ClusterInfo> for v1::ClusterInfo {
    fn from(cluster: &ClusterInfo) -> Self {
        Self { service_cidrs: cluster.service_cidrs.iter().map(Into::into).collect() }
    }
}

impl From<&Operation> for v1::Operation {
    fn from(operation: &Operation) -> Self {
        use v1::operation::Operation as Wire;
        let operation = match operation {
            Operation::PutServicePort(port) => Wire::PutServicePort(port.into()),
            Operation::RemoveServicePort(key) => Wire::RemoveServicePort(key.into()),
            Operation::ChangePool { pool, add, remove } => Wire::ChangePool(v1::PoolChange {
                key: Some((&pool.key).into()),
                class: v1::PoolClass::from(pool.class).into(),
                family: v1::IpFamily::from(pool.family).into(),
                add: pack_endpoints(pool.class, add),
                remove: pack_endpoints(pool.class, remove),
            }),
            Operation::ReplacePool { pool, endpoints } => Wire::ReplacePool(v1::PoolReplacement {
                key: Some((&pool.key).into()),
                class: v1::PoolClass::from(pool.class).into(),
                family: v1::IpFamily::from(pool.family).into(),
                endpoints: pack_endpoints(pool.class, endpoints),
            }),
            Operation::PutNode(node) => Wire::PutNode(node.into()),
            Operation::PutCluster(cluster) => Wire::PutCluster(cluster.into()),
            Operation::ResetBucket(bucket) => Wire::ResetBucket((*bucket).into()),
        };
        Self { operation: Some(operation) }
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
        }
    }
}

impl From<FailureKind> for v1::FailureKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Program => Self::Program,
            FailureKind::HealthCheck => Self::HealthCheck,
        }
    }
}

impl From<&ServicePortFailure> for v1::ServicePortFailure {
    fn from(failure: &ServicePortFailure) -> Self {
        Self {
            key: Some((&failure.key).into()),
            reason: failure.reason.clone(),
            retryable: failure.retryable,
            kind: v1::FailureKind::from(failure.kind).into(),
        }
    }
}

impl From<&ServerMessage> for v1::ServerMessage {
    fn from(event: &ServerMessage) -> Self {
        use v1::server_message::Message;
        let message = match event {
            ServerMessage::Welcome(Welcome { epoch, mode, source_version }) => Message::Welcome(v1::Welcome {
                protocol_version: crate::PROTOCOL_VERSION,
                features: Vec::new(),
                epoch: epoch.0,
                mode: v1::SyncMode::from(*mode).into(),
                source_version: source_version.0,
            }),
            ServerMessage::Batch(batch) => Message::Batch(batch.into()),
            ServerMessage::Bookmark(revision, digest) => {
                Message::Bookmark(v1::Bookmark { revision: revision.0, digest: digest.0 })
            }
            ServerMessage::Drain(delay) => {
                let max_delay_millis = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
                Message::Drain(v1::Drain { max_delay_millis })
            }
            ServerMessage::DigestRequest => Message::DigestRequest(v1::DigestRequest {}),
        };
        Self { message: Some(message) }
    }
}

impl From<&ClientMessage> for v1::ClientMessage {
    fn from(event: &ClientMessage) -> Self {
        use v1::client_message::Message;
        let message = match event {
            ClientMessage::Hello(hello) => {
                let Hello { node, role, backend, backend_version, resume, digests, source_version, started } = hello;
                let (epoch, revision) = resume.unwrap_or_default();
                Message::Hello(v1::Hello {
                    protocol_version: crate::PROTOCOL_VERSION,
                    features: Vec::new(),
                    node: node.to_string(),
                    role: v1::Role::from(*role).into(),
                    backend: backend.clone(),
                    backend_version: backend_version.clone(),
                    epoch: epoch.0,
                    revision: revision.0,
                    digests: digests.as_deref().map(DigestVector::to_vec).unwrap_or_default(),
                    source_version: source_version.0,
                    started_micros: started.map_or(0, unix_micros),
                })
            }
            ClientMessage::Ack(Ack { revision, digest, apply_time, failures }) => Message::Ack(v1::Ack {
                revision: revision.0,
                digest: digest.map_or(0, |digest| digest.0),
                apply_micros: micros(*apply_time),
                failures: failures.iter().map(Into::into).collect(),
            }),
            ClientMessage::DigestResponse(revision, digests) => {
                Message::DigestResponse(v1::DigestResponse { revision: revision.0, digests: digests.to_vec() })
            }
        };
        Self { message: Some(message) }
    }
}

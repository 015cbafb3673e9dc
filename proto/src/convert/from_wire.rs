//! Wire to model: everything is checked here, once.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use ipnet::IpNet;

use super::{
    InvalidMessage, Within,
    pack::{unpack_address, unpack_endpoints},
    required,
};
use crate::{
    PROTOCOL_VERSION,
    digest::{BUCKETS, Digest, DigestVector},
    model::{
        Ack, Batch, ClientMessage, ClusterInfo, Epoch, FailureKind, Hello, IpFamily, IpvsScheduler, NodeInfo,
        Operation, ParseSchedulerError, PerFamily, Pool, PoolClass, PoolId, Protocol, Revision, Role, ServerMessage,
        ServicePort, ServicePortFailure, ServicePortKey, SourceVersion, SyncMode, TrafficPolicy, Welcome,
    },
    v1,
};

fn port(value: u32, field: &str) -> Result<NonZeroU16, InvalidMessage> {
    let port = u16::try_from(value).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| InvalidMessage::new(field, format!("{value} is no port (1 to 65535)")))
}

fn optional_port(value: u32, field: &str) -> Result<Option<NonZeroU16>, InvalidMessage> {
    if value == 0 { Ok(None) } else { port(value, field).map(Some) }
}

fn optional_scheduler(text: &str, field: &str) -> Result<Option<IpvsScheduler>, InvalidMessage> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: ParseSchedulerError| InvalidMessage::new(field, error))
}

/// Sorted, each once.
fn addresses(wire: &[Bytes], field: &str) -> Result<Vec<IpAddr>, InvalidMessage> {
    let mut addresses = addresses_in_order(wire, field)?;
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn addresses_in_order(wire: &[Bytes], field: &str) -> Result<Vec<IpAddr>, InvalidMessage> {
    let entries = wire.iter().enumerate();
    entries.map(|(at, bytes)| unpack_address(bytes, &format!("{field}[{at}]"))).collect()
}

fn cidrs(wire: &[v1::Cidr], field: &str) -> Result<Vec<IpNet>, InvalidMessage> {
    let entries = wire.iter().enumerate();
    entries.map(|(at, cidr)| IpNet::try_from(cidr).within(format_args!("{field}[{at}]"))).collect()
}

fn key(wire: Option<v1::ServicePortKey>) -> Result<ServicePortKey, InvalidMessage> {
    required(wire, "key")?.try_into().within("key")
}

fn pool_id(wire: Option<v1::ServicePortKey>, class: i32, family: i32) -> Result<PoolId, InvalidMessage> {
    let class = match v1::PoolClass::try_from(class) {
        Ok(v1::PoolClass::Cluster) => PoolClass::Cluster,
        Ok(v1::PoolClass::Local) => PoolClass::Local,
        _ => return Err(InvalidMessage::new("class", format!("unknown pool class {class}"))),
    };
    let family = match v1::IpFamily::try_from(family) {
        Ok(v1::IpFamily::V4) => IpFamily::V4,
        Ok(v1::IpFamily::V6) => IpFamily::V6,
        _ => return Err(InvalidMessage::new("family", format!("unknown IP family {family}"))),
    };
    Ok(PoolId { key: key(wire)?, class, family })
}

fn policy(value: i32, field: &str) -> Result<TrafficPolicy, InvalidMessage> {
    match v1::TrafficPolicy::try_from(value) {
        Ok(v1::TrafficPolicy::Unspecified | v1::TrafficPolicy::Cluster) => Ok(TrafficPolicy::Cluster),
        Ok(v1::TrafficPolicy::Local) => Ok(TrafficPolicy::Local),
        Err(_) => Err(InvalidMessage::new(field, format!("unknown traffic policy {value}"))),
    }
}

fn digests(entries: &[u64], field: &str) -> Result<Box<DigestVector>, InvalidMessage> {
    let digests = DigestVector::from_slice(entries).map(Box::new);
    digests.ok_or_else(|| InvalidMessage::new(field, format!("{} entries, expected {}", entries.len(), BUCKETS + 1)))
}

fn protocol_version(version: u32) -> Result<(), InvalidMessage> {
    if version == PROTOCOL_VERSION {
        return Ok(());
    }
    let reason = format!(
        "the other side speaks version {version}, this side speaks {PROTOCOL_VERSION}: run the same minor release on both"
    );
    Err(InvalidMessage::new("protocol_version", reason))
}

impl TryFrom<v1::ServicePortKey> for ServicePortKey {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePortKey) -> Result<Self, InvalidMessage> {
        let protocol = match v1::Protocol::try_from(wire.protocol) {
            Ok(v1::Protocol::Tcp) => Protocol::Tcp,
            Ok(v1::Protocol::Udp) => Protocol::Udp,
            Ok(v1::Protocol::Sctp) => Protocol::Sctp,
            _ => {
                let reason = format!("unknown protocol {}", wire.protocol);
                return Err(InvalidMessage::new("protocol", reason));
            }
        };
        for (field, value) in [("namespace", &wire.namespace), ("name", &wire.name)] {
            if value.is_empty() {
                return Err(InvalidMessage::new(field, "is empty"));
            }
        }
        Ok(Self::new(wire.namespace, wire.name, wire.port_name, protocol))
    }
}

impl TryFrom<&v1::Cidr> for IpNet {
    type Error = InvalidMessage;

    fn try_from(wire: &v1::Cidr) -> Result<Self, InvalidMessage> {
        let address = unpack_address(&wire.address, "address")?;
        let invalid = || {
            let reason = format!("/{} is too long for {address}", wire.prefix_length);
            InvalidMessage::new("prefix_length", reason)
        };
        let length = u8::try_from(wire.prefix_length).map_err(|_| invalid())?;
        Ok(Self::new(address, length).map_err(|_| invalid())?.trunc())
    }
}

impl TryFrom<v1::ServicePort> for ServicePort {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePort) -> Result<Self, InvalidMessage> {
        let mut cluster_ips = PerFamily::<Option<IpAddr>>::default();
        for (at, bytes) in wire.cluster_ips.iter().enumerate() {
            let field = format!("cluster_ips[{at}]");
            let ip = unpack_address(bytes, &field)?;
            if cluster_ips[IpFamily::of(&ip)].replace(ip).is_some() {
                let reason = format!("{ip} is the second of {}", IpFamily::of(&ip));
                return Err(InvalidMessage::new(field, reason));
            }
        }
        let mut source_ranges = cidrs(&wire.source_ranges, "source_ranges")?;
        source_ranges.sort_unstable();
        source_ranges.dedup();
        Ok(Self {
            key: key(wire.key)?,
            port: port(wire.port, "port")?,
            cluster_ips,
            node_port: optional_port(wire.node_port, "node_port")?,
            external_ips: addresses(&wire.external_ips, "external_ips")?,
            load_balancer_ips: addresses(&wire.load_balancer_ips, "load_balancer_ips")?,
            source_ranges,
            internal_policy: policy(wire.internal_policy, "internal_policy")?,
            external_policy: policy(wire.external_policy, "external_policy")?,
            affinity_seconds: NonZeroU32::new(wire.affinity_seconds),
            health_check_node_port: optional_port(wire.health_check_node_port, "health_check_node_port")?,
            any_endpoints: PerFamily { v4: wire.any_endpoints_v4, v6: wire.any_endpoints_v6 },
            ipvs_scheduler: optional_scheduler(&wire.ipvs_scheduler, "ipvs_scheduler")?,
        })
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
            addresses: addresses_in_order(&wire.addresses, "addresses")?,
            pod_cidrs: cidrs(&wire.pod_cidrs, "pod_cidrs")?,
            zone: wire.zone.into(),
            eligible: wire.eligible,
        })
    }
}

impl TryFrom<v1::ClusterInfo> for ClusterInfo {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ClusterInfo) -> Result<Self, InvalidMessage> {
        let mut service_cidrs = cidrs(&wire.service_cidrs, "service_cidrs")?;
        service_cidrs.sort_unstable();
        service_cidrs.dedup();
        Ok(Self { service_cidrs })
    }
}

impl TryFrom<v1::Operation> for Operation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Operation) -> Result<Self, InvalidMessage> {
        use v1::operation::Operation as Wire;
        let operation = wire.operation.ok_or_else(|| {
            InvalidMessage::new("operation", "unknown: the frontend is newer than this agent, or broken")
        })?;
        Ok(match operation {
            Wire::PutServicePort(port) => Self::PutServicePort(port.try_into().within("put_service_port")?),
            Wire::RemoveServicePort(key) => Self::RemoveServicePort(key.try_into().within("remove_service_port")?),
            Wire::ChangePool(change) => Self::try_from(change).within("change_pool")?,
            Wire::ReplacePool(replacement) => Self::try_from(replacement).within("replace_pool")?,
            Wire::PutNode(node) => Self::PutNode(node.try_into().within("put_node")?),
            Wire::PutCluster(cluster) => Self::PutCluster(cluster.try_into().within("put_cluster")?),
            Wire::ResetBucket(bucket) => {
                let number = u8::try_from(bucket).ok().filter(|number| usize::from(*number) < BUCKETS);
                Self::ResetBucket(number.ok_or_else(|| {
                    InvalidMessage::new("reset_bucket", format!("{bucket} is no bucket (0 to {})", BUCKETS - 1))
                })?)
            }
        })
    }
}

impl TryFrom<v1::PoolChange> for Operation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PoolChange) -> Result<Self, InvalidMessage> {
        let pool = pool_id(wire.key, wire.class, wire.family)?;
        let add = unpack_endpoints(pool.class, pool.family, &wire.add, "add")?;
        let remove = unpack_endpoints(pool.class, pool.family, &wire.remove, "remove")?;
        Ok(Self::ChangePool { pool, add, remove })
    }
}

impl TryFrom<v1::PoolReplacement> for Operation {
    type Error = InvalidMessage;

    fn try_from(wire: v1::PoolReplacement) -> Result<Self, InvalidMessage> {
        let pool = pool_id(wire.key, wire.class, wire.family)?;
        let endpoints = unpack_endpoints(pool.class, pool.family, &wire.endpoints, "endpoints")?;
        Ok(Self::ReplacePool { pool, endpoints: endpoints.into_iter().collect::<Pool>() })
    }
}

impl TryFrom<v1::Batch> for Batch {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Batch) -> Result<Self, InvalidMessage> {
        let operations = wire.operations.into_iter().enumerate();
        let operations = operations
            .map(|(at, operation)| operation.try_into().within(format_args!("operations[{at}]")))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            base: Revision(wire.base_revision),
            target: Revision(wire.target_revision),
            operations,
            commit: wire.commit,
            oldest_trigger: time(wire.oldest_trigger_micros),
            source_version: SourceVersion(wire.source_version),
        })
    }
}

impl TryFrom<v1::Welcome> for Welcome {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Welcome) -> Result<Self, InvalidMessage> {
        protocol_version(wire.protocol_version)?;
        let mode = match v1::SyncMode::try_from(wire.mode) {
            Ok(v1::SyncMode::Resume) => SyncMode::Resume,
            Ok(v1::SyncMode::Repair) => SyncMode::Repair,
            Ok(v1::SyncMode::Snapshot) => SyncMode::Snapshot,
            _ => return Err(InvalidMessage::new("mode", format!("unknown mode {}", wire.mode))),
        };
        if wire.epoch == 0 {
            return Err(InvalidMessage::new("epoch", "is 0"));
        }
        Ok(Self { epoch: Epoch(wire.epoch), mode, source_version: SourceVersion(wire.source_version) })
    }
}

impl TryFrom<v1::ServerMessage> for ServerMessage {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServerMessage) -> Result<Self, InvalidMessage> {
        use v1::server_message::Message;
        Ok(match required(wire.message, "message")? {
            Message::Welcome(welcome) => Self::Welcome(welcome.try_into().within("welcome")?),
            Message::Batch(batch) => Self::Batch(batch.try_into().within("batch")?),
            Message::Bookmark(v1::Bookmark { revision, digest }) => Self::Bookmark(Revision(revision), Digest(digest)),
            Message::Drain(drain) => Self::Drain(Duration::from_millis(drain.max_delay_millis.into())),
            Message::DigestRequest(v1::DigestRequest {}) => Self::DigestRequest,
        })
    }
}

/// Unix time in microseconds; 0 is unknown.
fn time(micros: u64) -> Option<SystemTime> {
    (micros != 0).then(|| UNIX_EPOCH.checked_add(Duration::from_micros(micros))).flatten()
}

impl TryFrom<v1::ServicePortFailure> for ServicePortFailure {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePortFailure) -> Result<Self, InvalidMessage> {
        let kind = match v1::FailureKind::try_from(wire.kind) {
            Ok(v1::FailureKind::HealthCheck) => FailureKind::HealthCheck,
            // Of a newer client's kinds this much is true: something is not in force.
            Ok(v1::FailureKind::Unspecified | v1::FailureKind::Program) | Err(_) => FailureKind::Program,
        };
        Ok(Self { key: key(wire.key)?, reason: wire.reason, retryable: wire.retryable, kind })
    }
}

impl TryFrom<v1::Hello> for Hello {
    type Error = InvalidMessage;

    fn try_from(wire: v1::Hello) -> Result<Self, InvalidMessage> {
        protocol_version(wire.protocol_version)?;
        if wire.node.is_empty() {
            return Err(InvalidMessage::new("node", "is empty: say which node's view is wanted"));
        }
        let role = match v1::Role::try_from(wire.role) {
            Ok(v1::Role::Unspecified | v1::Role::Backend) => Role::Backend,
            Ok(v1::Role::Observer) => Role::Observer,
            Ok(v1::Role::Shadow) => Role::Shadow,
            Err(_) => return Err(InvalidMessage::new("role", format!("unknown role {}", wire.role))),
        };
        let held = (!wire.digests.is_empty()).then(|| digests(&wire.digests, "digests")).transpose()?;
        Ok(Self {
            node: wire.node.into(),
            role,
            backend: backend_name(wire.backend),
            backend_version: wire.backend_version,
            resume: (wire.epoch != 0).then_some((Epoch(wire.epoch), Revision(wire.revision))),
            digests: held,
            source_version: SourceVersion(wire.source_version),
            started: time(wire.started_micros),
        })
    }
}

/// Clients before 0.1 call the nftables backend `nft`.
fn backend_name(name: String) -> String {
    if name == "nft" { "nftables".to_owned() } else { name }
}

impl TryFrom<v1::ClientMessage> for ClientMessage {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ClientMessage) -> Result<Self, InvalidMessage> {
        use v1::client_message::Message;
        Ok(match required(wire.message, "message")? {
            Message::Hello(hello) => Self::Hello(hello.try_into().within("hello")?),
            Message::Ack(ack) => {
                let failures = ack.failures.into_iter().enumerate();
                let failures = failures
                    .map(|(at, failure)| failure.try_into().within(format_args!("ack.failures[{at}]")))
                    .collect::<Result<_, _>>()?;
                Self::Ack(Ack {
                    revision: Revision(ack.revision),
                    digest: (ack.digest != 0).then_some(Digest(ack.digest)),
                    apply_time: Duration::from_micros(ack.apply_micros),
                    failures,
                })
            }
            Message::DigestResponse(message) => {
                Self::DigestResponse(Revision(message.revision), digests(&message.digests, "digest_response.digests")?)
            }
        })
    }
}

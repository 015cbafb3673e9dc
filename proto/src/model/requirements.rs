//! Which features an operation or a message requires. A peer that has not listed them is not sent it: the frontend
//! checks this in its `MessageSink`, a backend in its `OpenSession`.
//!
//! The patterns name every operation and every field of an operation, so that a new one does not compile before it is
//! decided here. Frontend and backend also compare digests of service ports, node info and cluster info: a client that
//! ignores a new field of them computes another digest, so such a field requires a feature.

use super::{
    Ack, Batch, ClientMessage, ClusterInfo, Feature, Features, NodeInfo, Operation, PoolClass, ServerMessage,
    ServicePort,
};

impl Operation {
    /// The features that a client must have listed to receive this operation.
    #[must_use]
    pub const fn requires(&self) -> Features {
        match self {
            Self::PutServicePort(port) => port.requires(),
            Self::PutNode(node) => node.requires(),
            Self::PutCluster(ClusterInfo { service_cidrs: _ }) => Features::NONE,
            Self::ChangePool { pool, add: _, remove: _ } | Self::ReplacePool { pool, endpoints: _ } => {
                pool.class.requires()
            }
            Self::RemoveServicePort(_) | Self::ResetBucket(_) => Features::NONE,
        }
    }
}

impl PoolClass {
    /// The features of a peer that has pools of this class.
    #[must_use]
    pub const fn requires(self) -> Features {
        match self {
            Self::Cluster | Self::Local => Features::NONE,
            Self::Established | Self::Gone => Features::of(&[Feature::EstablishedPools]),
        }
    }
}

impl ServicePort {
    const fn requires(&self) -> Features {
        let Self {
            key: _,
            port: _,
            cluster_ips: _,
            node_port: _,
            external_ips: _,
            load_balancer_ips: _,
            source_ranges: _,
            internal_policy: _,
            external_policy: _,
            affinity_seconds: _,
            health_check_node_port: _,
            any_endpoints: _,
            ipvs_scheduler: _,
        } = self;
        Features::NONE
    }
}

impl NodeInfo {
    const fn requires(&self) -> Features {
        let Self { name: _, addresses: _, pod_cidrs: _, zone: _, eligible: _ } = self;
        Features::NONE
    }
}

impl ServerMessage {
    /// The features that a client must have listed to receive this message.
    #[must_use]
    pub fn requires(&self) -> Features {
        match self {
            Self::Batch(Batch { operations, .. }) => {
                operations.iter().fold(Features::NONE, |all, operation| all.union(operation.requires()))
            }
            Self::Welcome(_) | Self::Bookmark(..) | Self::Drain(_) | Self::DigestRequest => Features::NONE,
        }
    }
}

impl ClientMessage {
    /// The features that a frontend must have listed to receive this message.
    #[must_use]
    pub const fn requires(&self) -> Features {
        match self {
            Self::Ack(Ack { unfinished: 1.., .. }) => Features::of(&[Feature::UnfinishedAcks]),
            Self::Hello(_) | Self::Ack(_) | Self::DigestResponse(..) => Features::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::model::{
        IpFamily, KindVersions, Pool, PoolId, Protocol, Revision, ServicePortKey, SourceVersion, SyncMode,
        VersionRange, Welcome,
    };

    /// The operations with all fields set that the first version of the protocol has.
    fn operations() -> Vec<Operation> {
        let key = ServicePortKey::new("default", "web", "http", Protocol::Tcp);
        let mut port = ServicePort::new(key.clone(), NonZeroU16::MIN);
        port.node_port = Some(NonZeroU16::MIN);
        port.health_check_node_port = Some(NonZeroU16::MAX);
        port.ipvs_scheduler = "mh:port".parse().ok();
        let pool = PoolId { key: key.clone(), class: PoolClass::Local, family: IpFamily::V6 };
        vec![
            Operation::PutServicePort(port),
            Operation::RemoveServicePort(key),
            Operation::ChangePool { pool: pool.clone(), add: Vec::new(), remove: Vec::new() },
            Operation::ReplacePool { pool, endpoints: Pool::default() },
            Operation::PutNode(NodeInfo::unknown("node")),
            Operation::PutCluster(ClusterInfo::default()),
            Operation::ResetBucket(0),
        ]
    }

    #[test]
    fn clients_without_features_receive_the_operations_of_the_first_version() {
        for operation in operations() {
            assert_eq!(operation.requires(), Features::NONE, "{operation:?}");
        }
        let batch = ServerMessage::Batch(Batch { operations: operations(), ..Batch::default() });
        let (epoch, mode) = (crate::model::Epoch(1), SyncMode::Snapshot);
        let (version, features) = (VersionRange::SUPPORTED.min, Features::of(&Feature::ALL));
        let welcome = Welcome {
            version,
            features,
            epoch,
            mode,
            source_version: SourceVersion::default(),
            kind_versions: KindVersions::default(),
        };
        for message in [batch, ServerMessage::Welcome(welcome), ServerMessage::DigestRequest] {
            assert_eq!(message.requires(), Features::NONE, "{message:?}");
        }
    }

    #[test]
    fn frontends_without_features_receive_the_acks_of_the_first_version() {
        let ack = |unfinished| {
            let (revision, apply_time) = (Revision(1), Default::default());
            ClientMessage::Ack(Ack {
                revision,
                digest: None,
                apply_time,
                failures: Vec::new(),
                unfinished,
                degraded: Vec::new(),
            })
        };
        assert_eq!(ack(0).requires(), Features::NONE);
        assert_eq!(ack(1).requires(), Features::of(&[Feature::UnfinishedAcks]));
    }
}

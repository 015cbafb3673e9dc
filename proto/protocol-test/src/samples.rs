//! The sample cluster of the scenarios. Its addresses are from documentation ranges, so nothing answers at them.

use std::{net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;
use proto::{
    model::{
        ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, PoolClass, PoolId, Protocol, ServicePort, ServicePortKey,
    },
    state::NodeState,
};

const NAMESPACE: &str = "protocol-test";

/// The state of a node after these operations.
pub(crate) fn state(name: &str, operations: &[Operation]) -> NodeState {
    let mut state = NodeState::new(node(name));
    state.put_cluster(cluster());
    state.apply(operations.iter().cloned());
    state
}

/// Creates the initial state: three service ports with endpoints.
pub(crate) fn initial_operations() -> Vec<Operation> {
    let mut operations = put_with_pools(&key("web", Protocol::Tcp), 1);
    operations.extend(put_with_pools(&key("dns", Protocol::Udp), 2));
    operations.extend(put_with_pools(&key("api", Protocol::Tcp), 3));
    operations
}

pub(crate) fn key(name: &str, protocol: Protocol) -> ServicePortKey {
    ServicePortKey::new(NAMESPACE, name, "", protocol)
}

/// Creates a service port with two endpoints in each cluster pool and one in the IPv4 local pool.
pub(crate) fn put_with_pools(key: &ServicePortKey, number: u8) -> Vec<Operation> {
    let both = |family| [endpoint(family, number), endpoint(family, number + 100)];
    let cluster = |family| replace_pool(key, PoolClass::Cluster, family, &both(family));
    vec![
        Operation::PutServicePort(service_port(key, number)),
        cluster(IpFamily::V4),
        cluster(IpFamily::V6),
        replace_pool(key, PoolClass::Local, IpFamily::V4, &[endpoint(IpFamily::V4, number)]),
    ]
}

/// Creates a service port that is not in the initial state.
pub(crate) fn put_late() -> Vec<Operation> {
    put_with_pools(&key("late", Protocol::Tcp), 4)
}

/// Removes a service port of protocol TCP.
pub(crate) fn remove(name: &str) -> Operation {
    Operation::RemoveServicePort(key(name, Protocol::Tcp))
}

/// A service port; `number` is the last byte of its cluster IPs.
pub(crate) fn service_port(key: &ServicePortKey, number: u8) -> ServicePort {
    let mut port = ServicePort::new(key.clone(), NonZeroU16::MIN.saturating_add(8079));
    port.cluster_ips.v4 = Some(IpAddr::from([198, 51, 100, number]));
    port.cluster_ips.v6 = Some(IpAddr::from([0x2001, 0xdb8, 0x198, 0, 0, 0, 0, u16::from(number)]));
    port.any_endpoints.v4 = true;
    port.any_endpoints.v6 = true;
    port
}

/// An endpoint; `number` is the last byte of its address.
pub(crate) fn endpoint(family: IpFamily, number: u8) -> Endpoint {
    let address = match family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, number]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0x203, 0, 0, 0, 0, u16::from(number)]),
    };
    Endpoint::new(address, NonZeroU16::MIN.saturating_add(8000))
}

pub(crate) fn pool_id(key: &ServicePortKey, class: PoolClass, family: IpFamily) -> PoolId {
    PoolId { key: key.clone(), class, family }
}

pub(crate) fn replace_pool(
    key: &ServicePortKey,
    class: PoolClass,
    family: IpFamily,
    endpoints: &[Endpoint],
) -> Operation {
    let endpoints = endpoints.iter().copied().collect();
    Operation::ReplacePool { pool: pool_id(key, class, family), endpoints }
}

fn node(name: &str) -> NodeInfo {
    NodeInfo {
        addresses: vec![IpAddr::from([192, 0, 2, 1])],
        pod_cidrs: vec![IpNet::new_assert(IpAddr::from([203, 0, 113, 0]), 24)],
        zone: "zone-a".into(),
        eligible: true,
        ..NodeInfo::unknown(name)
    }
}

fn cluster() -> ClusterInfo {
    ClusterInfo { service_cidrs: vec![IpNet::new_assert(IpAddr::from([198, 51, 100, 0]), 24)] }
}

//! The small cluster of the scenarios: addresses of documentation, so that whatever is programmed leads nowhere.

use std::{net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;
use proto::model::{
    ClusterInfo, Endpoint, IpFamily, NodeInfo, Operation, PoolClass, PoolId, Protocol, ServicePort, ServicePortKey,
};

/// The namespace of all Services.
const NAMESPACE: &str = "conformance";

/// What there is at first: three service ports with endpoints.
pub(crate) fn services() -> Vec<Operation> {
    [("web", 1, Protocol::Tcp), ("dns", 2, Protocol::Udp), ("api", 3, Protocol::Tcp)]
        .into_iter()
        .flat_map(|(name, number, protocol)| service(&key(name, protocol), number))
        .collect()
}

/// The key of a service port.
pub(crate) fn key(name: &str, protocol: Protocol) -> ServicePortKey {
    ServicePortKey::new(NAMESPACE, name, "", protocol)
}

/// A service port that is put, with two endpoints in each cluster pool and one in a local pool.
pub(crate) fn service(key: &ServicePortKey, number: u8) -> Vec<Operation> {
    let cluster =
        |family| replace(key, PoolClass::Cluster, family, &[endpoint(family, number), endpoint(family, number + 100)]);
    vec![
        Operation::PutServicePort(port(key, number)),
        cluster(IpFamily::V4),
        cluster(IpFamily::V6),
        replace(key, PoolClass::Local, IpFamily::V4, &[endpoint(IpFamily::V4, number)]),
    ]
}

/// The service port alone.
pub(crate) fn port(key: &ServicePortKey, number: u8) -> ServicePort {
    let mut port = ServicePort::new(key.clone(), NonZeroU16::MIN.saturating_add(8079));
    port.cluster_ips.v4 = Some(IpAddr::from([198, 51, 100, number]));
    port.cluster_ips.v6 = Some(IpAddr::from([0x2001, 0xdb8, 0x198, 0, 0, 0, 0, u16::from(number)]));
    port.any_endpoints.v4 = true;
    port.any_endpoints.v6 = true;
    port
}

/// An endpoint of a family.
pub(crate) fn endpoint(family: IpFamily, number: u8) -> Endpoint {
    let address = match family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, number]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0x203, 0, 0, 0, 0, u16::from(number)]),
    };
    Endpoint::new(address, NonZeroU16::MIN.saturating_add(8000))
}

/// A pool of a service port.
pub(crate) fn pool(key: &ServicePortKey, class: PoolClass, family: IpFamily) -> PoolId {
    PoolId { key: key.clone(), class, family }
}

/// A pool that holds exactly this.
pub(crate) fn replace(key: &ServicePortKey, class: PoolClass, family: IpFamily, endpoints: &[Endpoint]) -> Operation {
    let endpoints = endpoints.iter().copied().collect();
    Operation::ReplacePool { pool: pool(key, class, family), endpoints }
}

/// The facts about the node.
pub(crate) fn node(name: &str) -> NodeInfo {
    NodeInfo {
        addresses: vec![IpAddr::from([192, 0, 2, 1])],
        pod_cidrs: vec![cidr(IpAddr::from([203, 0, 113, 0]), 24)].into_iter().flatten().collect(),
        zone: "zone-a".into(),
        eligible: true,
        ..NodeInfo::unknown(name)
    }
}

/// The facts about the cluster.
pub(crate) fn cluster() -> ClusterInfo {
    ClusterInfo { service_cidrs: cidr(IpAddr::from([198, 51, 100, 0]), 24).into_iter().collect() }
}

fn cidr(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length).ok()
}

//! What is to be tried, and what this node should see: pure.

use std::net::{IpAddr, SocketAddr};

use backend::{NodeState, ServicePortState, dataplane::allowed_sources};
use proto::model::{IpFamily, PoolClass, Protocol, TrafficPolicy};
use serde::Serialize;

/// An address of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) service: String,
    pub(super) way: Way,
    pub(super) protocol: Protocol,
    pub(super) address: SocketAddr,
    pub(super) affinity: Affinity,
    pub(super) expected: Expected,
}

/// What kind of address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Affinity {
    None,
    ClientIp,
}

/// What should happen to a connection from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// One of these takes it.
    Endpoints(Vec<SocketAddr>),
    Refused,
    Silence,
}

/// All addresses of the services that `wanted` takes, but for SCTP. `source`: which of its addresses this node takes to another.
pub(super) fn targets(
    state: &NodeState,
    wanted: impl Fn(&ServicePortState) -> bool,
    source: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Vec<Target> {
    let services = state.service_ports().values().filter(|service| service.port.key.protocol != Protocol::Sctp);
    services.filter(|service| wanted(service)).flat_map(|service| of(service, state, &source)).collect()
}

fn of(service: &ServicePortState, state: &NodeState, source: impl Fn(IpAddr) -> Option<IpAddr>) -> Vec<Target> {
    let port = &service.port;
    let mut ways = Vec::new();
    ways.extend(port.cluster_ips.iter().filter_map(|(_, ip)| Some((Way::ClusterIp, (*ip)?, port.port.get()))));
    ways.extend(port.external_ips.iter().map(|ip| (Way::ExternalIp, *ip, port.port.get())));
    ways.extend(port.load_balancer_ips.iter().map(|ip| (Way::LoadBalancerIp, *ip, port.port.get())));
    if let Some(number) = port.node_port {
        let own = IpFamily::ALL.into_iter().filter_map(|family| state.node().primary_address(family));
        ways.extend(own.map(|ip| (Way::NodePort, ip, number.get())));
    }
    let target = |(way, ip, number): (Way, IpAddr, u16)| Target {
        service: port.key.to_string(),
        way,
        protocol: port.key.protocol,
        address: SocketAddr::new(ip, number),
        affinity: if port.affinity_seconds.is_some() { Affinity::ClientIp } else { Affinity::None },
        expected: expected(service, state, way, ip, source(ip)),
    };
    ways.into_iter().map(target).collect()
}

/// What docs/protocol.md says of a packet that the node itself sends.
fn expected(service: &ServicePortState, state: &NodeState, way: Way, ip: IpAddr, source: Option<IpAddr>) -> Expected {
    let (port, family) = (&service.port, IpFamily::of(&ip));
    if way == Way::LoadBalancerIp
        && let Some(allowed) = allowed_sources(port, ip, &state.node().addresses)
        && !source.is_some_and(|source| allowed.iter().any(|cidr| cidr.contains(&source)))
    {
        return Expected::Silence;
    }
    // To policy Local of external traffic the node itself is not outside.
    let class = match (way, port.internal_policy) {
        (Way::ClusterIp, TrafficPolicy::Local) => PoolClass::Local,
        _ => PoolClass::Cluster,
    };
    let pool = service.pool(class, family);
    if !pool.is_empty() {
        let endpoints = pool.endpoints().iter();
        return Expected::Endpoints(
            endpoints.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get())).collect(),
        );
    }
    if port.any_endpoints[family] { Expected::Silence } else { Expected::Refused }
}

//! Builders for states. Addresses, ports and prefixes are strings as in a manifest; an invalid one panics.

use std::{
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    num::{NonZeroU16, NonZeroU32},
    str::FromStr,
};

use proto::model::{
    ClusterInfo, Endpoint, IpFamily, NodeInfo, PoolClass, Protocol, ServicePort, ServicePortKey, TrafficPolicy,
};

use crate::{NodeState, ServicePortState};

/// The name of the node in every built state.
pub const NODE_NAME: &str = "node-1";

/// Builds a node state. See [`mk_state`].
#[derive(Clone, Debug)]
pub struct StateBuilder {
    node: NodeInfo,
    cluster: ClusterInfo,
    services: Vec<ServicePortState>,
}

/// Builds a service port with its pools.
#[derive(Clone, Debug)]
pub struct ServiceBuilder {
    service: ServicePortState,
}

/// A state without services: node [`NODE_NAME`] in zone `zone-a` with the addresses 192.168.1.1 and fd00:1::1 and the
/// pod CIDRs 10.244.1.0/24 and fd00:244:1::/64; service CIDRs 10.96.0.0/12 and fd00:96::/108.
#[must_use]
pub fn mk_state() -> StateBuilder {
    StateBuilder {
        node: NodeInfo {
            name: NODE_NAME.into(),
            addresses: parse_all(["192.168.1.1", "fd00:1::1"]),
            pod_cidrs: parse_all(["10.244.1.0/24", "fd00:244:1::/64"]),
            zone: "zone-a".into(),
            eligible: true,
        },
        cluster: ClusterInfo { service_cidrs: parse_all(["10.96.0.0/12", "fd00:96::/108"]) },
        services: Vec::new(),
    }
}

/// A key from `namespace/name`, `namespace/name:port-name`, `namespace/name/udp` or `namespace/name:port-name/sctp`;
/// TCP by default.
#[must_use]
pub fn mk_key(key: &str) -> ServicePortKey {
    let mut parts = key.split('/');
    let (namespace, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    assert!(!namespace.is_empty() && !name.is_empty(), "{key:?}: expected namespace/name");
    let protocol = parts.next().map_or(Protocol::Tcp, |protocol| parse(&protocol.to_uppercase()));
    let (name, port_name) = name.split_once(':').unwrap_or((name, ""));
    ServicePortKey::new(namespace, name, port_name, protocol)
}

// === impl StateBuilder ===

impl StateBuilder {
    /// Changes the node's facts.
    #[must_use]
    pub fn node(mut self, change: impl FnOnce(&mut NodeInfo)) -> Self {
        change(&mut self.node);
        self
    }

    /// Replaces the node's addresses, the primary ones first.
    #[must_use]
    pub fn node_addresses<'a>(mut self, addresses: impl IntoIterator<Item = &'a str>) -> Self {
        self.node.addresses = parse_all(addresses);
        self
    }

    /// Replaces the node's pod CIDRs.
    #[must_use]
    pub fn pod_cidrs<'a>(mut self, cidrs: impl IntoIterator<Item = &'a str>) -> Self {
        self.node.pod_cidrs = parse_all(cidrs);
        self
    }

    /// Replaces the cluster's service CIDRs.
    #[must_use]
    pub fn service_cidrs<'a>(mut self, cidrs: impl IntoIterator<Item = &'a str>) -> Self {
        self.cluster.service_cidrs = parse_all(cidrs);
        self.cluster.service_cidrs.sort_unstable();
        self
    }

    /// Adds or replaces a service port (for its key see [`mk_key`]). The default port is 80.
    #[must_use]
    pub fn service(mut self, key: &str, build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> Self {
        let port = ServicePort::new(mk_key(key), number(80));
        self.services.push(build(ServiceBuilder { service: ServicePortState::new(port) }).service);
        self
    }

    /// Builds the state.
    #[must_use]
    pub fn build(self) -> NodeState {
        let Self { node, cluster, services } = self;
        let mut state = NodeState::new(node);
        state.put_cluster(cluster);
        for service in services {
            state.set_service_port(&service.port.key.clone(), Some(service));
        }
        state
    }
}

// === impl ServiceBuilder ===

impl ServiceBuilder {
    /// The port at every VIP.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.service.port.port = number(port);
        self
    }

    /// The cluster IP of its family.
    #[must_use]
    pub fn cluster_ip(mut self, ip: &str) -> Self {
        let ip: IpAddr = parse(ip);
        self.service.port.cluster_ips[IpFamily::of(&ip)] = Some(ip);
        self
    }

    /// The node port.
    #[must_use]
    pub fn node_port(mut self, port: u16) -> Self {
        self.service.port.node_port = Some(number(port));
        self
    }

    /// One more external IP.
    #[must_use]
    pub fn external_ip(mut self, ip: &str) -> Self {
        insert(&mut self.service.port.external_ips, parse(ip));
        self
    }

    /// One more load-balancer IP.
    #[must_use]
    pub fn load_balancer_ip(mut self, ip: &str) -> Self {
        insert(&mut self.service.port.load_balancer_ips, parse(ip));
        self
    }

    /// One more source range.
    #[must_use]
    pub fn source_range(mut self, range: &str) -> Self {
        insert(&mut self.service.port.source_ranges, parse(range));
        self
    }

    /// Internal traffic policy Local.
    #[must_use]
    pub fn internal_local(mut self) -> Self {
        self.service.port.internal_policy = TrafficPolicy::Local;
        self
    }

    /// External traffic policy Local.
    #[must_use]
    pub fn external_local(mut self) -> Self {
        self.service.port.external_policy = TrafficPolicy::Local;
        self
    }

    /// ClientIP session affinity for that many seconds.
    #[must_use]
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.service.port.affinity_seconds = Some(NonZeroU32::new(seconds).expect("affinity is not 0"));
        self
    }

    /// The health-check node port.
    #[must_use]
    pub fn health_check_node_port(mut self, port: u16) -> Self {
        self.service.port.health_check_node_port = Some(number(port));
        self
    }

    /// The Service has endpoints of this family in the cluster. [`Self::endpoints`] implies it.
    #[must_use]
    pub fn any_endpoints(mut self, family: IpFamily) -> Self {
        self.service.port.any_endpoints[family] = true;
        self
    }

    /// Adds endpoints, as `10.244.1.1:8080` or `[fd00::1]:8080`, to the cluster pool of their family.
    #[must_use]
    pub fn endpoints<'a>(mut self, endpoints: impl IntoIterator<Item = &'a str>) -> Self {
        for endpoint in endpoints {
            self.insert(PoolClass::Cluster, mk_endpoint(endpoint));
        }
        self
    }

    /// Adds endpoints that are on this node to the local pool of their family, and to that one only.
    #[must_use]
    pub fn local_endpoints<'a>(mut self, endpoints: impl IntoIterator<Item = &'a str>) -> Self {
        for endpoint in endpoints {
            self.insert(PoolClass::Local, mk_endpoint(endpoint));
        }
        self
    }

    /// Like [`Self::local_endpoints`], of endpoints that are terminating.
    #[must_use]
    pub fn terminating_endpoints<'a>(mut self, endpoints: impl IntoIterator<Item = &'a str>) -> Self {
        for endpoint in endpoints {
            self.insert(PoolClass::Local, Endpoint { terminating: true, ..mk_endpoint(endpoint) });
        }
        self
    }

    /// Adds endpoints to the established pool, which are in no other one.
    #[must_use]
    pub fn established_endpoints<'a>(mut self, endpoints: impl IntoIterator<Item = &'a str>) -> Self {
        for endpoint in endpoints {
            self.insert(PoolClass::Established, mk_endpoint(endpoint));
        }
        self
    }

    /// Adds endpoints that are gone.
    #[must_use]
    pub fn gone_endpoints<'a>(mut self, endpoints: impl IntoIterator<Item = &'a str>) -> Self {
        for endpoint in endpoints.into_iter().map(mk_endpoint) {
            self.service.pool_mut(PoolClass::Gone, IpFamily::of(&endpoint.address)).insert(endpoint);
        }
        self
    }

    /// Adds an endpoint to a pool.
    pub(super) fn insert(&mut self, class: PoolClass, endpoint: Endpoint) {
        let family = IpFamily::of(&endpoint.address);
        self.service.port.any_endpoints[family] = true;
        self.service.pool_mut(class, family).insert(endpoint);
    }
}

fn mk_endpoint(endpoint: &str) -> Endpoint {
    let address: SocketAddr = parse(endpoint);
    Endpoint::new(address.ip(), number(address.port()))
}

/// A port that is not 0.
pub(super) fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).expect("a port is not 0")
}

fn insert<T: Ord>(sorted: &mut Vec<T>, value: T) {
    if let Err(index) = sorted.binary_search(&value) {
        sorted.insert(index, value);
    }
}

fn parse<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error:?}"))
}

fn parse_all<'a, T: FromStr<Err: Debug>>(texts: impl IntoIterator<Item = &'a str>) -> Vec<T> {
    texts.into_iter().map(parse).collect()
}

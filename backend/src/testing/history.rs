//! Random states and random histories of small changes, from a seed. They use every feature of the model, and never
//! have one VIP twice.

use std::num::NonZeroU32;

use fastrand::Rng;
use ipnet::IpNet;
use proto::model::{
    Endpoint, IpFamily, PerFamily, Pool, PoolClass, Protocol, ServicePort, ServicePortKey, TrafficPolicy,
};

use super::{
    builders::{mk_key, number},
    mk_state, transition,
};
use crate::{Changes, NodeState, ServicePortState};

/// The number of Services, each with up to [`PORTS`] ports.
const SERVICES: usize = 6;

/// Port name, port and protocol. DNS over UDP and TCP share number and node port.
const PORTS: [(&str, u16, Protocol); 4] = [
    ("http", 80, Protocol::Tcp),
    ("dns", 53, Protocol::Udp),
    ("dns-tcp", 53, Protocol::Tcp),
    ("signal", 9000, Protocol::Sctp),
];

/// Some overlap, some are adjacent, some contain addresses of the node or of load balancers.
const SOURCE_RANGES: [&str; 12] = [
    "192.0.2.0/24",
    "192.0.2.0/25",
    "192.0.2.128/25",
    "192.0.3.0/24",
    "192.168.1.2/32",
    "198.51.0.0/30",
    "0.0.0.0/0",
    "fd00:2::/64",
    "fd00:2::7/128",
    "fd00:2:0:1::/64",
    "fd00:1::/64",
    "::/0",
];

/// A state that changes step by step. The same seed gives the same history.
#[derive(Clone, Debug)]
pub struct History {
    rng: Rng,
    state: NodeState,
    /// The cluster IP of each Service: a permutation, so that two Services can swap theirs.
    cluster_ips: [usize; SERVICES],
}

impl History {
    /// Begins with a state without service ports.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            state: mk_state().build(),
            cluster_ips: std::array::from_fn(|service| service),
        }
    }

    /// The state after the last step.
    #[must_use]
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// One commit: a few small changes, sometimes a large one, sometimes none.
    pub fn step(&mut self) -> Changes {
        let mut target = self.state.clone();
        for _ in 0..self.rng.usize(1..=3) {
            self.edit(&mut target);
        }
        transition(&mut self.state, &target)
    }

    /// Replaces the state by an unrelated one. Returns the changes.
    pub fn jump(&mut self) -> Changes {
        let mut target = mk_state().build();
        for _ in 0..self.rng.usize(0..20) {
            self.put(&mut target);
        }
        if self.rng.bool() {
            self.facts(&mut target);
        }
        transition(&mut self.state, &target)
    }

    fn edit(&mut self, target: &mut NodeState) {
        match self.rng.u8(0..24) {
            0..4 => self.put(target),
            4..6 => self.remove(target),
            6..14 => self.change_pool(target),
            14..20 => self.change_port(target),
            20 => self.facts(target),
            21 => self.exchange_cluster_ips(target),
            22 => self.remove_all(target),
            _ => {}
        }
    }

    fn put(&mut self, target: &mut NodeState) {
        let (service, port) = (self.rng.usize(..SERVICES), self.rng.usize(..PORTS.len()));
        let key = key(service, port);
        let mut new = ServicePortState::new(ServicePort::new(key.clone(), number(PORTS[port].1)));
        let cluster_ip = self.cluster_ips[service];
        let families: &[IpFamily] = match self.rng.u8(0..4) {
            0 => &[IpFamily::V6],
            1 => &IpFamily::ALL,
            _ => &[IpFamily::V4],
        };
        for family in families {
            new.port.cluster_ips[*family] = Some(ip(*family, 0x96, cluster_ip + 1));
            let is_of_protocol = |class: &PoolClass| match class {
                PoolClass::Cluster | PoolClass::Local => true,
                PoolClass::Established => key.protocol == Protocol::Udp,
                PoolClass::Gone => key.protocol == Protocol::Tcp,
            };
            for class in PoolClass::ALL.into_iter().filter(is_of_protocol) {
                *new.pool_mut(class, *family) = self.pool(class, *family);
            }
        }
        for _ in 0..self.rng.usize(0..4) {
            self.facet(&mut new.port);
        }
        self.make_consistent(&mut new);
        target.set_service_port(&key, Some(new));
    }

    fn remove(&mut self, target: &mut NodeState) {
        if let Some(key) = self.any_key(target) {
            target.set_service_port(&key, None);
        }
    }

    fn remove_all(&mut self, target: &mut NodeState) {
        for key in target.service_ports().keys().cloned().collect::<Vec<_>>() {
            target.set_service_port(&key, None);
        }
    }

    /// Adds, removes or replaces one endpoint, or sets the whole pool.
    fn change_pool(&mut self, target: &mut NodeState) {
        let Some(key) = self.any_key(target) else { return };
        let class = match self.rng.u8(0..6) {
            0..2 => PoolClass::Local,
            2 if key.protocol == Protocol::Udp => PoolClass::Established,
            2 if key.protocol == Protocol::Tcp => PoolClass::Gone,
            _ => PoolClass::Cluster,
        };
        self.change(target, &key, |history, service| {
            let present: Vec<_> =
                service.port.cluster_ips.iter().filter_map(|(family, ip)| ip.map(|_| family)).collect();
            let Some(family) = history.rng.choice(present) else { return };
            let random = history.pool(class, family);
            let pool = service.pool_mut(class, family);
            let victim = history.rng.choice(pool.to_vec());
            match (history.rng.u8(0..4), victim) {
                (0, Some(victim)) => drop(pool.remove(&victim)),
                (1, Some(victim)) => {
                    pool.remove(&victim);
                    pool.extend_from(&random);
                }
                (2, _) => *pool = random,
                _ => pool.extend_from(&random),
            }
        });
    }

    fn change_port(&mut self, target: &mut NodeState) {
        let Some(key) = self.any_key(target) else { return };
        self.change(target, &key, |history, service| history.facet(&mut service.port));
    }

    /// Swaps the cluster IPs of two Services, as when one is deleted and its address is allocated to another.
    fn exchange_cluster_ips(&mut self, target: &mut NodeState) {
        let (a, b) = (self.rng.usize(..SERVICES), self.rng.usize(..SERVICES));
        self.cluster_ips.swap(a, b);
        for service in [a, b] {
            let cluster_ip = self.cluster_ips[service];
            for port in 0..PORTS.len() {
                self.change(target, &key(service, port), |_, service| {
                    service.port.cluster_ips = PerFamily::from_fn(|family| {
                        service.port.cluster_ips[family].map(|_| ip(family, 0x96, cluster_ip + 1))
                    });
                });
            }
        }
    }

    fn facts(&mut self, target: &mut NodeState) {
        let facts = match self.rng.u8(0..9) {
            0 => mk_state().node(|node| node.eligible = false),
            1 => mk_state().node_addresses(["192.168.1.1"]),
            2 => mk_state().node_addresses(["192.168.1.2", "203.0.113.200", "fd00:1::2"]),
            3 => mk_state().pod_cidrs(["10.244.2.0/24"]),
            4 => mk_state().service_cidrs(["10.96.0.0/16"]),
            5 => mk_state().service_cidrs(["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112"]),
            // Without the address of another proxy's Service.
            6 => mk_state().service_cidrs(["10.96.0.0/17", "10.96.192.0/18", "fd00:96::8000/113"]),
            7 => mk_state().service_cidrs(["10.96.0.0/17", "fd00:96::/112"]),
            _ => mk_state(),
        };
        let facts = facts.build();
        target.put_node(facts.node().clone());
        target.put_cluster(facts.cluster().clone());
    }

    /// Sets or clears one property.
    fn facet(&mut self, port: &mut ServicePort) {
        let (service, at) = position(&port.key);
        let family = self.rng.choice(IpFamily::ALL).unwrap_or(IpFamily::V4);
        match self.rng.u8(0..9) {
            0 => port.internal_policy = self.policy(),
            1 => port.external_policy = self.policy(),
            2 => {
                // The UDP and the TCP port of DNS have one node port.
                let offset = if at == 2 { 1 } else { at };
                let node_port = u16::try_from(30_000 + service * PORTS.len() + offset).map(number);
                port.node_port = self.either(node_port.ok());
            }
            3 => toggle(&mut port.external_ips, ip(family, 0x113, service + 1)),
            4 => toggle(&mut port.load_balancer_ips, ip(family, 0x100, service + 1)),
            5 => {
                for _ in 0..self.rng.usize(1..=3) {
                    let range = self.rng.choice(SOURCE_RANGES).and_then(|range| range.parse::<IpNet>().ok());
                    toggle(&mut port.source_ranges, range.expect("a prefix"));
                }
            }
            6 => {
                let seconds = self.rng.choice([10, 10_800]).and_then(NonZeroU32::new);
                port.affinity_seconds = self.either(seconds);
            }
            7 => {
                let check = u16::try_from(32_000 + service).map(number);
                port.health_check_node_port = self.either(check.ok());
            }
            _ => port.any_endpoints[family] = self.rng.bool(),
        }
    }

    /// Random endpoints; in a local pool all are terminating or none is.
    fn pool(&mut self, class: PoolClass, family: IpFamily) -> Pool {
        let len = self.rng.usize(0..=4);
        let terminating = class == PoolClass::Local && self.rng.u8(0..4) == 0;
        let endpoints = std::iter::repeat_with(|| {
            let node = if class == PoolClass::Local { 1 } else { self.rng.usize(1..=3) };
            let address = match (self.rng.u8(0..10), family, node) {
                // A pod with host networking.
                (0, IpFamily::V4, 1) => "192.168.1.1".parse().expect("an address"),
                (0, IpFamily::V6, 1) => "fd00:1::1".parse().expect("an address"),
                _ => ip(family, 0x244, node * 256 + self.rng.usize(1..=5)),
            };
            let port = number(if self.rng.u8(0..5) == 0 { 9090 } else { 8080 });
            Endpoint { address, port, terminating }
        });
        endpoints.take(len).collect()
    }

    fn policy(&mut self) -> TrafficPolicy {
        if self.rng.bool() { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
    }

    fn either<T>(&mut self, value: Option<T>) -> Option<T> {
        value.filter(|_| self.rng.bool())
    }

    fn any_key(&mut self, target: &NodeState) -> Option<ServicePortKey> {
        let keys: Vec<_> = target.service_ports().keys().collect();
        self.rng.choice(keys).cloned()
    }

    /// Changes an existing service port.
    fn change(
        &mut self,
        target: &mut NodeState,
        key: &ServicePortKey,
        change: impl FnOnce(&mut Self, &mut ServicePortState),
    ) {
        if let Some(mut service) = target.service_port(key).cloned() {
            change(self, &mut service);
            self.make_consistent(&mut service);
            target.set_service_port(key, Some(service));
        }
    }

    /// A service port with local endpoints has endpoints.
    fn make_consistent(&mut self, service: &mut ServicePortState) {
        for family in IpFamily::ALL {
            if !service.cluster[family].is_empty() || !service.local[family].is_empty() {
                service.port.any_endpoints[family] = true;
            }
        }
    }
}

/// Adds all endpoints of another pool.
trait ExtendFrom {
    fn extend_from(&mut self, other: &Pool);
}

impl ExtendFrom for Pool {
    fn extend_from(&mut self, other: &Pool) {
        for endpoint in other.iter() {
            self.insert(*endpoint);
        }
    }
}

fn key(service: usize, port: usize) -> ServicePortKey {
    let (name, _, protocol) = PORTS[port];
    mk_key(&format!("default/svc-{service}:{name}/{}", protocol.lower()))
}

/// The reverse of [`key`].
fn position(wanted: &ServicePortKey) -> (usize, usize) {
    let all = (0..SERVICES).flat_map(|service| (0..PORTS.len()).map(move |port| (service, port)));
    all.into_iter().find(|(service, port)| key(*service, *port) == *wanted).expect("a key of a history")
}

/// An address by its use: cluster IPs, external IPs, load-balancer IPs, pods.
fn ip(family: IpFamily, net: u16, host: usize) -> std::net::IpAddr {
    let prefix = match (family, net) {
        (IpFamily::V4, 0x96) => "10.96".to_owned(),
        (IpFamily::V4, 0x113) => "203.0".to_owned(),
        (IpFamily::V4, 0x100) => "198.51".to_owned(),
        (IpFamily::V4, _) => "10.244".to_owned(),
        (IpFamily::V6, net) => return format!("fd00:{net:x}:1::{host:x}").parse().expect("an address"),
    };
    format!("{prefix}.{}.{}", host / 256, host % 256).parse().expect("an address")
}

fn toggle<T: Ord>(sorted: &mut Vec<T>, value: T) {
    match sorted.binary_search(&value) {
        Ok(at) => drop(sorted.remove(at)),
        Err(at) => sorted.insert(at, value),
    }
}

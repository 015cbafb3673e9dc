//! The table of `docs/protocol.md`, "What a backend does with a packet": each VIP kind, under each policy, from each
//! source class, over each protocol, in each family. [`Table::expected`] is that table in code.
//!
//! All packets arrive at node-a. Client pods are not endpoints, so that no connection is a hairpin.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::expect::{Check, Expected, check_all, check_with_trace};
use crate::{
    client::Client,
    cluster::{Cluster, Pod},
    deployment::{Backend, Deployment, DeploymentBuilder},
    manifests::{Service, TrafficPolicy},
    plan::{self, DualStack, IpFamily},
    wire::Protocol,
};

/// The kinds of VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vip {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A pod on node-a.
    Pod,
    /// A pod on node-b, at a node port of node-a. It would reach other VIPs through its own node.
    RemotePod,
    /// node-a itself.
    Node,
    /// Outside the cluster.
    Outside,
}

/// The endpoints of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    /// Two on each node.
    Everywhere,
    /// Two on node-b.
    Elsewhere,
    /// None.
    Nowhere,
}

/// The local traffic detection and masquerading of the backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    ClusterCidr,
    MasqueradeAll,
    NoClusterCidr,
    /// Only the pods of the node are recognised, by source or interface.
    OwnPods,
}

/// One run of the table.
struct Table<'a> {
    cluster: &'a Cluster,
    setup: Setup,
    vip: Vip,
}

const PORT: u16 = 80;
const POLICIES: [TrafficPolicy; 2] = [TrafficPolicy::Cluster, TrafficPolicy::Local];
const SOURCES: [Source; 4] = [Source::Pod, Source::RemotePod, Source::Node, Source::Outside];
const POOLS: [Pool; 3] = [Pool::Everywhere, Pool::Elsewhere, Pool::Nowhere];

// === the cases ===

/// Cluster IPs.
pub fn cluster_ip(backend: Backend) {
    run(Deployment::builder(backend), Setup::ClusterCidr, Vip::ClusterIp);
}

/// External IPs.
pub fn external_ip(backend: Backend) {
    run(Deployment::builder(backend), Setup::ClusterCidr, Vip::ExternalIp);
}

/// Load-balancer IPs.
pub fn load_balancer_ip(backend: Backend) {
    run(Deployment::builder(backend), Setup::ClusterCidr, Vip::LoadBalancerIp);
}

/// Node ports.
pub fn node_port(backend: Backend) {
    run(Deployment::builder(backend), Setup::ClusterCidr, Vip::NodePort);
}

/// Pods are masqueraded on the way to cluster IPs too.
pub fn cluster_ip_with_masquerade_all(backend: Backend) {
    let builder = Deployment::builder(backend).argument("--masquerade-all");
    run(builder, Setup::MasqueradeAll, Vip::ClusterIp);
}

/// Node ports without local traffic detection.
pub fn node_port_without_cluster_cidr(backend: Backend) {
    run(Deployment::builder(backend).without_cluster_cidr(), Setup::NoClusterCidr, Vip::NodePort);
}

/// Cluster IPs; pods are recognised by the node's pod CIDR, those of other nodes are not.
pub fn cluster_ip_with_node_cidr(backend: Backend) {
    run(own_pods(backend, &NODE_CIDR), Setup::OwnPods, Vip::ClusterIp);
}

/// Node ports; pods are recognised by their bridge.
pub fn node_port_with_bridge_interface(backend: Backend) {
    run(own_pods(backend, &BRIDGE), Setup::OwnPods, Vip::NodePort);
}

/// Cluster IPs; pods are recognised by the prefix of their interfaces.
pub fn cluster_ip_with_interface_prefix(backend: Backend) {
    run(own_pods(backend, &PREFIX), Setup::OwnPods, Vip::ClusterIp);
}

const NODE_CIDR: [&str; 2] = ["--detect-local-mode", "NodeCIDR"];
const BRIDGE: [&str; 4] = ["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "pod-a-3"];
const PREFIX: [&str; 4] = ["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "pod-a-"];

fn own_pods(backend: Backend, arguments: &[&str]) -> DeploymentBuilder {
    let builder = Deployment::builder(backend).without_cluster_cidr();
    arguments.iter().fold(builder, |builder, argument| builder.argument(argument))
}

/// In mode NodeCIDR a change of the node's pod CIDR takes effect at once.
pub fn pod_cidr_changes_apply_at_once(backend: Backend) {
    let mut deployment = own_pods(backend, &NODE_CIDR).start(services);
    for setup in [Setup::NoClusterCidr, Setup::OwnPods] {
        let cidrs = match setup {
            Setup::OwnPods => plan::pod_cidrs(1).to_vec(),
            _ => Vec::new(),
        };
        deployment.manifests().write_node(deployment.cluster().node('a'), &cidrs);
        deployment.wait_until_programmed();
        let cluster = deployment.cluster();
        check_all(&Table { cluster, setup, vip: Vip::ClusterIp }.checks());
        check_all(&Table { cluster, setup, vip: Vip::NodePort }.checks());
    }
}

#[track_caller]
fn run(builder: DeploymentBuilder, setup: Setup, vip: Vip) {
    let deployment = builder.start(services);
    let cluster = deployment.cluster();
    check_with_trace(cluster, &Table { cluster, setup, vip }.checks());
}

// === the services ===

/// A service for each policy, which is both the internal and the external one, and each pool.
fn services(cluster: &Cluster) -> Vec<Service> {
    let all = POLICIES.into_iter().flat_map(|policy| POOLS.map(|pool| (policy, pool)));
    let service = |(policy, pool)| {
        let number = number(policy, pool);
        Service::new(&format!("service-{number}"))
            .cluster_ip(plan::cluster_ip(number))
            .external_ip(plan::external_ip(number))
            .load_balancer_ip(plan::load_balancer_ip(number))
            .port_all(PORT, 8080)
            .node_port(node_port_of(number))
            .internal_policy(policy)
            .external_policy(policy)
            .pods(pods(cluster, pool))
    };
    all.map(service).collect()
}

fn number(policy: TrafficPolicy, pool: Pool) -> u8 {
    let base = if policy == TrafficPolicy::Cluster { 10 } else { 20 };
    base + match pool {
        Pool::Everywhere => 1,
        Pool::Elsewhere => 2,
        Pool::Nowhere => 3,
    }
}

fn node_port_of(number: u8) -> u16 {
    30_000 + u16::from(number)
}

fn pods(cluster: &Cluster, pool: Pool) -> Vec<&Pod> {
    let of = |letter| cluster.node(letter).pods[..2].iter();
    match pool {
        Pool::Everywhere => of('a').chain(of('b')).collect(),
        Pool::Elsewhere => of('b').collect(),
        Pool::Nowhere => Vec::new(),
    }
}

// === impl Table ===

impl Table<'_> {
    fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for policy in POLICIES {
            for pool in POOLS {
                for source in SOURCES.into_iter().filter(|source| self.is_possible(policy, pool, *source)) {
                    for family in IpFamily::ALL {
                        for protocol in Protocol::ALL {
                            checks.push(Check {
                                what: format!("{:?}, {policy:?}, from {source:?}, endpoints {pool:?}", self.vip),
                                client: self.client(source),
                                protocol,
                                to: self.address(number(policy, pool), family),
                                expected: self.expected(policy, pool, source, family),
                            });
                        }
                    }
                }
            }
        }
        checks
    }

    /// Whether answers return through node-a. Without masquerade, an endpoint on node-b answers directly, bypassing
    /// node-a, unless the client is node-a or one of its pods.
    fn is_possible(&self, policy: TrafficPolicy, pool: Pool, source: Source) -> bool {
        if source == Source::RemotePod && self.vip != Vip::NodePort {
            return false;
        }
        let behind_the_node = matches!(source, Source::Pod | Source::Node);
        let reaches_node_b = pool != Pool::Nowhere && !self.uses_local_pool(policy, source);
        behind_the_node || !reaches_node_b || self.is_masqueraded(policy, source)
    }

    /// The table: which endpoints answer, and which source they see.
    fn expected(&self, policy: TrafficPolicy, pool: Pool, source: Source, family: IpFamily) -> Expected {
        if pool == Pool::Nowhere {
            return Expected::Refused;
        }
        let local_only = self.uses_local_pool(policy, source);
        let pods = pods(self.cluster, pool).into_iter().filter(|pod| !local_only || pod.node == "node-a");
        let answers = pods
            .map(|pod| {
                let seen = match self.is_masqueraded(policy, source) {
                    true => self.masqueraded_to(pod),
                    false => self.address_of(source),
                };
                (pod.name.clone(), seen.ip(family))
            })
            .collect::<BTreeSet<(String, IpAddr)>>();
        if answers.is_empty() { Expected::Dropped } else { Expected::Answers(answers) }
    }

    fn uses_local_pool(&self, policy: TrafficPolicy, source: Source) -> bool {
        match (policy, self.vip) {
            (TrafficPolicy::Cluster, _) => false,
            (TrafficPolicy::Local, Vip::ClusterIp) => true,
            (TrafficPolicy::Local, _) => !self.is_recognised_pod(source) && source != Source::Node,
        }
    }

    fn is_masqueraded(&self, policy: TrafficPolicy, source: Source) -> bool {
        match (self.vip, policy) {
            (Vip::ClusterIp, _) => match self.setup {
                Setup::MasqueradeAll => true,
                Setup::ClusterCidr | Setup::OwnPods => !self.is_recognised_pod(source),
                Setup::NoClusterCidr => false,
            },
            (_, TrafficPolicy::Cluster) => true,
            (_, TrafficPolicy::Local) => source == Source::Node,
        }
    }

    fn is_recognised_pod(&self, source: Source) -> bool {
        match self.setup {
            Setup::ClusterCidr | Setup::MasqueradeAll => matches!(source, Source::Pod | Source::RemotePod),
            Setup::OwnPods => source == Source::Pod,
            Setup::NoClusterCidr => false,
        }
    }

    /// node-a's address on the way to `pod`.
    fn masqueraded_to(&self, pod: &Pod) -> DualStack {
        if pod.node == "node-a" { plan::gateway(1) } else { self.cluster.node('a').address }
    }

    fn client(&self, source: Source) -> Client {
        match source {
            Source::Pod => self.cluster.pod("pod-a-3").client(),
            Source::RemotePod => self.cluster.pod("pod-b-3").client(),
            Source::Node => self.cluster.node('a').client(),
            Source::Outside => self.cluster.client(),
        }
    }

    fn address_of(&self, source: Source) -> DualStack {
        match source {
            Source::Pod => self.cluster.pod("pod-a-3").address,
            Source::RemotePod => self.cluster.pod("pod-b-3").address,
            Source::Node => self.cluster.node('a').address,
            Source::Outside => plan::OUTSIDE,
        }
    }

    fn address(&self, number: u8, family: IpFamily) -> SocketAddr {
        let (address, port) = match self.vip {
            Vip::ClusterIp => (plan::cluster_ip(number), PORT),
            Vip::ExternalIp => (plan::external_ip(number), PORT),
            Vip::LoadBalancerIp => (plan::load_balancer_ip(number), PORT),
            Vip::NodePort => (self.cluster.node('a').address, node_port_of(number)),
        };
        SocketAddr::new(address.ip(family), port)
    }
}

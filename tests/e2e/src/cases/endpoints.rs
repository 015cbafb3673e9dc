//! Which endpoints are used, how connections are distributed over them, and hairpin connections.

use std::net::SocketAddr;

use super::expect::{Check, Expected, assert_pods, check_with_trace};
use crate::{
    cluster::{Cluster, Pod},
    deployment::{Backend, Deployment},
    manifests::{Endpoint, EndpointState, Service, TrafficPolicy},
    plan::{self, IpFamily},
    server::Server,
    uml,
    wire::{Failure, Protocol},
};

use EndpointState::{Draining, NotReady, Ready, Terminating};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Of direct connections; below the ports that the kernel chooses.
const SOURCE_PORT: u16 = 20_080;
/// Requests to endpoints that are chosen at random.
const REQUESTS: usize = 600;
/// Requests to endpoints that are chosen in turn: each of up to six gets the same number.
const REQUESTS_IN_TURN: usize = 60;
/// Pearson's statistic for up to six endpoints exceeds this once in millions of runs (five degrees of freedom: 3e-8).
const CHI_SQUARE: f64 = 43.0;

// === spread ===

/// New connections go to all endpoints with equal probability, for any number of endpoints. The guests run this with
/// IPVS, which takes the endpoints in turn.
pub fn endpoints_get_equal_shares(backend: Backend) {
    let sizes = [1, 2, 3, 5, 6];
    let deployment = Deployment::start(backend, |cluster| {
        sizes.iter().map(|size| web(*size).pods(cluster.pods().take((*size).into()))).collect()
    });
    let cluster = deployment.cluster();
    for size in sizes {
        let of = |protocol, family| {
            let to = SocketAddr::new(plan::cluster_ip(size).ip(family), PORT);
            let requests = if uml::is_guest() { REQUESTS_IN_TURN } else { REQUESTS };
            let spread = cluster.client().spread(protocol, to, requests).expect("answers");
            let counts = spread.values().copied().collect::<Vec<_>>();
            assert_eq!(counts.len(), usize::from(size), "{spread:?}");
            if uml::is_guest() {
                let equal = requests / usize::from(size);
                assert!(counts.iter().all(|count| *count == equal), "{protocol} {to}: {spread:?}");
                return;
            }

            let statistic = chi_square(&counts);
            assert!(statistic < CHI_SQUARE, "{protocol} {to}: {statistic} for {spread:?}");
        };
        of(Protocol::Tcp, IpFamily::V4);
        of(Protocol::Udp, IpFamily::V6);
    }
}

/// Pearson's statistic for the hypothesis that all counts have the same expectation.
fn chi_square(counts: &[usize]) -> f64 {
    let as_f64 = |count: usize| f64::from(u32::try_from(count).expect("a small number"));
    let mean = as_f64(counts.iter().sum()) / as_f64(counts.len());
    counts.iter().map(|count| (as_f64(*count) - mean).powi(2) / mean).sum()
}

// === hairpin ===

/// A pod reaches itself through each VIP kind, with another source address than its own; traffic to other pods is not
/// masqueraded as hairpin.
pub fn a_pod_reaches_itself(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| {
        vec![with_all_vips(cluster, 1, TrafficPolicy::Cluster), with_all_vips(cluster, 2, TrafficPolicy::Local)]
    });
    let cluster = deployment.cluster();
    let [one, other] = [cluster.pod("pod-a-1"), cluster.pod("pod-a-2")];
    let mut checks = Vec::new();
    for number in [1, 2] {
        let vips = [
            (plan::cluster_ip(number), PORT),
            (plan::external_ip(number), PORT),
            (plan::load_balancer_ip(number), PORT),
            (cluster.node('a').address, NODE_PORT + u16::from(number)),
        ];
        for (at, (address, port)) in vips.into_iter().enumerate() {
            for family in IpFamily::ALL {
                // From a pod, only external traffic under policy Cluster is masqueraded anyway.
                let seen_by_other = if at > 0 && number == 1 { plan::gateway(1) } else { one.address };
                let answers = [(one, plan::gateway(1)), (other, seen_by_other)];
                for protocol in Protocol::ALL {
                    checks.push(Check {
                        what: format!("service {number} from pod-a-1"),
                        client: one.client(),
                        protocol,
                        to: SocketAddr::new(address.ip(family), port),
                        expected: Expected::Answers(
                            answers.iter().map(|(pod, seen)| (pod.name.clone(), seen.ip(family))).collect(),
                        ),
                    });
                }
            }
        }
    }
    check_with_trace(cluster, &checks);
}

/// A node connects to its own address, where a pod of the host network serves: without a VIP in between, the connection
/// keeps its source address and port.
pub fn direct_connections_to_host_network_endpoints_keep_their_source(backend: Backend) {
    let deployment =
        Deployment::start(backend, |cluster| vec![web(1).endpoints([Endpoint::of_node(cluster.node('a'))])]);
    let node = deployment.cluster().node('a');
    let _server = Server::start(&node.netns, &node.name, &node.address.both(), &[8080]);
    for family in IpFamily::ALL {
        let address = node.address.ip(family);
        let source = SocketAddr::new(address, SOURCE_PORT);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let reply = node.client().with_source_port(source).ask(protocol, SocketAddr::new(address, 8080));
            assert_eq!(reply.expect("an answer").seen_source, source, "{protocol}");
        }
        for protocol in Protocol::ALL {
            let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
            assert_pods(&node.client(), protocol, vip, &["node-a"]);
        }
    }
}

fn with_all_vips(cluster: &Cluster, number: u8, policy: TrafficPolicy) -> Service {
    let service = web(number)
        .node_port(NODE_PORT + u16::from(number))
        .external_ip(plan::external_ip(number))
        .load_balancer_ip(plan::load_balancer_ip(number))
        .internal_policy(policy)
        .external_policy(policy);
    service.pods(&cluster.node('a').pods[..2])
}

// === readiness ===

/// Ready endpoints are used; if none is ready, terminating ones that still serve; never ones that do not serve.
pub fn terminating_endpoints_are_used_if_none_is_ready(backend: Backend) {
    let service = web(1);
    let states = |cluster: &Cluster, states: [EndpointState; 4]| {
        let pods = ["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"].map(|name| cluster.pod(name));
        service.clone().endpoints(pods.into_iter().zip(states).map(|(pod, state)| Endpoint::of(pod).state(state)))
    };
    let steps: [([EndpointState; 4], &[&str]); 6] = [
        ([Ready, NotReady, Draining, Terminating], &["pod-a-1"]),
        ([NotReady, NotReady, Draining, Terminating], &["pod-b-1"]),
        ([NotReady, Draining, Draining, Terminating], &["pod-a-2", "pod-b-1"]),
        ([NotReady, Terminating, NotReady, Terminating], &[]),
        ([NotReady, Terminating, NotReady, Ready], &["pod-b-2"]),
        ([Ready, Ready, Ready, Ready], &["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"]),
    ];
    let mut deployment = Deployment::start(backend, |cluster| vec![states(cluster, steps[0].0)]);
    for (endpoints, expected) in steps {
        let service = states(deployment.cluster(), endpoints);
        deployment.apply(&service);
        assert_everywhere(&deployment, 1, &[expected, expected]);
    }
}

// === hints ===

/// If all ready endpoints have zone hints, each node uses those for its zone. Node hints take precedence. If an
/// endpoint has no hints, neither applies.
pub fn hints_select_endpoints(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(1).pods(cluster.pods())]);
    let all = ["pod-a-1", "pod-a-2", "pod-b-1"];
    let steps: [([Hint; 3], [&[&str]; 2]); 5] = [
        // a-1, a-2 and b-1 for zones a, a and b.
        ([in_zone_a, in_zone_a, in_zone_b], [&["pod-a-1", "pod-a-2"], &["pod-b-1"]]),
        // The hint decides, not the zone of the endpoint.
        ([in_zone_b, in_zone_a, in_zone_a], [&["pod-a-2", "pod-b-1"], &["pod-a-1"]]),
        ([in_zone_a, in_zone_b, Endpoint::of], [&all, &all]),
        ([on_node_a, on_node_b, on_node_b], [&["pod-a-1"], &["pod-a-2", "pod-b-1"]]),
        // No hint for node-b: it uses all endpoints.
        ([on_node_a, on_node_a, on_node_a], [&all, &all]),
    ];
    for (hints, expected) in steps {
        let endpoints = all.iter().zip(hints).map(|(name, hint)| hint(deployment.cluster().pod(name)));
        let service = web(1).endpoints(endpoints.collect::<Vec<_>>());
        deployment.apply(&service);
        assert_everywhere(&deployment, 1, &expected);
    }
}

/// Makes an endpoint of a pod.
type Hint = fn(&Pod) -> Endpoint;

fn in_zone_a(pod: &Pod) -> Endpoint {
    Endpoint::of(pod).for_zones(&["a"])
}

fn in_zone_b(pod: &Pod) -> Endpoint {
    Endpoint::of(pod).for_zones(&["b"])
}

fn on_node_a(pod: &Pod) -> Endpoint {
    Endpoint::of(pod).for_nodes(&["node-a"])
}

fn on_node_b(pod: &Pod) -> Endpoint {
    Endpoint::of(pod).for_nodes(&["node-b"])
}

// === what they share ===

/// A service with a cluster IP, without endpoints yet.
fn web(number: u8) -> Service {
    Service::new(&format!("web-{number}")).cluster_ip(plan::cluster_ip(number)).port_all(PORT, 8080)
}

/// Exactly these pods answer clients on each node; without any, requests are rejected.
#[track_caller]
fn assert_everywhere(deployment: &Deployment, number: u8, expected: &[&[&str]; 2]) {
    for (node, expected) in deployment.cluster().nodes().iter().zip(expected) {
        for family in IpFamily::ALL {
            let to = SocketAddr::new(plan::cluster_ip(number).ip(family), PORT);
            for protocol in Protocol::ALL {
                let client = node.pod(3).client();
                if expected.is_empty() {
                    assert_eq!(client.ask(protocol, to), Err(Failure::Refused), "{protocol} {to} on {}", node.name);
                } else {
                    assert_pods(&client, protocol, to, expected);
                }
            }
        }
    }
}

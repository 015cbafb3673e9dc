//! Session affinity by client IP: which clients keep an endpoint, and for how long. Clients are the additional
//! addresses of the outside client, and a pod; each of their requests is a new connection or flow.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use super::expect::assert_pods;
use crate::{
    client::Client,
    cluster::Cluster,
    deployment::{Backend, Deployment},
    manifests::{Service, TrafficPolicy},
    pace::patience,
    plan::{self, IpFamily},
    wire::Protocol,
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// The default of Kubernetes: longer than any test.
const LONG: u32 = 10_800;
/// Short enough to wait for its end, in seconds.
const SHORT: u32 = 2;
/// How long after the timeout the affinity of all clients has ended, for which there is no event.
const EXPIRY_DELAY: Duration = Duration::from_millis(500);
/// The time without a request after which affinity of [`SHORT`] has ended.
const EXPIRY: Duration = Duration::from_millis(2_500);
/// How long to try until all clients have connected again in time, from before the timeout until after it.
const DEADLINE: Duration = Duration::from_secs(30);
/// Requests of one client: enough not to reach the same endpoint by chance.
const REQUESTS: usize = 5;
const PODS: [&str; 4] = ["pod-a-1", "pod-a-2", "pod-b-1", "pod-b-2"];

/// The pod of each client, by a text of client, protocol and address.
type Assignments = BTreeMap<String, String>;

// === the cases ===

/// A client reaches one pod, at each VIP and with each protocol; every pod has clients.
pub fn clients_keep_their_pod(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| vec![sticky(cluster, &PODS, LONG)]);
    let cluster = deployment.cluster();
    let mut assignments = Assignments::new();
    for to in all_vips(cluster) {
        assignments.append(&mut ask(cluster, to));
    }
    assert_eq!(pods(&assignments), BTreeSet::from(PODS), "{assignments:#?}");
    let again = all_vips(cluster).into_iter().flat_map(|to| ask(cluster, to)).collect::<Assignments>();
    assert_eq!(again, assignments);
}

/// The timeout counts from the last connection of a client, not from its first.
pub fn affinity_ends_after_the_timeout(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster, &PODS)]);
    let seconds = timeout_on_this_machine(deployment.cluster());
    let service = sticky(deployment.cluster(), &PODS, seconds);
    deployment.apply(&service);

    let cluster = deployment.cluster();
    let timeout = Duration::from_secs(seconds.into());
    let deadline = Instant::now() + patience(DEADLINE);
    let mut first_asked = Instant::now();
    let mut last_asked = first_asked;
    let mut assignments = ask_vip_once(cluster);
    while last_asked - first_asked <= timeout + EXPIRY_DELAY {
        assert!(Instant::now() < deadline, "more than {timeout:?} passes between two connections of a client");
        let begun = Instant::now();
        let again = ask_vip_once(cluster);
        if last_asked.elapsed() < timeout {
            assert_eq!(again, assignments, "{:?} after the first connection", first_asked.elapsed());
        } else {
            // The machine was busy, and affinity may have ended: the first connection is one of this round.
            first_asked = begun;
        }
        last_asked = begun;
        assignments = again;
    }

    thread::sleep(timeout + EXPIRY_DELAY);
    assert_ne!(ask_vip_once(cluster), assignments);
}

/// A Service that is created again with the same address and pods has none of the clients of the deleted one.
pub fn recreated_service_has_no_clients(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![sticky(cluster, &PODS, LONG)]);
    let before = ask_vip(deployment.cluster());

    let service = sticky(deployment.cluster(), &PODS, LONG);
    deployment.delete(&service);
    deployment.apply(&service);

    let after = ask_vip(deployment.cluster());
    let kept = before.iter().filter(|(client, pod)| after.get(*client) == Some(*pod)).count();
    assert!(kept < before.len() / 2, "{kept} of {} clients keep one of four pods", before.len());
}

/// The clients of a removed pod move at once, all others keep their pod, whatever its slot; no client moves to a new
/// pod.
pub fn only_clients_of_a_removed_pod_move(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![sticky(cluster, &PODS, LONG)]);
    let mut assignments = ask_vip(deployment.cluster());
    let mut left = PODS.to_vec();
    for gone in ["pod-a-1", "pod-b-1", "pod-a-2"] {
        left.retain(|pod| *pod != gone);
        let service = sticky(deployment.cluster(), &left, LONG);
        deployment.apply(&service);
        let after = ask_vip(deployment.cluster());
        let moved = assignments.iter().filter(|(client, pod)| after[*client] != **pod);
        assert!(moved.clone().all(|(_, pod)| pod == gone), "{assignments:#?} {after:#?}");
        assert!(pods(&after).is_subset(&left.iter().copied().collect()), "{after:#?}");
        assignments = after;
    }
    let service = sticky(deployment.cluster(), &PODS, LONG);
    deployment.apply(&service);
    assert_eq!(ask_vip(deployment.cluster()), assignments);
}

/// Known clients keep their pod when the timeout changes; the new timeout applies from then on.
pub fn timeout_changes_apply_at_once(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![sticky(cluster, &PODS, LONG)]);
    let assignments = ask_vip(deployment.cluster());
    // Timeouts that do not pass between two connections of a client, however busy the machine is.
    for seconds in [LONG + 1, LONG / 2] {
        let service = sticky(deployment.cluster(), &PODS, seconds);
        deployment.apply(&service);
        assert_eq!(ask_vip(deployment.cluster()), assignments, "{seconds} seconds");
    }
    let service = sticky(deployment.cluster(), &PODS, SHORT);
    deployment.apply(&service);
    let assignments = ask_vip_once(deployment.cluster());
    thread::sleep(EXPIRY);
    assert_ne!(ask_vip_once(deployment.cluster()), assignments, "forgotten");
    let service = sticky(deployment.cluster(), &PODS, LONG);
    deployment.apply(&service);
    let assignments = ask_vip(deployment.cluster());
    thread::sleep(EXPIRY);
    assert_eq!(ask_vip(deployment.cluster()), assignments, "remembered for long again");
}

/// Without affinity a client reaches all pods, with it one.
pub fn affinity_is_turned_on_and_off(backend: Backend) {
    let without = |cluster: &Cluster| web(cluster, &PODS);
    let mut deployment = Deployment::start(backend, |cluster| vec![without(cluster)]);
    for _ in 0..2 {
        assert_spread(deployment.cluster());
        let service = sticky(deployment.cluster(), &PODS, LONG);
        deployment.apply(&service);
        let assignments = ask_vip(deployment.cluster());
        assert_eq!(ask_vip(deployment.cluster()), assignments);
        let service = without(deployment.cluster());
        deployment.apply(&service);
    }
    assert_spread(deployment.cluster());
}

/// Under policy Local a client from outside keeps a pod of the node that its packets enter, and a pod one of its own
/// node. When the policy changes, clients that have such a pod keep it.
pub fn policy_local_keeps_local_pods(backend: Backend) {
    let local = |cluster: &Cluster| {
        let service = sticky(cluster, &PODS, LONG);
        service.external_policy(TrafficPolicy::Local).internal_policy(TrafficPolicy::Local)
    };
    let mut deployment = Deployment::start(backend, |cluster| vec![sticky(cluster, &PODS, LONG)]);
    let here = BTreeSet::from(["pod-a-1", "pod-a-2"]);
    let ask_all = |deployment: &Deployment| {
        let cluster = deployment.cluster();
        all_vips(cluster).into_iter().flat_map(|to| ask_from_outside(cluster, to, REQUESTS)).collect::<Assignments>()
    };
    let before = ask_all(&deployment);
    assert_eq!(pods(&before), BTreeSet::from(PODS), "{before:#?}");
    let service = local(deployment.cluster());
    deployment.apply(&service);
    let after = ask_all(&deployment);
    assert_eq!(pods(&after), here, "{after:#?}");
    for (client, pod) in before.iter().filter(|(_, pod)| here.contains(pod.as_str())) {
        assert_eq!(after[client], *pod, "{client}");
    }
    assert_eq!(ask_all(&deployment), after);
    // Traffic from outside to an external address is not masqueraded.
    for family in IpFamily::ALL {
        let source = plan::client_source(1).ip(family);
        let to = SocketAddr::new(plan::load_balancer_ip(1).ip(family), PORT);
        let reply = outside_client(deployment.cluster(), source).tcp(to).expect("an answer");
        assert_eq!(reply.seen_source.ip(), source);
    }
    let client = deployment.cluster().pod("pod-b-3").client();
    let pods = (0..REQUESTS).map(|_| client.tcp(vip(IpFamily::V4)).expect("an answer").pod);
    let pods = pods.collect::<BTreeSet<_>>();
    assert!(pods.len() == 1 && pods.iter().all(|pod| pod.starts_with("pod-b-")), "{pods:?}");
    let service = sticky(deployment.cluster(), &PODS, LONG);
    deployment.apply(&service);
    assert_eq!(ask_all(&deployment), after);
}

/// Pods and nodes, which reach all pods under external policy Local, move at once when their pod is removed, although
/// connections to it have just been closed.
pub fn clients_inside_move_at_once_under_policy_local(backend: Backend) {
    let local = |cluster: &Cluster, pods: &[&str]| sticky(cluster, pods, LONG).external_policy(TrafficPolicy::Local);
    let mut deployment = Deployment::start(backend, |cluster| vec![local(cluster, &PODS)]);
    let mut left = PODS.to_vec();
    for gone in [None, Some("pod-a-1"), Some("pod-b-1"), Some("pod-a-2")] {
        left.retain(|pod| Some(*pod) != gone);
        let service = local(deployment.cluster(), &left);
        deployment.apply(&service);
        let cluster = deployment.cluster();
        let mut assignments = Assignments::new();
        // To a client on another node, a node port is a VIP from outside.
        for family in IpFamily::ALL {
            let to = SocketAddr::new(plan::load_balancer_ip(1).ip(family), PORT);
            for pod in ["pod-a-3", "pod-b-3"] {
                ask_as(&mut assignments, pod, &cluster.pod(pod).client(), to, 1);
            }
            for node in cluster.nodes() {
                ask_as(&mut assignments, &node.name, &node.client(), to, 1);
            }
        }
        assert!(pods(&assignments).is_subset(&left.iter().copied().collect()), "{assignments:#?}");
    }
}

// === asking ===

/// All clients ask at the cluster IP, in both families.
#[track_caller]
fn ask_vip(cluster: &Cluster) -> Assignments {
    IpFamily::ALL.into_iter().flat_map(|family| ask(cluster, vip(family))).collect()
}

/// As [`ask_vip`], with one request of each client: on a busy machine a short timeout may pass between two.
#[track_caller]
fn ask_vip_once(cluster: &Cluster) -> Assignments {
    IpFamily::ALL.into_iter().flat_map(|family| ask_all(cluster, vip(family), 1)).collect()
}

/// A timeout in seconds that does not pass between two rounds of [`ask_vip_once`], unless one takes far longer than the
/// one that is measured here.
fn timeout_on_this_machine(cluster: &Cluster) -> u32 {
    let start = Instant::now();
    ask_vip_once(cluster);
    let rounds = 8 * start.elapsed();
    SHORT.max(u32::try_from(rounds.as_secs()).expect("a short time"))
}

/// All clients ask at `to`.
#[track_caller]
fn ask(cluster: &Cluster, to: SocketAddr) -> Assignments {
    ask_all(cluster, to, REQUESTS)
}

#[track_caller]
fn ask_all(cluster: &Cluster, to: SocketAddr, requests: usize) -> Assignments {
    let mut assignments = ask_from_outside(cluster, to, requests);
    ask_as(&mut assignments, "pod-a-3", &cluster.pod("pod-a-3").client(), to, requests);
    assignments
}

/// All clients outside the cluster ask at `to`.
#[track_caller]
fn ask_from_outside(cluster: &Cluster, to: SocketAddr, requests: usize) -> Assignments {
    let mut assignments = Assignments::new();
    for source in (1..=plan::CLIENT_SOURCES).map(|number| plan::client_source(number).ip(IpFamily::of(&to.ip()))) {
        ask_as(&mut assignments, &source.to_string(), &outside_client(cluster, source), to, requests);
    }
    assignments
}

fn outside_client(cluster: &Cluster, source: IpAddr) -> Client {
    cluster.client().with_source(source)
}

/// A client sends requests with each protocol, and always reaches the same pod.
#[track_caller]
fn ask_as(assignments: &mut Assignments, name: &str, client: &Client, to: SocketAddr, requests: usize) {
    for protocol in Protocol::ALL {
        let what = format!("{name} {protocol} {to}");
        let pods = client.spread(protocol, to, requests).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(pods.len(), 1, "{what}: {pods:?}");
        assignments.extend(pods.into_keys().map(|pod| (what.clone(), pod)));
    }
}

/// The pods that have clients.
fn pods(assignments: &Assignments) -> BTreeSet<&str> {
    assignments.values().map(String::as_str).collect()
}

/// One client reaches all pods.
#[track_caller]
fn assert_spread(cluster: &Cluster) {
    for family in IpFamily::ALL {
        let client = outside_client(cluster, plan::client_source(1).ip(family));
        Protocol::ALL.into_iter().for_each(|protocol| assert_pods(&client, protocol, vip(family), &PODS));
    }
}

// === the service ===

fn sticky(cluster: &Cluster, pods: &[&str], seconds: u32) -> Service {
    web(cluster, pods).affinity(seconds)
}

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    let service = service.node_port(NODE_PORT).load_balancer_ip(plan::load_balancer_ip(1));
    service.external_ip(plan::external_ip(1)).pods(pods.iter().map(|name| cluster.pod(name)))
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), PORT)
}

/// Every VIP in both families; from outside, all at node-a.
fn all_vips(cluster: &Cluster) -> Vec<SocketAddr> {
    let mut vips = Vec::new();
    for family in IpFamily::ALL {
        let addresses = [plan::cluster_ip(1), plan::load_balancer_ip(1), plan::external_ip(1)];
        vips.extend(addresses.map(|vip| SocketAddr::new(vip.ip(family), PORT)));
        vips.push(SocketAddr::new(cluster.node('a').address.ip(family), NODE_PORT));
    }
    vips
}

//! The addresses of a node at which node ports answer.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::expect::{Check, Expected, check_all};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::{Service, node_object},
    plan::{self, DualStack, IpFamily},
    wire::Protocol,
};

/// Whether an answer is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
}

const NODE_PORT: u16 = 30_080;
/// The CIDRs of a second address of a node, and that address.
const SECOND_CIDRS: &str = "172.31.0.0/16,fd00:172:31::/64";
const SECOND: [&str; 2] = ["172.31.0.1", "fd00:172:31::1"];
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// By default only at the node's primary address of each family: not at others, and not on loopback.
pub fn primary_addresses_answer(backend: Backend) {
    let deployment = Deployment::start(backend, web);
    let cluster = deployment.cluster();
    add_second_address(cluster);
    let mut checks = checks(cluster, cluster.node('a').address.both(), Answer::Yes);
    checks.extend(self::checks(cluster, addresses(SECOND), Answer::No));
    checks.extend(loopback(cluster));
    check_all(&checks);
}

/// While the Node object has no addresses, and the backend knows none from before, node ports answer at none, rather
/// than at all.
pub fn no_address_answers_while_none_is_known(backend: Backend) {
    let mut deployment = Deployment::start(backend, web);
    let node = deployment.cluster().node('a');
    let mut without_addresses = node_object(node, &node.pod_cidrs);
    without_addresses["status"]["addresses"] = json!([]);
    let name = node.name.clone();
    deployment.stop_backends(Signal::SIGTERM);
    fs::remove_file(deployment.state(deployment.cluster().node('a')).join("state")).expect("a state file");
    deployment.manifests().write(&name, &[without_addresses]);
    deployment.start_backends();

    for answer in [Answer::No, Answer::Yes] {
        deployment.wait_until_programmed();
        let cluster = deployment.cluster();
        check_all(&checks(cluster, cluster.node('a').address.both(), answer));
        deployment.manifests().write_node(cluster.node('a'), &cluster.node('a').pod_cidrs);
    }
}

/// A Node object that is deleted by mistake changes nothing: its node keeps the last known addresses and pod CIDRs,
/// also after restarts, until the object returns.
pub fn node_ports_answer_while_the_node_object_is_missing(backend: Backend) {
    let builder = Deployment::builder(backend).without_cluster_cidr();
    let builder = builder.argument("--detect-local-mode").argument("NodeCIDR");
    let mut deployment = builder.start(web);
    let check = |deployment: &Deployment| {
        let cluster = deployment.cluster();
        check_all(&checks(cluster, cluster.node('a').address.both(), Answer::Yes));
    };
    check(&deployment);
    let backend_a = deployment.backend(deployment.cluster().node('a'));
    let (mark, frontend_mark) = (backend_a.mark(), deployment.frontend().mark());
    deployment.manifests().delete_node(deployment.cluster().node('a'));
    deployment.frontend().wait_for_line("Node objects of connected backends were deleted", frontend_mark, TIMEOUT);
    backend_a.wait_for_line("the Node object is gone", mark, TIMEOUT);
    deployment.wait_until_programmed();
    check(&deployment);
    assert!(deployment.ask(&["status", "--problems"]).contains("Node node-a"));
    deployment.stop_backends(Signal::SIGKILL);
    deployment.stop_frontend(Signal::SIGKILL);
    deployment.start_frontend();
    deployment.start_backends();
    deployment.wait_until_programmed();
    check(&deployment);
    let mark = deployment.backend(deployment.cluster().node('a')).mark();
    let node = deployment.cluster().node('a');
    deployment.manifests().write_node(node, &node.pod_cidrs);
    deployment.backend(node).wait_for_line("the Node object exists again", mark, TIMEOUT);
    deployment.wait_until_programmed();
    check(&deployment);
}

/// At addresses in the CIDRs given, also at one that the node gets later; not at the primary address unless that is in
/// one of them.
pub fn addresses_in_the_given_cidrs_answer(backend: Backend) {
    let builder = Deployment::builder(backend).argument("--nodeport-addresses").argument(SECOND_CIDRS);
    let deployment = builder.start(web);
    let cluster = deployment.cluster();
    check_all(&checks(cluster, cluster.node('a').address.both(), Answer::No));
    add_second_address(cluster);
    let mut checks = checks(cluster, addresses(SECOND), Answer::Yes);
    checks.extend(loopback(cluster));
    check_all(&checks);
}

/// With CIDRs of all addresses, node ports answer at each address except loopback.
pub fn loopback_never_answers(backend: Backend) {
    let builder = Deployment::builder(backend).argument("--nodeport-addresses").argument("0.0.0.0/0,::/0");
    let deployment = builder.start(web);
    let cluster = deployment.cluster();
    add_second_address(cluster);
    let mut checks = checks(cluster, cluster.node('a').address.both(), Answer::Yes);
    checks.extend(self::checks(cluster, addresses(SECOND), Answer::Yes));
    checks.extend(loopback(cluster));
    check_all(&checks);
}

fn web(cluster: &Cluster) -> Vec<Service> {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).node_port(NODE_PORT);
    vec![service.pods([cluster.pod("pod-a-1")])]
}

/// Gives node-a a second address, and adds a route to it outside.
fn add_second_address(cluster: &Cluster) {
    let node = cluster.node('a');
    let [v4, v6] = SECOND;
    addresses(SECOND).iter().for_each(|address| node.netns.add_address(*address, "eth0", ""));
    let DualStack { v4: via4, v6: via6 } = node.address;
    cluster.outside().ip(&format!("route add {v4} via {via4}\nroute add {v6} via {via6}\n"));
}

/// Checks from outside and from the node itself that the service answers or, where no process listens, that the kernel
/// rejects the request.
fn checks(cluster: &Cluster, addresses: [IpAddr; 2], answer: Answer) -> Vec<Check> {
    let clients = [("outside", cluster.client()), ("node-a", cluster.node('a').client())];
    let mut checks = Vec::new();
    for address in addresses {
        let masqueraded = plan::gateway(1).ip(IpFamily::of(&address));
        let pod = ("pod-a-1".to_owned(), masqueraded);
        let expected = match answer {
            Answer::Yes => Expected::Answers([pod].into()),
            Answer::No => Expected::Refused,
        };
        for (what, client) in &clients {
            // No process on the node uses SCTP, so the kernel does not reject it.
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                checks.push(Check {
                    what: format!("from {what}"),
                    client: client.clone(),
                    protocol,
                    to: SocketAddr::new(address, NODE_PORT),
                    expected: expected.clone(),
                });
            }
        }
    }
    checks
}

fn loopback(cluster: &Cluster) -> Vec<Check> {
    let mut checks = checks(cluster, addresses(LOOPBACK), Answer::No);
    checks.retain(|check| check.what == "from node-a");
    checks
}

fn addresses(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|text| text.parse().expect("an address"))
}

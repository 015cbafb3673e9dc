//! Ports of a cluster IP that no service has are rejected; packets to unallocated addresses of the service CIDRs are
//! dropped.
//!
//! node-b has one unallocated address and rejects packets to it, so that a case can tell whether node-a drops or
//! forwards them.

use std::net::SocketAddr;

use serde_json::json;

use super::expect::{Check, Expected, check_all, check_with_trace};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment},
    manifests::Service,
    plan::{self, DualStack, IpFamily},
    wire::Protocol,
};

const PORT: u16 = 80;
/// An address of node-b only.
const UNALLOCATED: u8 = 99;
/// The protocols for which a kernel rejects packets to ports without a server. It has no SCTP.
const TRANSPORTS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// A port of a cluster IP that no service has is rejected, as long as a service has the address.
pub fn other_ports_are_rejected(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster), dns(cluster)]);
    let cluster = deployment.cluster();
    let web_ip = plan::cluster_ip(1);
    let mut checks = checks(cluster, &Protocol::ALL, web_ip, PORT + 1, &Expected::Refused);
    // The same number, but another protocol.
    let dns_ip = plan::cluster_ip(2);
    checks.extend(self::checks(cluster, &[Protocol::Tcp], dns_ip, 53, &Expected::Refused));
    checks.extend(served(cluster));
    check_with_trace(cluster, &checks);

    let gone = web(deployment.cluster());
    deployment.delete(&gone);
    check_all(&self::checks(deployment.cluster(), &TRANSPORTS, web_ip, PORT, &Expected::Dropped));
}

/// Packets to an address without a service are dropped, before a service gets it and after the service is removed.
pub fn unallocated_addresses_are_dropped(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    take_unallocated(deployment.cluster());
    let check = |deployment: &Deployment, port, expected: Expected| {
        let address = plan::cluster_ip(UNALLOCATED);
        check_all(&checks(deployment.cluster(), &TRANSPORTS, address, port, &expected));
    };
    check(&deployment, PORT, Expected::Dropped);
    let service = Service::new("late").cluster_ip(plan::cluster_ip(UNALLOCATED)).port_all(PORT, 8080);
    deployment.apply(&service);
    check(&deployment, PORT, Expected::Refused);
    check(&deployment, PORT + 1, Expected::Refused);
    deployment.delete(&service);
    check(&deployment, PORT, Expected::Dropped);
    check_all(&served(deployment.cluster()));
}

/// A Service that is labelled for another proxy has its cluster IP: packets to it follow their route.
pub fn cluster_ips_of_another_proxy_pass(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    take_unallocated(deployment.cluster());
    let address = plan::cluster_ip(UNALLOCATED);
    let check = |deployment: &Deployment, expected: Expected| {
        check_all(&checks(deployment.cluster(), &TRANSPORTS, address, PORT, &expected));
        check_all(&served(deployment.cluster()));
    };
    check(&deployment, Expected::Dropped);
    let service = Service::new("other").cluster_ip(address).port_all(PORT, 8080);
    deployment.apply_changed(&service, |objects| {
        objects[0]["metadata"]["labels"] = json!({ "service.kubernetes.io/service-proxy-name": "another" });
    });
    // By node-b, which has the address.
    check(&deployment, Expected::Refused);
    let free = plan::cluster_ip(UNALLOCATED + 1);
    check_all(&checks(deployment.cluster(), &TRANSPORTS, free, PORT, &Expected::Dropped));
    // An empty file: the Service is deleted.
    deployment.apply_changed(&service, Vec::clear);
    check(&deployment, Expected::Dropped);
}

/// Service CIDRs take effect when they are added, and end when they are removed.
pub fn service_cidr_changes_apply_at_once(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    take_unallocated(deployment.cluster());
    let mut check = |cidrs: &[&str], expected: Expected| {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": { "name": "kubernetes" },
            "spec": { "cidrs": cidrs },
        });
        deployment.manifests().write("service-cidrs", &[object]);
        deployment.wait_until_programmed();
        let (cluster, address) = (deployment.cluster(), plan::cluster_ip(UNALLOCATED));
        check_all(&checks(cluster, &TRANSPORTS, address, PORT, &expected));
        check_all(&served(cluster));
    };
    // A CIDR of all addresses is ignored.
    check(&["10.97.0.0/16", "fd00:10:97::/112", "0.0.0.0/0"], Expected::Refused);
    check(&["10.96.0.96/29", "fd00:10:96::/64"], Expected::Dropped);
    check(&[], Expected::Refused);
    check(&plan::SERVICE_CIDRS, Expected::Dropped);
}

fn web(cluster: &Cluster) -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080).pods([cluster.pod("pod-a-1")])
}

fn dns(cluster: &Cluster) -> Service {
    let dns = Service::new("dns").cluster_ip(plan::cluster_ip(2)).port(Protocol::Udp, 53, 8080);
    dns.pods([cluster.pod("pod-a-1")])
}

/// Gives node-b the address, and node-a a route to it.
fn take_unallocated(cluster: &Cluster) {
    let DualStack { v4, v6 } = plan::cluster_ip(UNALLOCATED);
    let node_b = cluster.node('b');
    [v4.into(), v6.into()].iter().for_each(|address| node_b.netns.add_address(*address, "eth0", ""));
    let DualStack { v4: via4, v6: via6 } = node_b.address;
    cluster.node('a').netns.ip(&format!("route add {v4} via {via4}\nroute add {v6} via {via6}\n"));
}

/// From a pod of node-a, from node-a itself, and from outside through node-a.
fn checks(cluster: &Cluster, protocols: &[Protocol], to: DualStack, port: u16, expected: &Expected) -> Vec<Check> {
    let clients = [
        ("pod-a-3", cluster.pod("pod-a-3").client()),
        ("node-a", cluster.node('a').client()),
        ("outside", cluster.client()),
    ];
    let mut checks = Vec::new();
    for (what, client) in clients {
        for &protocol in protocols {
            for family in IpFamily::ALL {
                checks.push(Check {
                    what: format!("from {what}"),
                    client: client.clone(),
                    protocol,
                    to: SocketAddr::new(to.ip(family), port),
                    expected: expected.clone(),
                });
            }
        }
    }
    checks
}

/// The service still answers.
fn served(cluster: &Cluster) -> Vec<Check> {
    let client = cluster.pod("pod-a-3").client();
    let mut checks = Vec::new();
    for protocol in Protocol::ALL {
        for family in IpFamily::ALL {
            let seen = cluster.pod("pod-a-3").address.ip(family);
            checks.push(Check {
                what: "from pod-a-3".to_owned(),
                client: client.clone(),
                protocol,
                to: SocketAddr::new(plan::cluster_ip(1).ip(family), PORT),
                expected: Expected::Answers([("pod-a-1".to_owned(), seen)].into()),
            });
        }
    }
    checks
}

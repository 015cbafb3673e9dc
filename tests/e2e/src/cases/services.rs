//! Which Services are served, at which addresses and ports, and what happens when an address or port is removed.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};

use super::expect::{Check, Expected, assert_answers, assert_closed, assert_pods, check_all};
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::Service,
    plan::{self, DualStack, IpFamily},
    server::Server,
    traffic::{Churn, Stream},
    wire::Protocol,
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const CLIENT_PORT: u16 = 40_000;
const INTERVAL: Duration = Duration::from_millis(15);
const PER_SECOND: u32 = 100;
/// Enough to notice a gap.
const ATTEMPTS: u64 = 60;

// === types ===

/// A Service changes its type several times: each time exactly the addresses of the new type answer.
pub fn type_changes_apply_at_once(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let cluster_ip = web(deployment.cluster());
    let node_port = cluster_ip.clone().node_port(NODE_PORT);
    let load_balancer = node_port.clone().load_balancer_ip(plan::load_balancer_ip(1));
    // A load balancer without node ports, and external IPs, which every type can have.
    let direct = cluster_ip.clone().load_balancer_ip(plan::load_balancer_ip(1));
    let external = cluster_ip.clone().external_ip(plan::external_ip(1));
    let [internal, node, balancer, outside] = [0, 1, 2, 3];
    for (service, answering) in [
        (&cluster_ip, &[internal][..]),
        (&node_port, &[internal, node]),
        (&load_balancer, &[internal, node, balancer]),
        (&direct, &[internal, balancer]),
        (&external, &[internal, outside]),
        (&load_balancer, &[internal, node, balancer]),
        (&cluster_ip, &[internal]),
    ] {
        deployment.apply(service);
        assert_vips(&deployment, answering);
    }
}

/// A client reaches a Service from one source port at each of its VIPs in turn: replies come from the same VIP.
pub fn clients_reuse_a_source_port(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| vec![with_all_vips(cluster)]);
    let pod = deployment.cluster().pod("pod-a-3");
    for family in IpFamily::ALL {
        let client = pod.client().with_source_port(SocketAddr::new(pod.address.ip(family), CLIENT_PORT));
        let vips = vips(deployment.cluster(), family);
        for vip in vips.iter().chain(&vips).chain(vips.iter().rev()) {
            let answer = client.tcp(*vip).unwrap_or_else(|failure| panic!("{vip}: {failure}"));
            assert_eq!(answer.pod, "pod-a-1", "{vip}");
        }
    }
}

/// Traffic to a load balancer with `ipMode: Proxy`, or with a host name only, leaves the cluster.
pub fn proxying_load_balancers_get_the_traffic(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let ip = plan::load_balancer_ip(1);
    ip.both().iter().for_each(|ip| cluster.outside().add_address(*ip, "lo", ""));
    let _balancer = Server::start(cluster.outside(), "balancer", &ip.both(), &[PORT]);
    let service = web(cluster).load_balancer_ip(ip);
    let client = cluster.pod("pod-a-3").client();
    let vips = IpFamily::ALL.map(|family| SocketAddr::new(ip.ip(family), PORT));
    let modes: [(fn(&mut Value), _); 4] = [
        (|ingress| ingress["ipMode"] = json!("Proxy"), "balancer"),
        (|ingress| ingress["ipMode"] = json!("VIP"), "pod-a-1"),
        (|ingress| *ingress = json!({ "hostname": "balancer.example.org" }), "balancer"),
        // Controllers that do not know the field leave it empty.
        (|ingress| ingress["ipMode"] = json!(null), "pod-a-1"),
    ];
    for (change, pod) in modes {
        deployment.apply_changed(&service, |objects| {
            let ingress = objects[0]["status"]["loadBalancer"]["ingress"].as_array_mut().expect("a list");
            ingress.iter_mut().for_each(change);
        });
        assert_answers(&client, vips, &[pod]);
    }
}

// === families and spellings ===

/// A single-stack Service has no cluster IP, node port or external IP in the other family.
pub fn single_stack_services_serve_one_family(backend: Backend) {
    let deployment = Deployment::start(backend, |cluster| {
        let of = |number: u8, family| {
            let address = plan::cluster_ip(number).ip(family);
            let service = Service::new(&format!("web-{number}")).single_stack(address).port_all(PORT, 8080);
            let service = service.node_port(NODE_PORT + u16::from(number)).external_ip(plan::external_ip(number));
            service.pods([cluster.pod("pod-a-1")])
        };
        vec![of(1, IpFamily::V4), of(2, IpFamily::V6)]
    });
    let cluster = deployment.cluster();
    for (number, family, other) in [(1, IpFamily::V4, IpFamily::V6), (2, IpFamily::V6, IpFamily::V4)] {
        let vips = |family| {
            let vips = [plan::cluster_ip(number), plan::external_ip(number)];
            let node_port = (cluster.node('a').address, NODE_PORT + u16::from(number));
            vips.map(|vip| (vip, PORT))
                .into_iter()
                .chain([node_port])
                .map(move |(address, port)| SocketAddr::new(address.ip(family), port))
        };
        assert_answers(&cluster.client(), vips(family), &["pod-a-1"]);
        assert_closed(&cluster.client(), vips(other));
    }
}

/// Numbers with leading zeros are decimal, as in the API server, and white space around a source range is ignored.
pub fn leading_zeros_in_addresses_are_decimal(backend: Backend) {
    let mut deployment = Deployment::start(backend, |_| Vec::new());
    let cluster = deployment.cluster();
    let service = with_all_vips(cluster);
    let source = |number: u8| cluster.client().with_source(plan::client_source(number).v4.into());
    let (inside, beyond) = (source(1), source(8));
    let [internal, node, balancer, external] = vips(cluster, IpFamily::V4);
    deployment.apply_changed(&service, |objects| {
        let spec = &mut objects[0]["spec"];
        spec["clusterIP"] = json!("010.096.000.001");
        spec["clusterIPs"][0] = json!("010.096.000.001");
        spec["externalIPs"][0] = json!("198.051.100.001");
        spec["loadBalancerSourceRanges"] = json!([" 203.0.113.000/030 ", "2001:0db8:0203::/64"]);
        objects[0]["status"]["loadBalancer"]["ingress"][0]["ip"] = json!("192.000.002.001");
        objects[1]["endpoints"][0]["addresses"] = json!(["010.244.001.011"]);
    });
    assert_answers(&inside, [internal, node, balancer, external], &["pod-a-1"]);
    assert_closed(&beyond, [balancer]);
}

// === ports ===

/// Ports of the same number and different protocols have their own endpoints, at each kind of VIP, and are removed
/// independently.
pub fn protocols_are_independent(backend: Backend) {
    let pods = ["pod-a-1", "pod-a-2", "pod-b-1"];
    let services = |cluster: &Cluster| {
        let of = |(protocol, (name, number)): (Protocol, (&str, u8))| {
            let service = Service::new(name).cluster_ip(plan::cluster_ip(number)).port(protocol, PORT, 8080);
            let service = service.node_port(NODE_PORT).external_ip(plan::external_ip(1));
            service.load_balancer_ip(plan::load_balancer_ip(1)).pods([cluster.pod(name)])
        };
        Protocol::ALL.into_iter().zip(pods.into_iter().zip(1..)).map(of).collect::<Vec<_>>()
    };
    let mut deployment = Deployment::start(backend, services);
    let services = services(deployment.cluster());
    let check = |deployment: &Deployment, gone: Option<Protocol>| {
        let cluster = deployment.cluster();
        let client = cluster.pod("pod-a-3").client();
        for (protocol, pod) in Protocol::ALL.into_iter().zip(pods).filter(|(protocol, _)| Some(*protocol) != gone) {
            for to in IpFamily::ALL.into_iter().flat_map(|family| vips(cluster, family).into_iter().skip(1)) {
                assert_pods(&client, protocol, to, &[pod]);
            }
        }
    };
    check(&deployment, None);
    for (service, protocol) in services.iter().zip(Protocol::ALL) {
        deployment.delete(service);
        check(&deployment, Some(protocol));
        deployment.apply(service);
    }
    check(&deployment, None);
}

/// Renaming a port does not affect connections through it.
pub fn ports_are_renamed(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
    let service = web(deployment.cluster());
    let client = deployment.cluster().pod("pod-b-3").client();
    let vips = IpFamily::ALL.map(|family| vip(plan::cluster_ip(1), family));
    let churns = vips.map(|vip| client.churn(Protocol::Tcp, vip, PER_SECOND, TIMEOUT * 3));
    let streams = [Protocol::Tcp, Protocol::Udp]
        .map(|protocol| vips.map(|vip| client.stream(protocol, vip, INTERVAL).expect("a connection")));
    for prefix in ["a", "z"] {
        deployment.apply_changed(&service, |objects| {
            for (at, field) in [(0, "/spec/ports"), (1, "/ports"), (2, "/ports")] {
                let ports = objects[at].pointer_mut(field).and_then(Value::as_array_mut).expect("ports");
                for (number, port) in ports.iter_mut().enumerate() {
                    port["name"] = json!(format!("{prefix}-{number}"));
                }
            }
        });
        Churn::wait_for_attempts(&churns, ATTEMPTS, TIMEOUT);
        assert_answers(&client, vips, &["pod-a-1"]);
    }
    for churn in churns {
        assert_eq!(churn.finish().failures, []);
    }
    for stream in streams.into_iter().flatten() {
        let report = stream.finish();
        assert!(report.is_clean() && report.echoed > 0, "{report:?}");
    }
}

// === removal ===

/// A Service is deleted and recreated with another cluster IP: connections continue, and the old address accepts no new
/// ones.
pub fn recreated_service_keeps_old_connections(backend: Backend) {
    let mut deployment = Deployment::start(backend, |cluster| vec![with_all_vips(cluster)]);
    let old = with_all_vips(deployment.cluster());
    let new = web(deployment.cluster()).cluster_ip(plan::cluster_ip(2));
    let client = deployment.cluster().pod("pod-a-3").client();
    let outside = deployment.cluster().client();
    let addresses = |number| IpFamily::ALL.map(|family| vip(plan::cluster_ip(number), family));
    let vips = IpFamily::ALL.map(|family| vips(deployment.cluster(), family));
    let inside = addresses(1).map(|to| client.stream(Protocol::Tcp, to, INTERVAL));
    let streams =
        inside.into_iter().chain(vips.into_iter().flatten().map(|to| outside.stream(Protocol::Tcp, to, INTERVAL)));
    let streams = streams.map(|stream| stream.expect("a connection")).collect::<Vec<_>>();

    deployment.delete(&old);
    assert_vips(&deployment, &[]);
    assert_closed(&client, addresses(1).into_iter().chain(addresses(2)));
    deployment.apply(&new);
    assert_answers(&client, addresses(2), &["pod-a-1"]);
    assert_closed(&client, addresses(1));
    // The connections continue.
    Stream::wait_for_echoes(&streams, 3, TIMEOUT);
    for stream in streams {
        let report = stream.finish();
        assert!(report.is_clean(), "{report:?}");
    }
}

// === helpers ===

fn web(cluster: &Cluster) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    service.pods([cluster.pod("pod-a-1")])
}

/// [`web`] with each kind of VIP.
fn with_all_vips(cluster: &Cluster) -> Service {
    let service = web(cluster).node_port(NODE_PORT).external_ip(plan::external_ip(1));
    service.load_balancer_ip(plan::load_balancer_ip(1))
}

fn vip(address: DualStack, family: IpFamily) -> SocketAddr {
    SocketAddr::new(address.ip(family), PORT)
}

/// Cluster IP, node port, load-balancer IP, external IP.
fn vips(cluster: &Cluster, family: IpFamily) -> [SocketAddr; 4] {
    [
        vip(plan::cluster_ip(1), family),
        SocketAddr::new(cluster.node('a').address.ip(family), NODE_PORT),
        vip(plan::load_balancer_ip(1), family),
        vip(plan::external_ip(1), family),
    ]
}

/// Checks that the [`vips`] with these indexes answer requests from outside, and the others do not.
#[track_caller]
fn assert_vips(deployment: &Deployment, answering: &[usize]) {
    let cluster = deployment.cluster();
    let all = IpFamily::ALL.into_iter().flat_map(|family| vips(cluster, family).into_iter().enumerate());
    let (answering, closed): (Vec<_>, Vec<_>) = all.partition(|(at, _)| answering.contains(at));
    let mut checks = Vec::new();
    for (_, to) in answering {
        let pod = ("pod-a-1".to_owned(), plan::gateway(1).ip(IpFamily::of(&to.ip())));
        checks.extend(Protocol::ALL.map(|protocol| Check {
            what: "from outside".to_owned(),
            client: cluster.client(),
            protocol,
            to,
            expected: Expected::Answers([pod.clone()].into()),
        }));
    }
    check_all(&checks);
    assert_closed(&cluster.client(), closed.into_iter().map(|(_, to)| to));
}

//! A change of the mode under traffic, from every mode to every other one: no connection is lost, nothing of the old
//! mode stays in the kernel, and the new mode follows changes. IPVS pairs run in user-mode-linux, whose kernel has IPVS
//! but no nf_tables for IPv4 and IPv6.

use std::{net::SocketAddr, time::Duration};

use e2e::{
    Backend, BackgroundTraffic, Client, Cluster, Deployment, Protocol, eventually, manifests::Service, plan, uml,
};
use plan::IpFamily;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than IPVS counts a closed connection (two minutes), and the interval of the attempts to remove it.
const IPVS_TIMEOUT: Duration = Duration::from_secs(240);
const ATTEMPTS: u64 = 40;
const PODS: [&str; 2] = ["pod-a-1", "pod-b-1"];
const NODE_PORT: u16 = 30_080;
/// Services and ports of each, in the test with so many that a backend programs them in several transactions.
const SERVICES: u8 = 110;
const PORTS: u16 = 5;
const REMOVED: &str = "removed the objects of another mode of Fairlead";

/// The addresses of `web`.
fn vips(cluster: &Cluster, family: IpFamily) -> [SocketAddr; 3] {
    [
        SocketAddr::new(plan::cluster_ip(1).ip(family), 80),
        SocketAddr::new(plan::external_ip(1).ip(family), 80),
        SocketAddr::new(cluster.node('a').address.ip(family), NODE_PORT),
    ]
}

/// Pods, a node, and a client outside the cluster, each with the VIPs that it uses. No client address uses two VIPs
/// through IPVS: it takes two connections of one client to one endpoint for one if their source ports are equal, which
/// the client's kernel avoids for one VIP only. (The source of a node's connection to a VIP is that VIP, and `outside`
/// has another address for external IPs.)
fn clients(cluster: &Cluster, family: IpFamily) -> Vec<(Client, SocketAddr)> {
    let [cluster_ip, external_ip, node_port] = vips(cluster, family);
    let pod = |name| cluster.pod(name).client();
    let (node, outside) = (|| cluster.node('a').client(), || cluster.client());
    vec![
        (pod("pod-a-3"), cluster_ip),
        (pod("pod-b-3"), external_ip),
        (pod("pod-a-2"), node_port),
        (node(), cluster_ip),
        (node(), external_ip),
        (node(), node_port),
        (outside(), external_ip),
        (outside(), node_port),
    ]
}

/// See [`clients`].
fn use_another_source_for_external_ips(cluster: &Cluster) {
    for family in IpFamily::ALL {
        let range = plan::EXTERNAL_CIDRS[usize::from(family == IpFamily::V6)];
        let (via, source) = (cluster.node('a').address.ip(family), plan::client_source(1).ip(family));
        cluster.outside().ip(&format!("route replace {range} via {via} src {source}\n"));
    }
}

fn web(cluster: &Cluster, pods: &[&str]) -> Service {
    let web = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    web.port_all(80, 8080).node_port(NODE_PORT).pods(pods.iter().map(|pod| cluster.pod(pod)))
}

/// With one endpoint, so that a UDP flow that is translated anew keeps it.
fn single(cluster: &Cluster) -> Service {
    Service::new("single").cluster_ip(plan::cluster_ip(2)).port_all(80, 8080).pods([cluster.pod("pod-b-2")])
}

fn start_traffic(cluster: &Cluster) -> BackgroundTraffic {
    let mut traffic = BackgroundTraffic::default();
    let interval = Duration::from_millis(15);
    for family in IpFamily::ALL {
        for (client, vip) in clients(cluster, family) {
            if !uml::is_guest() {
                traffic.churns.push(client.churn(Protocol::Tcp, vip, 20, IPVS_TIMEOUT * 2));
            }
            traffic.streams.push(client.stream(Protocol::Tcp, vip, interval).expect("a connection"));
        }
        let client = cluster.pod("pod-a-3").client();
        let vip = SocketAddr::new(plan::cluster_ip(2).ip(family), 80);
        traffic.streams.push(client.stream(Protocol::Udp, vip, interval).expect("a flow"));
    }
    traffic
}

fn assert_served(cluster: &Cluster, pods: &[&str]) {
    for family in IpFamily::ALL {
        for (client, vip) in clients(cluster, family) {
            for _ in 0..8 {
                let answer = client.tcp(vip).expect("an answer");
                assert!(pods.contains(&&*answer.pod), "{vip} is served by {}", answer.pod);
            }
        }
    }
}

/// Changes the mode along a path, under the same traffic.
fn change(modes: &[Backend]) {
    let (first, others) = modes.split_first().expect("a mode");
    let mut deployment = Deployment::start(*first, |cluster| vec![web(cluster, &PODS), single(cluster)]);
    use_another_source_for_external_ips(deployment.cluster());
    let mut old = *first;
    for (number, new) in others.iter().enumerate() {
        let traffic = start_traffic(deployment.cluster());
        traffic.wait(ATTEMPTS, TIMEOUT);
        deployment.change_mode(*new);
        let nodes = || deployment.cluster().nodes().iter();
        if old == Backend::Ipvs {
            // Open connections keep their virtual servers.
            traffic.wait(ATTEMPTS, TIMEOUT);
        } else {
            nodes().for_each(|node| drop(deployment.backend(node).wait_for_line(REMOVED, 0, TIMEOUT)));
        }
        traffic.wait(ATTEMPTS, TIMEOUT);
        traffic.finish();
        for node in nodes() {
            eventually("nothing of the old mode is left", IPVS_TIMEOUT, || {
                old.installed(&node.netns).is_empty().then_some(())
            });
            assert!(!new.installed(&node.netns).is_empty());
        }
        let pods: &[&str] = [&["pod-b-2"][..], &["pod-a-2"]][number % 2];
        let changed = web(deployment.cluster(), pods);
        deployment.apply(&changed);
        assert_served(deployment.cluster(), pods);
        let changed = web(deployment.cluster(), &PODS);
        deployment.apply(&changed);
        old = *new;
    }
}

/// The addresses of `many`.
fn many_vips(family: IpFamily) -> impl Iterator<Item = SocketAddr> {
    (1..=SERVICES).step_by(50).map(move |number| SocketAddr::new(plan::cluster_ip(number).ip(family), 80))
}

fn many(cluster: &Cluster) -> Vec<Service> {
    let service = |number| {
        let service = Service::new(&format!("many-{number}")).cluster_ip(plan::cluster_ip(number));
        let service = (0..PORTS).fold(service, |service, port| service.port_all(80 + port, 8080));
        service.pods(["pod-a-1", "pod-a-2"].map(|pod| cluster.pod(pod)))
    };
    (1..=SERVICES).map(service).collect()
}

/// Along a path, while a node has more service ports than one transaction.
fn change_with_many_services(modes: &[Backend]) {
    let (first, others) = modes.split_first().expect("a mode");
    let cluster = Cluster::builder().nodes(1);
    let mut deployment = Deployment::builder(*first).cluster(cluster).start(many);
    let client = deployment.cluster().pod("pod-a-3").client();
    let mut traffic = BackgroundTraffic::default();
    for vip in IpFamily::ALL.into_iter().flat_map(many_vips) {
        traffic.churns.push(client.churn(Protocol::Tcp, vip, 30, IPVS_TIMEOUT * 2));
    }
    traffic.wait(ATTEMPTS, TIMEOUT);
    let mut old = *first;
    for new in others {
        deployment.change_mode(*new);
        let node = &deployment.cluster().nodes()[0].netns;
        eventually("nothing of the old mode is left", IPVS_TIMEOUT, || old.installed(node).is_empty().then_some(()));
        traffic.wait(ATTEMPTS, TIMEOUT);
        old = *new;
    }
    traffic.finish();
}

#[test]
fn many_services_between_nftables_and_iptables_nft() {
    change_with_many_services(&[Backend::Nft, Backend::IptablesNft, Backend::Nft]);
}

#[test]
fn many_services_between_nftables_and_iptables_legacy() {
    change_with_many_services(&[Backend::Nft, Backend::IptablesLegacy, Backend::Nft]);
}

#[test]
fn nftables_and_iptables_nft() {
    change(&[Backend::Nft, Backend::IptablesNft, Backend::Nft]);
}

#[test]
fn nftables_and_iptables_legacy() {
    change(&[Backend::Nft, Backend::IptablesLegacy, Backend::Nft]);
}

#[test]
fn both_variants_of_iptables() {
    change(&[Backend::IptablesNft, Backend::IptablesLegacy, Backend::IptablesNft]);
}

#[test]
#[ignore = "takes minutes in user-mode-linux, and times out beside other tests: run `make nightly PART=modes`"]
fn iptables_and_ipvs() {
    uml::inside(|| {
        uml::load(&[]);
        change(&[Backend::IptablesLegacy, Backend::Ipvs, Backend::IptablesLegacy]);
    });
}

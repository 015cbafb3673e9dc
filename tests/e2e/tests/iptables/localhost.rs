//! Node ports on 127.0.0.0/8, which need a flag; packets of other hosts to these addresses are dropped.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use e2e::{
    Backend, Cluster, Deployment, Failure, Netns, Protocol, fairlead,
    manifests::Service,
    plan::{self, IpFamily},
};
use nix::sys::signal::Signal;

const NODE_PORT: u16 = 30_080;
const EMPTY_PORT: u16 = 30_081;
const FLAG: &str = "--iptables-localhost-nodeports";
/// A loopback address to which the outside namespace has a route, and a port at which a process of the node listens.
const LISTENER: &str = "127.7.7.7:7777";
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(5);

fn services(cluster: &Cluster) -> Vec<Service> {
    let service = |name, ip| Service::new(name).cluster_ip(plan::cluster_ip(ip)).port_all(80, 8080);
    vec![
        service("web", 1).node_port(NODE_PORT).pods([cluster.pod("pod-b-1")]),
        service("idle", 2).node_port(EMPTY_PORT),
    ]
}

fn localhost(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn route_localnet(netns: &Netns) -> String {
    let value = netns.run(|| fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet"));
    value.expect("a sysctl").trim().to_owned()
}

#[test]
fn node_ports_answer_on_loopback_with_the_flag() {
    for backend in [Backend::IptablesNft, Backend::IptablesLegacy] {
        let deployment = Deployment::builder(backend).argument(FLAG).start(services);
        let cluster = deployment.cluster();
        let node = cluster.node('a');
        let client = node.client();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let reply = client.ask(protocol, localhost(NODE_PORT)).expect("an answer");
            // The source is masqueraded: answers to a loopback address would not leave the pod.
            assert_eq!((&*reply.pod, reply.seen_source.ip()), ("pod-b-1", node.address.ip(IpFamily::V4)), "{protocol}");
            assert_eq!(client.ask(protocol, localhost(EMPTY_PORT)), Err(Failure::Refused), "{protocol}");
            // The primary address still answers.
            let primary = SocketAddr::new(node.address.ip(IpFamily::V4), NODE_PORT);
            assert!(cluster.client().ask(protocol, primary).is_ok(), "{protocol}");
            let v6 = SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), NODE_PORT);
            assert!(client.ask(protocol, v6).is_err(), "{protocol}");
        }
        assert_eq!(route_localnet(&node.netns), "1");
    }
}

#[test]
fn other_hosts_do_not_reach_loopback_addresses() {
    for (backend, tool) in [(Backend::IptablesNft, "iptables-nft"), (Backend::IptablesLegacy, "iptables-legacy")] {
        let mut deployment = Deployment::builder(backend).argument(FLAG).start(services);
        let cluster = deployment.cluster();
        let node = cluster.node('a');
        let (netns, via) = (node.netns.clone(), node.address.v4);
        let outside = cluster.outside().clone();
        let state = deployment.state(node);
        // By default a host does not send packets to another host's loopback addresses.
        outside.sysctls(&[("ipv4/conf/all/route_localnet", "1")]);
        outside.ip("route del local 127.0.0.0/8 dev lo table local\n");
        outside.ip(&format!("route add 127.7.7.7 via {via}\n"));
        let listener = netns.run(|| TcpListener::bind(LISTENER)).expect("listen");
        let address = listener.local_addr().expect("an address");
        let connect = |within| outside.run(|| TcpStream::connect_timeout(&address, within)).is_ok();
        assert!(!connect(SHORT), "{backend:?}");
        // Only the rule of the backend drops the packets.
        deployment.stop_backends(Signal::SIGTERM);
        netns.output(tool, &["-D", "KUBE-NODEPORTS", "1"]);
        assert!(connect(LONG), "{backend:?}");
        // A restarted backend restores the rule.
        deployment.start_backends();
        assert!(!connect(SHORT), "{backend:?}");
        deployment.stop_backends(Signal::SIGTERM);
        let mut cleanup = fairlead();
        cleanup.args(["cleanup", "--backend", "iptables", "--state-dir"]).arg(&state);
        cleanup.env("XTABLES_LOCKFILE", netns.iptables_lock());
        assert!(netns.run(|| cleanup.status()).expect("a program").success());
        assert_eq!(route_localnet(&netns), "0");
        assert!(!connect(SHORT), "{backend:?}");
    }
}

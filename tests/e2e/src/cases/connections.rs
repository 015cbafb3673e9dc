//! What `fairlead connections` counts, compared with the kernel's own lists: connections of each kind of client, at the
//! node that translates them and at the node of their endpoint.

use std::{
    collections::BTreeMap,
    fs,
    io::BufReader,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    str::FromStr,
};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    client::Client,
    cluster::{Cluster, Node},
    deployment::{Backend, Deployment, fairlead},
    manifests::{Endpoint, EndpointState, Service},
    netns::Netns,
    plan::{self, DualStack, IpFamily},
    tools::conntrack,
    wire::{Protocol, Reply},
};

const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Of the first client; below the ports that the kernel chooses.
const SOURCE_PORT: usize = 20_000;
/// The endpoints that are removed, and end, while they have connections.
const REMOVED: &str = "pod-b-1";
const ENDING: &str = "pod-b-2";

/// How many connections each of several keys has.
type Counts = BTreeMap<String, u64>;

/// A TCP connection that stays open, or a UDP flow.
struct Held {
    service_port: String,
    /// The name of the node that translates it.
    translated_by: String,
    client: SocketAddr,
    reply: Reply,
    _connection: Option<BufReader<TcpStream>>,
}

/// From a pod, an endpoint to itself, the node, and from outside; to endpoints of the same and of another node, of
/// which one is removed and one ends; and of a client with session affinity.
pub fn connections_are_counted_by_endpoint_and_client(backend: Backend) {
    let first = |cluster: &Cluster| web().pods([cluster.pod(REMOVED)]);
    let mut deployment = Deployment::start(backend, |cluster| vec![first(cluster), sticky(cluster)]);
    let cluster = deployment.cluster();
    let second = web().pods([cluster.pod(ENDING)]);
    let ending = Endpoint::of(cluster.pod(ENDING)).state(EndpointState::Draining);
    let third = web().endpoints([Endpoint::of(cluster.pod("pod-a-1")), ending]);
    for node in cluster.nodes() {
        // A guest may need longer than half a minute.
        node.netns.sysctls(&[("netfilter/nf_conntrack_udp_timeout", "600")]);
    }

    let mut held = Vec::new();
    connect_to_web(&mut held, deployment.cluster(), &[Protocol::Tcp]);
    deployment.apply(&second);
    connect_to_web(&mut held, deployment.cluster(), &[Protocol::Tcp]);
    deployment.apply(&third);
    connect_to_web(&mut held, deployment.cluster(), &[Protocol::Tcp, Protocol::Udp]);
    connect_to_sticky(&mut held, deployment.cluster());
    // A backend that ends writes its state file.
    deployment.stop_backends(Signal::SIGTERM);

    for node in deployment.cluster().nodes() {
        let translated = || held.iter().filter(|held| held.translated_by == node.name);
        let arriving = || held.iter().filter(|held| held.arrives_at(node));
        let is_web = |held: &&Held| held.service_port.starts_with("default/web:");

        let by_endpoint = connections(&deployment, node, &["--by", "endpoint"]);
        assert_eq!(rows(&by_endpoint["translated"]), count(translated().map(Held::at_endpoint)), "{}", node.name);
        assert_eq!(rows(&by_endpoint["arriving"]), count(arriving().map(Held::at_endpoint)), "{}", node.name);
        let masqueraded = translated().filter(|held| held.reply.seen_source != held.client);
        assert_eq!(source_ports(&by_endpoint), count(masqueraded.map(Held::port_space)), "{}", node.name);

        let by_client = connections(&deployment, node, &["default/web", "--by", "client"]);
        assert_eq!(rows(&by_client["translated"]), count(translated().filter(is_web).map(Held::of_client)));
        assert_eq!(rows(&by_client["arriving"]), count(arriving().filter(is_web).map(Held::of_seen_client)));

        let by_service = connections(&deployment, node, &[]);
        assert_eq!(rows(&by_service["translated"]), count(translated().map(|held| held.service_port.clone())));

        let tcp = translated().filter(|held| held.service_port.ends_with("/tcp"));
        let tcp = count(tcp.map(|held| held.reply.endpoint.to_string()));
        assert_eq!(tcp_in_conntrack(&node.netns), tcp, "{}", node.name);
        if backend == Backend::Ipvs {
            assert_eq!(tcp_in_ipvs(&node.netns), tcp, "{}", node.name);
        }
    }
}

// === impl Held ===

impl Held {
    /// Whether the node has its endpoint, and another node has translated it. An endpoint that is removed belongs to no
    /// Service.
    fn arrives_at(&self, node: &Node) -> bool {
        let has_endpoint = node.pods.iter().any(|pod| pod.name == self.reply.pod);
        has_endpoint && self.translated_by != node.name && self.reply.pod != REMOVED
    }

    fn at_endpoint(&self) -> String {
        let mark = if [REMOVED, ENDING].contains(&self.reply.pod.as_str()) { " gone" } else { "" };
        format!("{} {}{mark}", self.service_port, self.reply.endpoint)
    }

    fn of_client(&self) -> String {
        format!("{} {}", self.service_port, self.client.ip())
    }

    fn of_seen_client(&self) -> String {
        format!("{} {}", self.service_port, self.reply.seen_source.ip())
    }

    fn port_space(&self) -> String {
        let protocol = self.service_port.rsplit('/').next().unwrap_or_default();
        format!("{protocol} {} {}", self.reply.seen_source.ip(), self.reply.endpoint)
    }
}

// === the Services and their clients ===

fn web() -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080).node_port(NODE_PORT)
}

fn sticky(cluster: &Cluster) -> Service {
    let service = Service::new("sticky").cluster_ip(plan::cluster_ip(2)).port_all(PORT, 8080).affinity(10_800);
    service.pods(["pod-a-2", "pod-b-3"].map(|pod| cluster.pod(pod)))
}

fn connect_to_web(held: &mut Vec<Held>, cluster: &Cluster, protocols: &[Protocol]) {
    let [a, b] = ['a', 'b'].map(|letter| cluster.node(letter));
    let clients = [
        (a, cluster.pod("pod-a-3").client(), plan::cluster_ip(1), PORT),
        (a, cluster.pod("pod-a-1").client(), plan::cluster_ip(1), PORT),
        (a, a.client(), plan::cluster_ip(1), PORT),
        (a, cluster.client(), a.address, NODE_PORT),
        (b, cluster.pod("pod-b-3").client(), plan::cluster_ip(1), PORT),
        (b, cluster.client(), b.address, NODE_PORT),
    ];
    for (node, client, address, port) in clients {
        for protocol in protocols {
            connect(held, "web", node, &client, *protocol, (address, port));
        }
    }
}

fn connect_to_sticky(held: &mut Vec<Held>, cluster: &Cluster) {
    let client = cluster.pod("pod-a-3").client();
    for _ in 0..3 {
        connect(held, "sticky", cluster.node('a'), &client, Protocol::Tcp, (plan::cluster_ip(2), PORT));
    }
}

/// Opens a connection in each family.
#[track_caller]
fn connect(
    held: &mut Vec<Held>,
    service: &str,
    node: &Node,
    client: &Client,
    protocol: Protocol,
    (address, port): (DualStack, u16),
) {
    for family in IpFamily::ALL {
        let to = SocketAddr::new(address.ip(family), port);
        let source_port = u16::try_from(SOURCE_PORT + held.len()).expect("a port");
        let source = SocketAddr::new(client.source_address_to(to), source_port);
        let client = client.clone().with_source_port(source);
        let connected = match protocol {
            Protocol::Tcp => client.connect(to).map(|(reply, connection)| (reply, Some(connection))),
            Protocol::Udp | Protocol::Sctp => client.ask(protocol, to).map(|reply| (reply, None)),
        };

        let (reply, connection) = connected.unwrap_or_else(|error| panic!("{source} to {protocol} {to}: {error}"));
        let protocol = protocol.kubernetes().to_lowercase();
        held.push(Held {
            service_port: format!("default/{service}:{protocol}-{PORT}/{protocol}"),
            translated_by: node.name.clone(),
            client: source,
            reply,
            _connection: connection,
        });
    }
}

// === the command and the kernel's lists ===

/// The document of `fairlead connections` on a node.
#[track_caller]
fn connections(deployment: &Deployment, node: &Node, arguments: &[&str]) -> Value {
    let mut command = fairlead();
    command.arg("connections").args(arguments).args(["--output", "json", "--backend-address", "none"]);
    command.args(["--node-name", &node.name, "--state-dir"]).arg(deployment.state(node));
    let output = node.netns.finish(&mut command);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("a document")
}

/// The open connections of each row that has any, by service port, endpoint and client.
fn rows(section: &Value) -> Counts {
    let mut counts = Counts::new();
    for row in section["rows"].as_array().expect("rows") {
        let mut key = row["service_port"].as_str().expect("a service port").to_owned();
        for address in ["endpoint", "client"].iter().filter_map(|name| row[name].as_str()) {
            key += &format!(" {address}");
        }
        if row["in_use"] == false {
            key += " gone";
        }
        let open = row["open"].as_u64().expect("a number");
        if open > 0 {
            counts.insert(key, open);
        }
    }
    counts
}

fn source_ports(report: &Value) -> Counts {
    let ports = report["source_ports"].as_array().expect("the use of source ports").iter();
    let text = |ports: &Value, name: &str| ports[name].as_str().expect("a text").to_owned();
    let key = |ports: &Value| ["protocol", "source", "destination"].map(|name| text(ports, name)).join(" ");
    ports.map(|ports| (key(ports), ports["used"].as_u64().expect("a number"))).collect()
}

/// Established connections by the endpoint that replies, of those that are translated.
fn tcp_in_conntrack(netns: &Netns) -> Counts {
    let mut endpoints = Vec::new();
    for family in IpFamily::ALL {
        for line in conntrack(netns, family, &["-p", "tcp", "--state", "ESTABLISHED"]) {
            let [_, port] = values::<u16>(&line, "sport=");
            let [_, endpoint] = values::<IpAddr>(&line, "src=");
            let [destination, _] = values::<IpAddr>(&line, "dst=");
            if destination != endpoint {
                endpoints.push(SocketAddr::new(endpoint, port));
            }
        }
    }
    count(endpoints.iter().map(SocketAddr::to_string))
}

/// Those of the client's packets and of the replies.
fn values<T: FromStr>(line: &str, name: &str) -> [T; 2] {
    let mut values = line.split_whitespace().filter_map(|word| word.strip_prefix(name)?.parse().ok());
    let mut next = || values.next().unwrap_or_else(|| panic!("two values of {name} in {line}"));
    [next(), next()]
}

/// Established connections of virtual servers by destination.
fn tcp_in_ipvs(netns: &Netns) -> Counts {
    let table = netns.run(|| fs::read_to_string("/proc/thread-self/net/ip_vs_conn")).expect("the table of IPVS");
    let mut endpoints = Vec::new();
    for line in table.lines() {
        let columns: Vec<_> = line.split_whitespace().collect();
        if let ["TCP", _, _, _, _, address, port, "ESTABLISHED", ..] = columns[..] {
            let port = u16::from_str_radix(port, 16).expect("a port");
            endpoints.push(SocketAddr::new(ipvs_address(address), port));
        }
    }
    count(endpoints.iter().map(SocketAddr::to_string))
}

/// IPv4 is a hexadecimal number.
fn ipvs_address(text: &str) -> IpAddr {
    match u32::from_str_radix(text, 16) {
        Ok(number) => Ipv4Addr::from(number).into(),
        Err(_) => text.parse().expect("an IPv6 address"),
    }
}

fn count(keys: impl Iterator<Item = String>) -> Counts {
    let mut counts = Counts::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

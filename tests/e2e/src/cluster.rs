//! A cluster of network namespaces: nodes, pods with servers, and a client outside.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

use crate::{
    client::Client,
    manifests::Manifests,
    netns::{Netns, Owner, remove_dead_namespaces},
    plan::{self, DualStack},
    server::Server,
    wait::eventually,
    wire::Failure,
};

mod topology;

/// A running cluster. Dropping it stops its servers and removes its namespaces.
#[derive(Debug)]
pub struct Cluster {
    outside: Netns,
    nodes: Vec<Node>,
    // Dropped last: namespaces are removed after everything in them has stopped.
    owner: Owner,
}

/// The size of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    nodes: u8,
    pods_per_node: u8,
    ports: Vec<u16>,
}

/// A node: a router between its pods and the fabric, whose kernel a backend programs.
#[derive(Debug)]
pub struct Node {
    /// `node-a`, `node-b`, ...
    pub name: String,
    /// The value of its label `topology.kubernetes.io/zone`: `a`, `b`, ...
    pub zone: String,
    /// Its namespace.
    pub netns: Netns,
    /// Its address on the fabric.
    pub address: DualStack,
    /// Its pod CIDRs, IPv4 first.
    pub pod_cidrs: [String; 2],
    /// Its pods.
    pub pods: Vec<Pod>,
}

/// A pod: a namespace with one interface, and a server in it.
#[derive(Debug)]
pub struct Pod {
    /// `pod-a-1`, `pod-a-2`, ... (the node's letter).
    pub name: String,
    /// The name of its node.
    pub node: String,
    /// Its node's zone.
    pub zone: String,
    /// Its namespace.
    pub netns: Netns,
    /// Its addresses.
    pub address: DualStack,
    server: Mutex<Option<Server>>,
}

/// A port without a server, where the kernel of a pod rejects packets.
const DISCARD: u16 = 9;
/// Timeout of one probe of a link, and of all.
const LINK_PROBE: Duration = Duration::from_millis(20);
const LINK_DEADLINE: Duration = Duration::from_secs(60);

// === impl ClusterBuilder ===

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self { nodes: 2, pods_per_node: 3, ports: vec![8080] }
    }
}

impl ClusterBuilder {
    /// The number of nodes. Each is in a zone of its own.
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// The number of pods on each node.
    pub fn pods_per_node(mut self, pods: u8) -> Self {
        self.pods_per_node = pods;
        self
    }

    /// The ports that each pod serves from the start (TCP, UDP, SCTP). The default is 8080.
    pub fn ports(mut self, ports: &[u16]) -> Self {
        self.ports = ports.to_vec();
        self
    }

    /// Creates the namespaces, links and routes, and starts the pods' servers.
    pub fn start(self) -> Cluster {
        static CLEANUP: Once = Once::new();
        CLEANUP.call_once(remove_dead_namespaces);

        let letters = (b'a'..).take(self.nodes.into()).map(char::from).collect::<Vec<_>>();
        let mut names = vec!["outside".to_owned()];
        for letter in &letters {
            names.push(format!("node-{letter}"));
            names.extend((1..=self.pods_per_node).map(|pod| format!("pod-{letter}-{pod}")));
        }
        let (owner, namespaces) = Owner::create(&names);

        let mut named = names.into_iter().zip(namespaces);
        let mut next = || named.next().expect("one namespace for each name");
        let (_, outside) = next();
        let nodes = (1..).zip(&letters).map(|(number, letter)| {
            let (name, netns) = next();
            let pods = (1..=self.pods_per_node).map(|pod| {
                let (pod_name, netns) = next();
                Pod {
                    name: pod_name,
                    node: name.clone(),
                    zone: letter.to_string(),
                    netns,
                    address: plan::pod(number, pod),
                    server: Mutex::new(None),
                }
            });
            let pods = pods.collect();
            Node {
                name,
                zone: letter.to_string(),
                netns,
                address: plan::node(number),
                pod_cidrs: plan::pod_cidrs(number),
                pods,
            }
        });
        let cluster = Cluster { outside, nodes: nodes.collect(), owner };
        topology::configure(&cluster);
        cluster.wait_for_links();
        if !self.ports.is_empty() {
            cluster.pods().for_each(|pod| pod.serve(&self.ports));
        }
        cluster
    }
}

// === impl Cluster ===

impl Cluster {
    /// Two nodes with three pods each, which serve port 8080.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A cluster of another size.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// The namespace outside the cluster.
    pub fn outside(&self) -> &Netns {
        &self.outside
    }

    /// A client outside the cluster.
    pub fn client(&self) -> Client {
        Client::new(&self.outside)
    }

    /// The nodes, `node-a` first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this letter: `'a'`, `'b'`, ...
    #[track_caller]
    pub fn node(&self, letter: char) -> &Node {
        let name = format!("node-{letter}");
        self.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The pods of all nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// The pod with this name: `pod-a-1`, ...
    #[track_caller]
    pub fn pod(&self, name: &str) -> &Pod {
        self.pods().find(|pod| pod.name == name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// Routes packets from outside to the VIP ranges through `node`; initially this is `node-a`.
    pub fn route_vips_through(&self, node: &Node) {
        self.outside.ip(&topology::vip_routes(node));
    }

    /// Writes the manifests of the nodes to `directory`.
    pub fn manifests(&self, directory: &Path) -> Manifests {
        Manifests::create(directory, self.nodes())
    }

    /// The prefix of the names of all its namespaces.
    pub fn prefix(&self) -> &str {
        self.owner.prefix()
    }
}

// === impl Cluster: waiting ===

impl Cluster {
    /// Sends requests to each pod, at a port without a server, until its kernel rejects one. The kernel activates a
    /// link some time after it was set up, and drops packets until then.
    fn wait_for_links(&self) {
        let client = self.client().with_deadline(LINK_PROBE);
        for address in self.pods().flat_map(|pod| pod.address.both()) {
            eventually("a pod's link is up", LINK_DEADLINE, || {
                (client.udp(SocketAddr::new(address, DISCARD)) == Err(Failure::Refused)).then_some(())
            });
        }
    }
}

// === impl Node ===

impl Node {
    /// A client on the node itself: its packets traverse the output hook instead of prerouting.
    pub fn client(&self) -> Client {
        Client::new(&self.netns)
    }

    /// The node's pod with this number, from 1.
    pub fn pod(&self, number: usize) -> &Pod {
        &self.pods[number - 1]
    }
}

// === impl Pod ===

impl Pod {
    /// A client in the pod.
    pub fn client(&self) -> Client {
        Client::new(&self.netns)
    }

    /// Serves these ports from now on, instead of those it served before.
    pub fn serve(&self, ports: &[u16]) {
        self.stop();
        *self.server() = Some(Server::start(&self.netns, &self.name, &self.address.both(), ports));
    }

    /// Closes the pod's ports and its connections.
    pub fn stop(&self) {
        // Dropping joins the server's thread, which must not happen under the lock.
        let server = self.server().take();
        drop(server);
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

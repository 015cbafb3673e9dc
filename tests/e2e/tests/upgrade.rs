//! An upgrade of frontend and backends under traffic, in any order: no connection is lost, a frontend and backends of
//! different versions understand each other, and the new version reads the state file of the previous one and writes
//! only what its version does differently: rules that belong to no Service, or nftables tables of another layout. The
//! previous version is the binary in `FAIRLEAD_PREVIOUS` (`make test-skew` builds it), by default this build.

use std::{env, net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use e2e::{
    Backend, BackgroundTraffic, Client, Cluster, Netns, Process, Protocol, fairlead, manifests::Service, plan, uml,
};
use netlink::{nft::TableFamily, testing::rename_table};

const DEADLINE: Duration = Duration::from_secs(30);
const ATTEMPTS: u64 = 20;
const NODE_PORT: u16 = 30_080;
const PODS: [&str; 2] = ["pod-a-1", "pod-b-1"];

/// The most writes of a version whose base ruleset differs. One service port of the test is more than 30 objects, so
/// that none of them is written again.
const MAX_BASE_WRITES: u64 = 30;

/// A command of the previous version.
fn previous() -> Command {
    env::var_os("FAIRLEAD_PREVIOUS").map_or_else(fairlead, Command::new)
}

/// What is upgraded first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Both,
    Frontend,
    Backends,
    /// And the tables of the old ones have another layout.
    BackendsOfLayout(&'static str),
}

struct Upgrade {
    backend: Backend,
    cluster: Cluster,
    directory: tempfile::TempDir,
}

impl Upgrade {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn frontend(&self, mut command: Command, log: &str) -> Process {
        command.args(["frontend", "--metrics", "none", "--manifests"]).arg(self.path("manifests"));
        command.arg("--listen").arg(format!("unix:{}", self.path("socket").display()));
        let process = Process::spawn(self.cluster.outside(), command, &self.path(log));
        process.wait_for_line("listening", 0, DEADLINE);
        process
    }

    /// Starts the backends of all nodes, and waits until each has programmed its kernel.
    fn backends(&self, command: fn() -> Command, log: &str) -> Vec<Process> {
        let spawn = |node: &e2e::Node| {
            let mut command = command();
            // The alias `nft`, since previous versions may not have the name `nftables`.
            let mode = if self.backend == Backend::Nft { "nft" } else { self.backend.name() };
            command.args(["backend", mode, "--node-name", &node.name, "--cluster-cidr"]);
            command.arg(plan::CLUSTER_CIDRS.join(",")).args(["--conntrack-max-per-core", "0"]);
            command.arg("--frontend").arg(format!("unix:{}", self.path("socket").display()));
            command.arg("--state-dir").arg(self.path(&node.name)).args(self.backend.arguments());
            Process::spawn(&node.netns, command, &self.path(&format!("{}-{log}", node.name)))
        };
        let backends: Vec<_> = self.cluster.nodes().iter().map(spawn).collect();
        for backend in &backends {
            backend.wait_for_line("reconciled", 0, DEADLINE);
        }
        backends
    }
}

/// The number of writes of the first reconcile.
fn writes(backend: &Process) -> u64 {
    let line = backend.wait_for_line("reconciled", 0, DEADLINE);
    let writes = line.split_once("writes=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    writes.unwrap_or_else(|| panic!("no number of writes: {line}"))
}

fn upgrade(backend: Backend, first: First) {
    let cluster = Cluster::builder().nodes(2).pods_per_node(2).start();
    let upgrade = Upgrade { backend, cluster, directory: tempfile::tempdir().expect("a directory") };
    let cluster = &upgrade.cluster;
    let web = Service::new("web").cluster_ip(plan::cluster_ip(1)).external_ip(plan::external_ip(1));
    let web = web.port_all(80, 8080).node_port(NODE_PORT).affinity(60);
    let manifests = cluster.manifests(&upgrade.path("manifests"));
    manifests.apply(&web.pods(PODS.map(|pod| cluster.pod(pod))));
    let pods = PODS.map(|pod| cluster.pod(pod));
    // A guest has a share of one CPU.
    let rate = if uml::is_guest() { 20 } else { 100 };
    // A new Service reaches the backends on both nodes.
    let change = |number: u8| {
        let service = Service::new(&format!("more-{number}")).cluster_ip(plan::cluster_ip(number)).port_all(80, 8080);
        manifests.apply(&service.pods(pods));
        let vip = SocketAddr::new(plan::cluster_ip(number).v4.into(), 80);
        for client in ["pod-a-2", "pod-b-2"] {
            let added = cluster.pod(client).client().churn(Protocol::Tcp, vip, rate / 2, DEADLINE);
            assert!(added.wait_until(DEADLINE, |report| PODS.iter().any(|pod| report.pods.contains_key(*pod))));
        }
    };
    let old_frontend = upgrade.frontend(previous(), "old-frontend.log");
    let old_backends = upgrade.backends(previous, "old.log");

    let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
    let client = cluster.pod("pod-a-2").client();
    let stream = |protocol| client.stream(protocol, vip, Duration::from_millis(5)).expect("a connection");
    let streams = [Protocol::Tcp, Protocol::Udp].map(stream).into();
    let external = SocketAddr::new(plan::external_ip(1).v4.into(), 80);
    let node_port = SocketAddr::new(cluster.node('b').address.v4.into(), NODE_PORT);
    // Clients at several VIPs, because IPVS takes two connections of one client to one endpoint for one if their source
    // ports are equal, which the client's kernel avoids for one VIP only.
    let churns = [(client, vip), (cluster.pod("pod-b-2").client(), external), (cluster.client(), node_port)];
    let churn = |(client, vip): (Client, _)| client.churn(Protocol::Tcp, vip, rate, DEADLINE * 3);
    let traffic = BackgroundTraffic { streams, churns: churns.map(churn).into() };
    traffic.wait(ATTEMPTS, DEADLINE);

    let stop = |processes: &[Process]| processes.iter().for_each(|process| assert!(process.terminate().success()));
    let old_frontend = std::slice::from_ref(&old_frontend);
    let start_frontend = || upgrade.frontend(fairlead(), "new-frontend.log");
    let start_backends = || upgrade.backends(fairlead, "new.log");
    let (frontend, new_backends) = match first {
        First::Both => {
            stop(&old_backends);
            stop(old_frontend);
            (start_frontend(), start_backends())
        }
        First::Frontend => {
            stop(old_frontend);
            let frontend = start_frontend();
            change(3);
            traffic.wait(ATTEMPTS, DEADLINE);
            stop(&old_backends);
            (frontend, start_backends())
        }
        First::Backends | First::BackendsOfLayout(_) => {
            stop(&old_backends);
            if let First::BackendsOfLayout(name) = first {
                cluster.nodes().iter().for_each(|node| rename_tables(&node.netns, name));
            }
            let backends = start_backends();
            change(3);
            traffic.wait(ATTEMPTS, DEADLINE);
            stop(old_frontend);
            (start_frontend(), backends)
        }
    };
    for backend in &new_backends {
        let lines = backend.lines_since(0).join("\n");
        let most = match (env::var_os("FAIRLEAD_PREVIOUS"), upgrade.backend) {
            _ if matches!(first, First::BackendsOfLayout(_)) => u64::MAX,
            (None, _) => 0,
            // The tables of another layout are replaced.
            (Some(_), Backend::Nft) => u64::MAX,
            (Some(_), _) => MAX_BASE_WRITES,
        };
        assert!(writes(backend) <= most, "written at the upgrade:\n{lines}");
        assert!(!lines.contains("ignored the state file"), "the state file was not read:\n{lines}");
    }
    change(2);
    // The kernel is as this version writes it.
    stop(&new_backends);
    let backends = upgrade.backends(fairlead, "restarted.log");
    backends.iter().for_each(|backend| assert_eq!(writes(backend), 0, "{}", backend.lines_since(0).join("\n")));
    // Both versions compute the same digests, and know all operations that they are sent.
    for process in old_backends.iter().chain(old_frontend).chain(&new_backends).chain(&backends).chain([&frontend]) {
        let lines = process.lines_since(0).join("\n");
        for complaint in ["digest", "invalid message", "rejected", "protocol error"] {
            assert!(!lines.contains(complaint), "{complaint}:\n{lines}");
        }
    }

    traffic.wait(ATTEMPTS, DEADLINE);
    traffic.finish();
    if backend == Backend::Nft {
        let tables = |node: &e2e::Node| node.netns.output("nft", &["list", "tables"]);
        let tables: Vec<_> = cluster.nodes().iter().map(tables).collect();
        assert!(tables.iter().all(|tables| tables.matches(" fairlead").count() == 2), "{tables:?}");
    }
    backends.iter().chain([&frontend]).for_each(|process| assert!(process.terminate().success()));
}

/// Makes the tables of a node those of another layout.
fn rename_tables(netns: &Netns, name: &str) {
    let rename = |family| rename_table(family, "fairlead1", name).expect("a renamed table");
    netns.run(|| [TableFamily::Ip, TableFamily::Ip6].into_iter().for_each(rename));
}

#[test]
fn nftables() {
    upgrade(Backend::Nft, First::Both);
}

#[test]
fn iptables_nft() {
    upgrade(Backend::IptablesNft, First::Both);
}

#[test]
fn iptables_legacy() {
    upgrade(Backend::IptablesLegacy, First::Both);
}

/// In user-mode-linux, whose kernel has IPVS.
pub(crate) fn ipvs() {
    uml::load(&[]);
    upgrade(Backend::Ipvs, First::Both);
}

#[test]
fn new_frontend_serves_previous_backends() {
    upgrade(Backend::Nft, First::Frontend);
}

/// Before layouts had numbers; interrupted while it replaced another one; and a version that is taken back.
#[test]
fn tables_of_another_layout_serve_until_they_are_replaced() {
    for name in ["fairlead", "fairlead-standby", "fairlead2"] {
        upgrade(Backend::Nft, First::BackendsOfLayout(name));
    }
}

#[test]
fn previous_frontend_serves_new_backends() {
    upgrade(Backend::Nft, First::Backends);
}

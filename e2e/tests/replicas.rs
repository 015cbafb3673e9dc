//! Two frontends of one cluster: when one dies its agent goes to the other, and the kernel notices nothing.
#![allow(clippy::expect_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fairlead_e2e::manifests::{Manifests, Service};
use fairlead_e2e::{Cluster, Process, fairlead, plan};
use netlink::nft::NftHandle;

const PATIENCE: Duration = Duration::from_secs(20);
/// So many service ports, more than an agent believes to be gone at once.
const OTHERS: u8 = 20;

struct World {
    cluster: Cluster,
    directory: tempfile::TempDir,
}

// === impl World ===

impl World {
    fn new() -> Self {
        let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
        Self { cluster, directory: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn web(&self, pod: &str) -> Service {
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        service.pods([self.cluster.pod(pod)])
    }

    /// Manifests of a cluster in which a pod serves.
    fn manifests(&self, name: &str, pod: &str) -> Manifests {
        let manifests = self.cluster.manifests(&self.path(name));
        for number in 0..OTHERS {
            let service = Service::new(&format!("other-{number}")).cluster_ip(plan::cluster_ip(10 + number));
            manifests.apply(&service.port_all(80, 8080).pods([self.cluster.pod(pod)]));
        }
        manifests.apply(&self.web(pod));
        manifests
    }

    fn address(&self, name: &str) -> String {
        format!("unix:{}", self.path(&format!("{name}.sock")).display())
    }

    /// Starts a frontend on manifests; its socket has its name.
    fn frontend(&self, name: &str, manifests: &str) -> Process {
        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--listen", &self.address(name), "--manifests"]);
        command.arg(self.path(manifests));
        let process = Process::spawn(self.cluster.outside(), command, &self.path(&format!("{name}.log")));
        process.wait_for_line("every kind of object has been listed", 0, PATIENCE);
        process.wait_for_line("listening", 0, PATIENCE);
        process
    }

    fn backend(&self, arguments: &[&str]) -> Process {
        let mut command = fairlead();
        command.args(["backend", "nftables", "--node-name", "node-a", "--cluster-cidr", "10.244.0.0/16"]);
        command.args(["--conntrack-max-per-core", "0"]).args(arguments);
        command.arg("--state-dir").arg(self.path("state"));
        let process = Process::spawn(&self.cluster.node('a').netns, command, &self.path("backend.log"));
        process.wait_for_line("ready: node state programmed", 0, PATIENCE);
        process
    }

    /// Which transaction the node's kernel is at.
    fn generation(&self) -> u32 {
        self.cluster.node('a').netns.run(|| NftHandle::open()?.generation()).expect("a generation")
    }

    /// Which pod answers.
    fn answers(&self) -> String {
        let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
        self.cluster.node('a').client().tcp(vip).expect("an answer").pod
    }
}

#[test]
fn when_a_frontend_dies_its_agent_goes_to_the_other_and_the_kernel_stays_as_it_is() {
    let world = World::new();
    let manifests = world.manifests("manifests", "pod-a-1");
    let mut frontends = [world.frontend("one", "manifests"), world.frontend("two", "manifests")].map(Some);
    let (one, two) = (world.address("one"), world.address("two"));
    let backend = world.backend(&["--frontend", &one, "--frontend", &two]);
    assert_eq!(world.answers(), "pod-a-1");

    let line = backend.wait_for_line("connected to a frontend", 0, PATIENCE);
    let (chosen, other) = if line.contains(&one) { (0, &two) } else { (1, &one) };
    let (mark, before) = (backend.mark(), world.generation());
    frontends[chosen].take().expect("it runs").kill();
    let line = backend.wait_for_line("connected to a frontend", mark, PATIENCE);
    assert!(line.contains(other), "{line}");
    backend.wait_for_line("Repair", mark, PATIENCE);

    // Another endpoint is the first change since.
    manifests.apply(&world.web("pod-a-2"));
    let applied = backend.wait_for_line("applied", mark, PATIENCE);
    assert!(applied.contains("service_ports=3"), "the three protocols of one Service: {applied}");
    assert_eq!(world.generation(), before + 1);
    assert_eq!(world.answers(), "pod-a-2");
}

/// Its objects are there, but it was given another directory: that of an empty cluster.
#[test]
fn a_frontend_that_has_lost_everything_is_not_believed_at_once() {
    let world = World::new();
    world.manifests("manifests", "pod-a-1");
    world.cluster.manifests(&world.path("empty"));
    let frontend = world.frontend("one", "manifests");
    let backend = world.backend(&["--frontend", &world.address("one")]);
    let (mark, before) = (backend.mark(), world.generation());
    frontend.kill();
    let _empty = world.frontend("one", "empty");
    let line = backend.wait_for_line("rejected a commit", mark, PATIENCE);
    assert!(line.contains("--max-loss"), "{line}");
    assert_eq!((world.generation(), world.answers().as_str()), (before, "pod-a-1"));
}

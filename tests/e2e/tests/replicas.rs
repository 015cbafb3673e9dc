//! Two frontends of one cluster: when one dies, its backend connects to the other and writes nothing to the kernel.

use std::{net::SocketAddr, path::PathBuf, thread::sleep, time::Duration};

use e2e::{
    Cluster, Process, Protocol, eventually, fairlead,
    manifests::{Manifests, Service},
    plan,
};
use netlink::nft::NftHandle;
use nix::sys::signal::Signal;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The number of other Services: their loss exceeds --max-loss.
const OTHERS: u8 = 20;
/// Changes while a frontend is replaced, and the time between two of them.
const CHANGES: u8 = 200;
const CHANGE_INTERVAL: Duration = Duration::from_millis(20);

struct Fixture {
    cluster: Cluster,
    directory: tempfile::TempDir,
}

// === impl Fixture ===

impl Fixture {
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

    /// Writes the manifests of a cluster whose Services have one endpoint.
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

    /// Starts a frontend with these manifests.
    fn frontend(&self, name: &str, manifests: &str) -> Process {
        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--listen", &self.address(name), "--manifests"]);
        command.arg(self.path(manifests));
        let process = Process::spawn(self.cluster.outside(), command, &self.path(&format!("{name}.log")));
        process.wait_for_line("every kind of object has been listed", 0, TIMEOUT);
        process.wait_for_line("listening", 0, TIMEOUT);
        process
    }

    fn backend(&self, arguments: &[&str]) -> Process {
        let mut command = fairlead();
        command.args(["backend", "nftables", "--node-name", "node-a", "--cluster-cidr", "10.244.0.0/16"]);
        command.args(["--conntrack-max-per-core", "0"]).args(arguments);
        command.arg("--state-dir").arg(self.path("state"));
        let process = Process::spawn(&self.cluster.node('a').netns, command, &self.path("backend.log"));
        process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
        process
    }

    /// The generation of the node's ruleset, which each transaction increments.
    fn generation(&self) -> u32 {
        self.cluster.node('a').netns.run(|| NftHandle::open()?.generation()).expect("a generation")
    }

    /// The pod that answers at the cluster IP.
    fn answers(&self) -> String {
        let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
        self.cluster.node('a').client().tcp(vip).expect("an answer").pod
    }
}

#[test]
fn backend_fails_over_without_writing_to_the_kernel() {
    let fixture = Fixture::new();
    let manifests = fixture.manifests("manifests", "pod-a-1");
    let mut frontends = [fixture.frontend("one", "manifests"), fixture.frontend("two", "manifests")].map(Some);
    let (one, two) = (fixture.address("one"), fixture.address("two"));
    let backend = fixture.backend(&["--frontend", &one, "--frontend", &two]);
    assert_eq!(fixture.answers(), "pod-a-1");

    let line = backend.wait_for_line("connected to a frontend", 0, TIMEOUT);
    let (chosen, other) = if line.contains(&one) { (0, &two) } else { (1, &one) };
    let (mark, before) = (backend.mark(), fixture.generation());
    frontends[chosen].take().expect("it runs").kill();
    let line = backend.wait_for_line("connected to a frontend", mark, TIMEOUT);
    assert!(line.contains(other), "{line}");
    backend.wait_for_line("Repair", mark, TIMEOUT);

    // The first write to the kernel is that of the next change.
    manifests.apply(&fixture.web("pod-a-2"));
    let applied = backend.wait_for_line("applied", mark, TIMEOUT);
    assert!(applied.contains("service_ports=3"), "the three protocols of one Service: {applied}");
    assert_eq!(fixture.generation(), before + 1);
    assert_eq!(fixture.answers(), "pod-a-2");
}

/// As a Deployment does: the new frontend is ready before the old one stops. Changes reach the node throughout: those
/// of a second are too many for one commit.
#[test]
fn changes_continue_while_the_only_frontend_is_replaced() {
    let fixture = Fixture::new();
    let manifests = fixture.manifests("manifests", "pod-a-1");
    let old = fixture.frontend("one", "manifests");
    let (one, two) = (fixture.address("one"), fixture.address("two"));
    let backend = fixture.backend(&["--frontend", &one, "--frontend", &two]);
    let _new = fixture.frontend("two", "manifests");
    let mark = backend.mark();
    for change in 0..CHANGES {
        if change == CHANGES / 4 {
            old.signal(Signal::SIGTERM);
        }
        let service = Service::new(&format!("change-{change}")).cluster_ip(plan::cluster_ip(40 + change));
        manifests.apply(&service.port(Protocol::Tcp, 80, 8080).pods([fixture.cluster.pod("pod-a-1")]));
        sleep(CHANGE_INTERVAL);
    }
    // The numbers of service ports in each commit.
    let commits = || {
        let lines = backend.lines_since(mark).into_iter().filter(|line| line.contains("applied"));
        lines.filter_map(|line| service_ports(&line)).collect::<Vec<_>>()
    };
    let all = || commits().iter().sum::<usize>() >= usize::from(CHANGES);
    eventually("all changes are programmed", TIMEOUT, || all().then_some(()));
    let (commits, per_second) = (commits(), Duration::from_secs(1).as_millis() / CHANGE_INTERVAL.as_millis());
    let most = commits.iter().max().copied().unwrap_or_default();
    assert!(most as u128 <= per_second, "{most} of {CHANGES} changes in one commit: {commits:?}");
    let line = backend.wait_for_line("connected to a frontend", mark, TIMEOUT);
    assert!(line.contains(&two), "{line}");
    println!("at most {most} changes in one commit, {per_second} a second");
}

/// The field of a log line.
fn service_ports(line: &str) -> Option<usize> {
    line.split_once("service_ports=")?.1.split(' ').next()?.parse().ok()
}

/// The frontend restarts with the manifests of an empty cluster.
#[test]
fn large_loss_is_not_applied_at_once() {
    let fixture = Fixture::new();
    fixture.manifests("manifests", "pod-a-1");
    fixture.cluster.manifests(&fixture.path("empty"));
    let frontend = fixture.frontend("one", "manifests");
    let backend = fixture.backend(&["--frontend", &fixture.address("one")]);
    let (mark, before) = (backend.mark(), fixture.generation());
    frontend.kill();
    let _empty = fixture.frontend("one", "empty");
    let line = backend.wait_for_line("withholding a loss", mark, TIMEOUT);
    assert!(line.contains("--max-loss"), "{line}");
    assert_eq!((fixture.generation(), fixture.answers().as_str()), (before, "pod-a-1"));
}

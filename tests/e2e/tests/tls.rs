//! Frontend and backend over TLS: nodes and administrators are authorized by their certificates.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use e2e::{Authority, Cluster, Process, fairlead, manifests::Service, plan};

const TIMEOUT: Duration = Duration::from_secs(20);
const PORT: u16 = 7600;
/// The name in the frontend's certificate; it is never resolved.
const NAME: &str = "fairlead.example";

/// A cluster with a Service of one endpoint, and certificates in a directory.
struct Fixture {
    directory: tempfile::TempDir,
    authority: Authority,
    cluster: Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandResult {
    Success,
    Failure,
}

impl Fixture {
    fn new() -> Self {
        let cluster = Cluster::builder().nodes(2).pods_per_node(1).start();
        let directory = tempfile::tempdir().expect("a directory");
        let fixture = Self { directory, authority: Authority::new("authority", &[]), cluster };
        let manifests = fixture.cluster.manifests(&fixture.path("manifests"));
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        manifests.apply(&service.pods([fixture.cluster.pod("pod-b-1")]));
        fs::write(fixture.path("ca.crt"), fixture.authority.pem()).expect("a file");
        fixture.sign("frontend", "frontend", "", &[NAME]);
        for node in ["node-a", "node-b"] {
            fixture.sign(node, &format!("system:node:{node}"), "system:nodes", &[]);
        }
        fixture.sign("ops", "ops", "people", &[]);
        fixture
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Writes `<file>.crt` and `<file>.key`.
    fn sign(&self, file: &str, name: &str, organization: &str, hosts: &[&str]) {
        let (certificate, key) = self.authority.sign(name, organization, hosts);
        fs::write(self.path(&format!("{file}.crt")), certificate).expect("a file");
        fs::write(self.path(&format!("{file}.key")), key).expect("a file");
    }

    fn frontend(&self) -> Command {
        let mut command = fairlead();
        command.args(["frontend", "--admin-identity", "ops", "--listen", &format!("0.0.0.0:{PORT}")]);
        command.arg("--manifests").arg(self.path("manifests")).arg("--tls-client-ca").arg(self.path("ca.crt"));
        with_certificate(&mut command, self.directory.path(), "frontend");
        command
    }

    /// A command that connects to the frontend with this certificate.
    fn client(&self, arguments: &[&str], certificate: &str) -> Command {
        let mut command = fairlead();
        let address = format!("https://{}", SocketAddr::new(plan::OUTSIDE.v4.into(), PORT));
        command.args(arguments).args(["--frontend", &address, "--frontend-name", NAME]);
        command.arg("--tls-ca").arg(self.path("ca.crt"));
        with_certificate(&mut command, self.directory.path(), certificate);
        command
    }

    fn backend(&self, node: &str, certificate: &str) -> Command {
        let arguments = ["backend", "nftables", "--node-name", node, "--conntrack-max-per-core", "0"];
        let mut command = self.client(&[&arguments[..], &["--cluster-cidr", "10.244.0.0/16"]].concat(), certificate);
        command.arg("--state-dir").arg(self.path(&format!("state-{node}-{certificate}")));
        command
    }

    #[track_caller]
    fn spawn(&self, netns: &e2e::Netns, name: &str, command: Command) -> Process {
        Process::spawn(netns, command, &self.path(&format!("{name}.log")))
    }

    /// Runs a command on node-a, and returns its result and the line that contains `wanted`.
    #[track_caller]
    fn run_to_end(&self, name: &str, command: Command, wanted: &str) -> (CommandResult, String) {
        let process = self.spawn(&self.cluster.node('a').netns, name, command);
        let line = process.wait_for_line(wanted, 0, TIMEOUT);
        let status = process.wait(TIMEOUT).expect("an end");
        (if status.success() { CommandResult::Success } else { CommandResult::Failure }, line)
    }
}

fn with_certificate(command: &mut Command, directory: &Path, certificate: &str) {
    command.arg("--tls-cert").arg(directory.join(format!("{certificate}.crt")));
    command.arg("--tls-key").arg(directory.join(format!("{certificate}.key")));
}

#[test]
fn certificates_grant_access_to_their_own_node() {
    let fixture = Fixture::new();
    let frontend = fixture.spawn(fixture.cluster.outside(), "frontend", fixture.frontend());
    frontend.wait_for_line("listening", 0, TIMEOUT);
    let node = fixture.cluster.node('a');

    let backend = fixture.spawn(&node.netns, "backend", fixture.backend("node-a", "node-a"));
    backend.wait_for_line("ready: node state programmed", 0, TIMEOUT);
    let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
    assert_eq!(node.client().tcp(vip).expect("an answer").pod, "pod-b-1");

    let watch = fixture.spawn(&node.netns, "watch", fixture.client(&["watch", "--node", "node-a"], "node-a"));
    watch.wait_for_line("commit", 0, TIMEOUT);
    for name in ["services", "watch"] {
        let command = fixture.client(&[name, "--node", "node-b"], "node-a");
        let (outcome, line) = fixture.run_to_end(name, command, "the frontend rejected the stream");
        assert_eq!(outcome, CommandResult::Failure);
        for part in ["node node-a may not", "node node-b", "--node-name"] {
            assert!(line.contains(part), "no {part} in {line}");
        }
    }
    let command = fixture.client(&["services", "--node", "node-b"], "ops");
    assert_eq!(fixture.run_to_end("ops", command, "default/web").0, CommandResult::Success);

    // A backend with another node's name logs what to do, and programs nothing.
    let impostor = fixture.spawn(&fixture.cluster.node('b').netns, "impostor", fixture.backend("node-a", "node-b"));
    let line = impostor.wait_for_line("the frontend rejected the stream", 0, TIMEOUT);
    assert!(line.contains("node node-b may not follow node node-a"), "{line}");
    assert!(line.contains("--node-name"), "{line}");
}

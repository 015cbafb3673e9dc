//! The program over TLS, from one namespace to another: nodes and people with certificates, each given what is theirs.
#![allow(clippy::expect_used, reason = "a panic is how a test fails")]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fairlead_e2e::manifests::Service;
use fairlead_e2e::{Cluster, Process, fairlead, plan};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};

const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 7600;
/// The name in the frontend's certificate; it is never resolved.
const NAME: &str = "fairlead.example";

/// A frontend outside and a service that leads to one pod, with certificates in a directory.
struct World {
    directory: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
    cluster: Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Failure,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

impl World {
    fn new() -> Self {
        let cluster = Cluster::builder().nodes(2).pods_per_node(1).start();
        let directory = tempfile::tempdir().expect("a directory");
        let world = Self { directory, authority: authority(), cluster };
        let manifests = world.cluster.manifests(&world.path("manifests"));
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        manifests.apply(&service.pods([world.cluster.pod("pod-b-1")]));
        fs::write(world.path("ca.crt"), world.authority.pem()).expect("a file");
        world.sign("frontend", "frontend", "", &[NAME]);
        for node in ["node-a", "node-b"] {
            world.sign(node, &format!("system:node:{node}"), "system:nodes", &[]);
        }
        world.sign("ops", "ops", "people", &[]);
        world
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Writes `<file>.crt` and `<file>.key`.
    fn sign(&self, file: &str, name: &str, organization: &str, hosts: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        fs::write(self.path(&format!("{file}.crt")), certificate.pem()).expect("a file");
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).expect("a file");
    }

    fn frontend(&self) -> Command {
        let mut command = fairlead();
        command.args(["frontend", "--admin-identity", "ops", "--listen", &format!("0.0.0.0:{PORT}")]);
        command.arg("--manifests").arg(self.path("manifests")).arg("--tls-client-ca").arg(self.path("ca.crt"));
        with_certificate(&mut command, self.directory.path(), "frontend");
        command
    }

    /// A command that calls the frontend with a given certificate.
    fn client(&self, arguments: &[&str], whose: &str) -> Command {
        let mut command = fairlead();
        let address = format!("https://{}", SocketAddr::new(plan::OUTSIDE.v4.into(), PORT));
        command.args(arguments).args(["--frontend", &address, "--frontend-name", NAME]);
        command.arg("--tls-ca").arg(self.path("ca.crt"));
        with_certificate(&mut command, self.directory.path(), whose);
        command
    }

    fn backend(&self, node: &str, whose: &str) -> Command {
        let arguments = ["backend", "nftables", "--node-name", node, "--conntrack-max-per-core", "0"];
        let mut command = self.client(&[&arguments[..], &["--cluster-cidr", "10.244.0.0/16"]].concat(), whose);
        command.arg("--state-dir").arg(self.path(&format!("state-{node}-{whose}")));
        command
    }

    #[track_caller]
    fn spawn(&self, netns: &fairlead_e2e::Netns, name: &str, command: Command) -> Process {
        Process::spawn(netns, command, &self.path(&format!("{name}.log")))
    }

    /// Runs a command on node-a to its end, and returns the line with `wanted` that it must have printed.
    #[track_caller]
    fn finish(&self, name: &str, command: Command, wanted: &str) -> (Outcome, String) {
        let process = self.spawn(&self.cluster.node('a').netns, name, command);
        let line = process.wait_for_line(wanted, 0, PATIENCE);
        let status = process.wait(PATIENCE).expect("an end");
        (if status.success() { Outcome::Success } else { Outcome::Failure }, line)
    }
}

fn with_certificate(command: &mut Command, directory: &Path, whose: &str) {
    command.arg("--tls-cert").arg(directory.join(format!("{whose}.crt")));
    command.arg("--tls-key").arg(directory.join(format!("{whose}.key")));
}

#[test]
fn each_is_given_what_is_theirs() {
    let world = World::new();
    let frontend = world.spawn(world.cluster.outside(), "frontend", world.frontend());
    frontend.wait_for_line("listening", 0, PATIENCE);
    let node = world.cluster.node('a');

    let backend = world.spawn(&node.netns, "backend", world.backend("node-a", "node-a"));
    backend.wait_for_line("ready: node state programmed", 0, PATIENCE);
    let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
    assert_eq!(node.client().tcp(vip).expect("an answer").pod, "pod-b-1");

    let watch = world.spawn(&node.netns, "watch", world.client(&["watch", "--node", "node-a"], "node-a"));
    watch.wait_for_line("commit", 0, PATIENCE);
    for name in ["services", "watch"] {
        let command = world.client(&[name, "--node", "node-b"], "node-a");
        let (outcome, line) = world.finish(name, command, "the frontend rejected the stream");
        assert_eq!(outcome, Outcome::Failure);
        for part in ["node node-a may not", "node node-b", "--node-name"] {
            assert!(line.contains(part), "no {part} in {line}");
        }
    }
    let command = world.client(&["services", "--node", "node-b"], "ops");
    assert_eq!(world.finish("ops", command, "default/web").0, Outcome::Success);

    // A backend with another node's name logs what to do, and programs nothing.
    let impostor = world.spawn(&world.cluster.node('b').netns, "impostor", world.backend("node-a", "node-b"));
    let line = impostor.wait_for_line("the frontend rejected the stream", 0, PATIENCE);
    assert!(line.contains("node node-b may not follow node node-a"), "{line}");
    assert!(line.contains("--node-name"), "{line}");
}

#[test]
fn a_frontend_with_a_broken_key_does_not_start() {
    let world = World::new();
    let key = world.path("frontend.key");
    fs::write(&key, "nonsense").expect("a file");
    let wanted = format!("--tls-key {}", key.display());
    assert_eq!(world.finish("frontend", world.frontend(), &wanted).0, Outcome::Failure);
}

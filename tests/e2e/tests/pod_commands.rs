//! The commands that `kubectl exec` runs in a backend's pod, without flags, with the environment that the chart renders
//! (`charts/fairlead/tests/golden`). Only addresses, directories and the credential are those of the test.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use e2e::{Authority, Cluster, Process, fairlead, manifests::Service, plan};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);
const PORT: u16 = 7600;
const NODE: &str = "node-a";

/// The container of the DaemonSet in a golden file.
fn container(golden: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/fairlead/tests/golden").join(golden);
    let text = fs::read_to_string(path).expect("a golden file");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let daemon_set = documents.into_iter().find(|document| document["kind"] == "DaemonSet").expect("a DaemonSet");
    daemon_set["spec"]["template"]["spec"]["containers"][0].clone()
}

struct Fixture {
    cluster: Cluster,
    directory: tempfile::TempDir,
    container: Value,
}

impl Fixture {
    fn new(golden: &str) -> Self {
        let cluster = Cluster::builder().nodes(2).pods_per_node(2).start();
        let directory = tempfile::tempdir().expect("a directory");
        let fixture = Self { cluster, directory, container: container(golden) };
        let manifests = fixture.cluster.manifests(&fixture.path("manifests"));
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        manifests.apply(&service.pods(fixture.cluster.pods()));
        for name in ["etc/fairlead/ca", "var/lib/fairlead", "var/lib/kubelet/pki", "run/fairlead"] {
            fs::create_dir_all(fixture.path(name)).expect("a directory");
        }
        fixture.write_certificates();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write_certificates(&self) {
        let authority = Authority::new("authority", &[]);
        let write = |name: &str, text: String| fs::write(self.path(name), text).expect("a file");
        write("etc/fairlead/ca/ca.crt", authority.pem());
        let (certificate, key) = authority.sign("frontend", "", &["fairlead.kube-system.svc"]);
        write("tls.crt", certificate);
        write("tls.key", key);
        let (certificate, key) = authority.sign(&format!("system:node:{NODE}"), "system:nodes", &[]);
        write("var/lib/kubelet/pki/kubelet-client-current.pem", certificate + &key);
    }

    /// A value of the chart with the directories and the frontend of this test.
    fn value(&self, value: &str) -> String {
        let directory = self.directory.path().display();
        let mut value = value.to_owned();
        for prefix in ["/etc/fairlead/", "/var/lib/", "/run/fairlead/"] {
            value = value.replace(prefix, &format!("{directory}{prefix}"));
        }
        value.replace("192.0.2.10", &plan::OUTSIDE.v4.to_string())
    }

    fn environment(&self, command: &mut Command) {
        for variable in self.container["env"].as_array().expect("variables") {
            let name = variable["name"].as_str().expect("a name");
            match variable["value"].as_str() {
                Some(value) => command.env(name, self.value(value)),
                None => command.env(name, NODE),
            };
        }
        // Reviewing a token takes an API server. The certificate has the same identity.
        if self.container["env"].to_string().contains("FAIRLEAD_TOKEN_FILE") {
            let certificate = self.path("var/lib/kubelet/pki/kubelet-client-current.pem");
            command.env_remove("FAIRLEAD_TOKEN_FILE");
            command.env("FAIRLEAD_TLS_CERT", &certificate).env("FAIRLEAD_TLS_KEY", certificate);
        }
    }

    /// The program of the container, with its arguments.
    fn backend(&self) -> Process {
        let mut command = fairlead();
        let arguments = self.container["args"].as_array().expect("arguments").iter();
        let arguments = arguments.map(|argument| self.value(argument.as_str().expect("text")));
        command.args(arguments.filter(|argument| !argument.starts_with("--token-file")));
        if self.container["args"][0] == "local" {
            command.arg("--manifests").arg(self.path("manifests"));
        }
        self.environment(&mut command);
        let process = Process::spawn(&self.cluster.node('a').netns, command, &self.path("backend.log"));
        process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
        process
    }

    fn frontend(&self) -> Process {
        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--listen", &format!("0.0.0.0:{PORT}"), "--manifests"]);
        command.arg(self.path("manifests")).arg("--tls-client-ca").arg(self.path("etc/fairlead/ca/ca.crt"));
        command.arg("--tls-cert").arg(self.path("tls.crt")).arg("--tls-key").arg(self.path("tls.key"));
        let process = Process::spawn(self.cluster.outside(), command, &self.path("frontend.log"));
        process.wait_for_line("listening", 0, TIMEOUT);
        process
    }

    /// Runs a command as `kubectl exec` does, and returns its output without log lines.
    #[track_caller]
    fn exec(&self, arguments: &[&str]) -> String {
        let mut command = fairlead();
        self.environment(&mut command);
        if self.container["args"][0] == "local" {
            // The default is the same path, which the chart mounts.
            command.env("FAIRLEAD_FRONTEND", self.value("unix:/run/fairlead/frontend.sock"));
        }
        command.args(arguments).current_dir(self.directory.path());
        let Output { status, stdout, stderr } = self.cluster.node('a').netns.finish(&mut command);
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
        assert_eq!((status.code(), &*stderr), (Some(0), ""), "{arguments:?}: {stdout}");
        assert!(!stdout.contains(" INFO ") && !stdout.contains("\"level\""), "{stdout}");
        stdout
    }

    /// Every command of the list in `charts/fairlead/README.md`.
    fn check_commands(&self) {
        let vip = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80).to_string();
        for (arguments, expected) in [
            (&["test"][..], "0 of 4 VIPs failed"),
            (&["check"], " has programmed"),
            (&["status"], NODE),
            (&["status", "--wait", "1m"], NODE),
            (&["trace", "10.244.1.12", &vip], "sent to one of 3 endpoints"),
            (&["diff"], "The kernel matches the desired state"),
            (&["services"], "default/web"),
            (&["endpoints", "default/web"], "in: ready"),
            (&["connections", "default/web"], "connections are tracked on this node"),
            (&["cleanup", "--of", "kube-proxy", "--dry-run"], "nothing to remove"),
            (&["bundle"], "fairlead-bundle-node-a.tar.gz"),
        ] {
            let output = self.exec(arguments);
            assert!(output.contains(expected), "{arguments:?}: no {expected:?} in {output}");
        }
    }
}

#[test]
fn commands_need_no_flags_in_a_backend_pod() {
    let fixture = Fixture::new("defaults.yaml");
    let _frontend = fixture.frontend();
    let _backend = fixture.backend();
    fixture.check_commands();
}

#[test]
fn commands_need_no_flags_in_a_pod_of_a_single_process() {
    let fixture = Fixture::new("local.yaml");
    let _local = fixture.backend();
    fixture.check_commands();
}

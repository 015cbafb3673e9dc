//! Errors of backends that connect to a frontend.

use std::process::Command;

use e2e::{Process, fairlead};

use super::{DEADLINE, Fixture, NAME, assert_contains, server};

/// The message of a backend at WARN for the first failure, and at DEBUG for further ones.
const FAILURE: &str = "cannot connect to a frontend";

impl Fixture {
    fn backend(&self, frontend: &str) -> Command {
        let mut command = fairlead();
        command.args(["backend", "nft", "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
        command.args(["--log", "info,fairlead_backend=debug", "--metrics", "none", "--healthz", "none"]);
        command.args(["--frontend", frontend]).arg("--tls-ca").arg(self.path("ca.crt"));
        command.arg("--state-dir").arg(self.path("state"));
        command
    }

    /// The log line of a backend that connects to a server with this certificate.
    fn backend_line(&self, certificate: (String, String)) -> String {
        let address = server::start(self.netns(), certificate, |_| ("200 OK", String::new()));
        let command = self.backend(&format!("https://{NAME}:{}", address.port()));
        self.only_line(command, FAILURE, FAILURE)
    }

    /// Starts a real frontend with a valid certificate.
    fn real_frontend(&self) -> Process {
        let (certificate, key) = self.server_certificate();
        self.write("server.crt", &certificate);
        self.write("server.key", &key);
        std::fs::create_dir_all(self.path("manifests")).expect("a directory");
        let mut command = fairlead();
        command.args(["frontend", "--listen", "127.0.0.1:7600", "--metrics", "none"]);
        command.arg("--manifests").arg(self.path("manifests")).arg("--tls-client-ca").arg(self.path("ca.crt"));
        command.arg("--tls-cert").arg(self.path("server.crt")).arg("--tls-key").arg(self.path("server.key"));
        let process = Process::spawn(self.netns(), command, &self.path("frontend.log"));
        process.wait_for_line("listening", 0, DEADLINE);
        process
    }
}

#[test]
fn wrong_ca() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.other.sign("server", "", &[NAME]));
    assert_contains(&line, &["UnknownIssuer", "--tls-ca"]);
}

#[test]
fn dns_failure() {
    let fixture = Fixture::new();
    let command = fixture.backend("https://frontend.invalid:7600");
    let line = fixture.only_line(command, "cannot resolve frontends", "cannot resolve frontends");
    assert_contains(&line, &["https://frontend.invalid:7600", "DNS"]);
}

/// The equivalent of HTTP 401: no credential.
#[test]
fn unauthenticated() {
    let fixture = Fixture::new();
    let _frontend = fixture.real_frontend();
    let line = fixture.only_line(fixture.backend("https://localhost:7600"), FAILURE, FAILURE);
    assert_contains(&line, &["--tls-cert", "--token-file"]);
}

/// The equivalent of HTTP 403: the credential of another node.
#[test]
fn not_permitted() {
    let fixture = Fixture::new();
    let _frontend = fixture.real_frontend();
    let (certificate, key) = fixture.authority.sign("system:node:node-b", "system:nodes", &[]);
    fixture.write("node.crt", &certificate);
    fixture.write("node.key", &key);
    let mut command = fixture.backend("https://localhost:7600");
    command.arg("--tls-cert").arg(fixture.path("node.crt")).arg("--tls-key").arg(fixture.path("node.key"));
    let process = fixture.spawn(command);
    let line = process.wait_for_line("advice=", 0, DEADLINE);
    assert_contains(&line, &["node node-b", "node node-a", "--node-name"]);
}

/// The server is not a Fairlead frontend, but an HTTP/1.1 server.
#[test]
fn wrong_server() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.server_certificate());
    assert_contains(&line, &["HTTP/2 was not negotiated", "not a frontend", "--frontend"]);
}

/// The API server for discovery does not serve EndpointSlices.
#[test]
fn missing_kind() {
    let fixture = Fixture::new();
    let certificate = fixture.server_certificate();
    let address = server::start(fixture.netns(), certificate, |_| {
        let body = r#"{"kind":"Status","status":"Failure","reason":"NotFound","message":"not found","code":404}"#;
        ("404 Not Found", body.to_owned())
    });
    let kubeconfig = fixture.write_kubeconfig(&format!("https://{NAME}:{}", address.port()), "{token: secret}");
    let mut command = fixture.backend("kubernetes:kube-system/fairlead:grpc");
    command.arg("--discovery-kubeconfig").arg(kubeconfig);
    let process = fixture.spawn(command);
    let line = process.wait_for_line("EndpointSlices", 0, DEADLINE);
    assert_contains(&line, &["404", "check that", "is its address"]);
}

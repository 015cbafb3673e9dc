//! Errors of backends that connect to a frontend.

use std::{net::SocketAddr, process::Command};

use e2e::{Process, fairlead};

use super::{DEADLINE, Fixture, NAME, Validity, assert_contains, server};

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

    /// A backend with this certificate and key.
    fn backend_with(&self, (certificate, key): (String, String)) -> Command {
        self.write("node.crt", &certificate);
        self.write("node.key", &key);
        let mut command = self.backend("https://localhost:7600");
        command.arg("--tls-cert").arg(self.path("node.crt")).arg("--tls-key").arg(self.path("node.key"));
        command
    }

    fn backend_at(&self, address: SocketAddr) -> Command {
        self.backend(&format!("https://{NAME}:{}", address.port()))
    }

    /// The log line of a backend that connects to a server with this certificate.
    fn backend_line(&self, certificate: (String, String)) -> String {
        let address = server::start(self.netns(), certificate, |_| ("200 OK", String::new()));
        self.only_line(self.backend_at(address), FAILURE, FAILURE)
    }

    /// Starts a real frontend with a valid certificate.
    fn real_frontend(&self) -> Process {
        let (certificate, key) = self.server_certificate(NAME, Validity::Now);
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
fn expired_certificate() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.server_certificate(NAME, Validity::Past));
    assert_contains(&line, &["expired at 2021-01-01", "the local time is", "renew the certificate"]);
}

#[test]
fn clock_skew() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.server_certificate(NAME, Validity::Future));
    assert_contains(&line, &["not valid before 2099-01-01", "compare the clocks"]);
}

#[test]
fn wrong_san() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.server_certificate("frontend.example", Validity::Now));
    assert_contains(&line, &["is not for localhost", "frontend.example", "--frontend-name"]);
}

#[test]
fn refused_port() {
    let fixture = Fixture::new();
    let line = fixture.only_line(fixture.backend("https://127.0.0.1:7600"), FAILURE, FAILURE);
    assert_contains(&line, &["onnection refused", "nothing listens on that port", "--frontend"]);
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
    let pair = fixture.authority.sign("system:node:node-b", "system:nodes", &[]);
    let process = fixture.spawn(fixture.backend_with(pair));
    let line = process.wait_for_line("advice=", 0, DEADLINE);
    assert_contains(&line, &["node node-b", "node node-a", "--node-name"]);
}

/// The frontend rejects it after the handshake of the client, whose request then fails in one of several ways.
#[test]
fn expired_client_certificate() {
    let fixture = Fixture::new();
    let _frontend = fixture.real_frontend();
    let pair = fixture.authority.sign_valid("system:node:node-a", "system:nodes", &[], Validity::Past);
    let line = fixture.only_line(fixture.backend_with(pair), FAILURE, FAILURE);
    assert_contains(&line, &["rejects the client certificate (--tls-cert)", "node.crt", "expired at 2021-01-01"]);
}

#[test]
fn wrong_common_name() {
    let fixture = Fixture::new();
    let _frontend = fixture.real_frontend();
    let pair = fixture.authority.sign("node-a", "system:nodes", &[]);
    let line = fixture.only_line(fixture.backend_with(pair), FAILURE, FAILURE);
    assert_contains(&line, &["its subject has CN", "node-a", "CN=system:node:NAME, O=system:nodes"]);
}

#[test]
fn key_of_another_certificate() {
    let fixture = Fixture::new();
    let (certificate, _) = fixture.authority.sign("system:node:node-a", "system:nodes", &[]);
    let (_, key) = fixture.authority.sign("system:node:node-a", "system:nodes", &[]);
    let line = fixture.only_line(fixture.backend_with((certificate, key)), FAILURE, FAILURE);
    assert_contains(&line, &["node.key is not the private key of --tls-cert", "node.crt"]);
}

#[test]
fn no_ca() {
    let fixture = Fixture::new();
    let mut command = fairlead();
    command.args(["backend", "nft", "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
    command.args(["--log", "info,fairlead_backend=debug", "--metrics", "none", "--healthz", "none"]);
    command.args(["--frontend", "https://localhost:7600"]).arg("--state-dir").arg(fixture.path("state"));
    let line = fixture.only_line(command, FAILURE, FAILURE);
    assert_contains(&line, &["an https address needs --tls-ca: a file with the CA certificate"]);
}

/// The server is not a Fairlead frontend, but an HTTP/1.1 server.
#[test]
fn wrong_server() {
    let fixture = Fixture::new();
    let line = fixture.backend_line(fixture.server_certificate(NAME, Validity::Now));
    assert_contains(&line, &["HTTP/2 was not negotiated", "not a frontend", "--frontend"]);
}

#[test]
fn unreadable_key() {
    let fixture = Fixture::new();
    let mut command = fixture.backend("https://localhost:7600");
    command.args(["--tls-cert", "/nonexistent/tls.crt", "--tls-key", "/nonexistent/tls.key"]);
    let process = fixture.spawn(command);
    let line = process.wait_for_line("/nonexistent/tls", 0, DEADLINE);
    assert_contains(&line, &["--tls-cert", "No such file", "check the path"]);
}

/// The API server for discovery does not serve EndpointSlices.
#[test]
fn missing_kind() {
    let fixture = Fixture::new();
    let certificate = fixture.server_certificate(NAME, Validity::Now);
    let address = server::start(fixture.netns(), certificate, |_| {
        let body = r#"{"kind":"Status","status":"Failure","reason":"NotFound","message":"not found","code":404}"#;
        ("404 Not Found", body.to_owned())
    });
    let ca = fixture.path("ca.crt").display().to_string();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: 'https://{NAME}:{}', certificate-authority: '{ca}'}}}}]\n\
         users: [{{name: test, user: {{token: secret}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
        address.port()
    );
    fixture.write("kubeconfig", &kubeconfig);
    let mut command = fixture.backend("kubernetes:kube-system/fairlead:grpc");
    command.arg("--discovery-kubeconfig").arg(fixture.path("kubeconfig"));
    let process = fixture.spawn(command);
    let line = process.wait_for_line("EndpointSlices", 0, DEADLINE);
    assert_contains(&line, &["404", "check that", "is its address"]);
}

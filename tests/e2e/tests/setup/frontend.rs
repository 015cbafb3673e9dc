//! Errors of frontends that connect to an API server.

use std::{net::SocketAddr, process::Command};

use e2e::fairlead;

use super::{DEADLINE, Fixture, NAME, Validity, assert_contains, server};

/// The message of a frontend at WARN for the first failure, and at DEBUG for further ones.
const FAILURE: &str = "list failed";
const AGAIN: &str = "request failed again";

fn status(code: u16, reason: &str, message: &str) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"{reason}","message":"{message}","code":{code}}}"#
    )
}

impl Fixture {
    fn kubeconfig(&self, server: &str, ca: &str, user: &str) -> Command {
        let ca = self.path(ca).display().to_string();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: '{server}', certificate-authority: '{ca}'}}}}]\n\
             users: [{{name: test, user: {user}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
        );
        self.write("kubeconfig", &text);
        let mut command = fairlead();
        command.args(["frontend", "--log", "info,fairlead_frontend=debug", "--metrics", "none"]);
        command.arg("--kubeconfig").arg(self.path("kubeconfig"));
        command.arg("--listen").arg(format!("unix:{}", self.path("socket").display()));
        command
    }

    fn frontend_at(&self, address: SocketAddr) -> Command {
        self.kubeconfig(&format!("https://{NAME}:{}", address.port()), "ca.crt", "{token: secret}")
    }

    /// The log line of a frontend whose API server has this certificate.
    fn line_with_certificate(&self, certificate: (String, String)) -> String {
        let address = server::start(self.netns(), certificate, |_| ("200 OK", "{}".to_owned()));
        self.only_line(self.frontend_at(address), FAILURE, AGAIN)
    }

    /// The log line of a frontend whose API server sends this response.
    fn line_with_answer(&self, answer: fn(&str) -> (&'static str, String)) -> String {
        let address = server::start(self.netns(), self.server_certificate(NAME, Validity::Now), answer);
        self.only_line(self.frontend_at(address), FAILURE, AGAIN)
    }
}

#[test]
fn wrong_ca() {
    let fixture = Fixture::new();
    let line = fixture.line_with_certificate(fixture.other.sign("server", "", &[NAME]));
    assert_contains(&line, &["UnknownIssuer", "certificate-authority", "no CA in", "API server"]);
}

#[test]
fn expired_certificate() {
    let fixture = Fixture::new();
    let line = fixture.line_with_certificate(fixture.server_certificate(NAME, Validity::Past));
    assert_contains(&line, &["expired at 2021-01-01", "the local time is", "renew the certificate"]);
}

#[test]
fn clock_skew() {
    let fixture = Fixture::new();
    let line = fixture.line_with_certificate(fixture.server_certificate(NAME, Validity::Future));
    assert_contains(&line, &["not valid before 2099-01-01", "the local time is", "compare the clocks"]);
}

#[test]
fn wrong_san() {
    let fixture = Fixture::new();
    let line = fixture.line_with_certificate(fixture.server_certificate("api.example", Validity::Now));
    assert_contains(&line, &["is not for localhost", "api.example", "tls-server-name"]);
}

#[test]
fn refused_port() {
    let fixture = Fixture::new();
    let command = fixture.kubeconfig("https://127.0.0.1:6443", "ca.crt", "{token: secret}");
    let line = fixture.only_line(command, FAILURE, AGAIN);
    assert_contains(&line, &["onnection refused", "nothing listens on that port", "host and port"]);
}

#[test]
fn dns_failure() {
    let fixture = Fixture::new();
    let mut command = fixture.kubeconfig("https://api.invalid:6443", "ca.crt", "{token: secret}");
    // By default, name servers that do not answer take as long as the frontend waits for a connection.
    command.env("RES_OPTIONS", "timeout:1 attempts:1");
    let line = fixture.only_line(command, FAILURE, AGAIN);
    assert_contains(&line, &["does not resolve", "DNS"]);
}

#[test]
fn unauthorized() {
    let line = Fixture::new().line_with_answer(|_| ("401 Unauthorized", status(401, "Unauthorized", "Unauthorized")));
    assert_contains(&line, &["does not accept the credentials", "has not expired"]);
}

#[test]
fn forbidden_by_rbac() {
    let line = Fixture::new().line_with_answer(|_| {
        let message = r#"services is forbidden: User \"fairlead\" cannot list resource \"services\" in API group \"\" at the cluster scope"#;
        ("403 Forbidden", status(403, "Forbidden", message))
    });
    assert_contains(&line, &["advice=", "grant list and watch on ", "ClusterRole"]);
}

#[test]
fn missing_kind() {
    let line = Fixture::new().line_with_answer(|_| {
        ("404 Not Found", status(404, "NotFound", "the server could not find the requested resource"))
    });
    assert_contains(&line, &["check that", "has no path"]);
}

#[test]
fn wrong_path() {
    let line = Fixture::new().line_with_answer(|_| ("200 OK", "<html>welcome</html>".to_owned()));
    assert_contains(&line, &["not an API server", "path"]);
}

#[test]
fn unreadable_key() {
    let fixture = Fixture::new();
    let user = "{client-certificate: /nonexistent/tls.crt, client-key: /nonexistent/tls.key}";
    let process = fixture.spawn(fixture.kubeconfig("https://localhost:6443", "ca.crt", user));
    let line = process.wait_for_line("/nonexistent/tls", 0, DEADLINE);
    assert_contains(&line, &["No such file"]);
    assert!(!process.wait(DEADLINE).expect("it exits").success());
}

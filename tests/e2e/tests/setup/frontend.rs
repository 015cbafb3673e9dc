//! Errors of frontends that connect to an API server.

use std::process::Command;

use e2e::fairlead;

use super::{DEADLINE, Fixture, NAME, assert_contains, server};

impl Fixture {
    fn frontend(&self, server: &str, user: &str) -> Command {
        let mut command = fairlead();
        command.args(["frontend", "--log", "info,fairlead_frontend=debug", "--metrics", "none"]);
        command.arg("--kubeconfig").arg(self.write_kubeconfig(server, user));
        command.arg("--listen").arg(format!("unix:{}", self.path("socket").display()));
        command
    }
}

#[test]
fn wrong_ca() {
    let fixture = Fixture::new();
    let certificate = fixture.other.sign("server", "", &[NAME]);
    let address = server::start(fixture.netns(), certificate, |_| ("200 OK", "{}".to_owned()));
    let url = format!("https://{NAME}:{}", address.port());
    let command = fixture.frontend(&url, "{token: secret}");
    let line = fixture.only_line(command, "list failed", "request failed again");
    assert_contains(&line, &["UnknownIssuer", "certificate-authority", "no CA in", "API server"]);
}

#[test]
fn unreadable_key() {
    let fixture = Fixture::new();
    let user = "{client-certificate: /nonexistent/tls.crt, client-key: /nonexistent/tls.key}";
    let process = fixture.spawn(fixture.frontend("https://localhost:6443", user));
    let line = process.wait_for_line("/nonexistent/tls", 0, DEADLINE);
    assert_contains(&line, &["No such file"]);
    assert!(!process.wait(DEADLINE).expect("it exits").success());
}

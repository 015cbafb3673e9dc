//! Common configuration errors of frontends and backends: the real binaries log one line with the whole chain of causes
//! and what to do, however often they retry.

mod backend;
mod frontend;
mod server;

use std::{path::PathBuf, process::Command, time::Duration};

use e2e::{Authority, Cluster, Netns, Process};

const DEADLINE: Duration = Duration::from_secs(20);
/// Retries that must not be logged above DEBUG.
const RETRIES: usize = 3;
/// The name in good server certificates, which resolves without DNS.
const NAME: &str = "localhost";

/// A network namespace, and a directory with the certificates of two authorities.
struct Fixture {
    cluster: Cluster,
    directory: tempfile::TempDir,
    authority: Authority,
    other: Authority,
}

impl Fixture {
    fn new() -> Self {
        let cluster = Cluster::builder().nodes(1).pods_per_node(0).ports(&[]).start();
        let directory = tempfile::tempdir().expect("a directory");
        let [authority, other] = ["good", "other"].map(|name| Authority::new(name, &[NAME]));
        let fixture = Self { cluster, directory, authority, other };
        fixture.write("ca.crt", &fixture.authority.pem());
        fixture
    }

    fn netns(&self) -> &Netns {
        &self.cluster.node('a').netns
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    /// A server certificate of the good authority, with its key.
    fn server_certificate(&self) -> (String, String) {
        self.authority.sign("server", "", &[NAME])
    }

    /// Writes a kubeconfig whose CA is the good authority.
    fn write_kubeconfig(&self, server: &str, user: &str) -> PathBuf {
        let ca = self.path("ca.crt").display().to_string();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: '{server}', certificate-authority: '{ca}'}}}}]\n\
             users: [{{name: test, user: {user}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n"
        );
        self.write("kubeconfig", &text);
        self.path("kubeconfig")
    }

    fn spawn(&self, command: Command) -> Process {
        Process::spawn(self.netns(), command, &self.path("log"))
    }

    /// The only line above DEBUG with the text `failure`, after several lines with the text `again`.
    #[track_caller]
    fn only_line(&self, command: Command, failure: &str, again: &str) -> String {
        let process = self.spawn(command);
        let mut mark = 0;
        for _ in 0..RETRIES {
            process.wait_for_line(again, mark, DEADLINE);
            let lines = process.lines_since(mark);
            mark += lines.iter().position(|line| line.contains(again)).expect("it was waited for") + 1;
        }
        let lines = process.lines_since(0);
        let mut failures = lines.iter().filter(|line| line.contains(failure) && !line.contains("DEBUG"));
        let line = failures.next().unwrap_or_else(|| panic!("no {failure:?} in:\n{}", lines.join("\n")));
        assert_eq!(failures.next(), None, "logged more than once:\n{}", lines.join("\n"));
        process.kill();
        line.clone()
    }
}

/// Checks that the line contains all of these.
#[track_caller]
fn assert_contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

//! `fairlead protocol-test` with the nftables backend and with the examples in Python and Rust.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e::{Cluster, Process, fairlead, program, tools};
use serde_json::Value;

/// Timeout of all scenarios, one of which takes half a minute.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Prints the upstreams in the configuration of nginx, in the format of `--state-command`.
const UPSTREAMS: &str = r#"
import json, re, sys
programmed = {}
for name, body in re.findall(r"upstream (\S+) \{(.*?)\n\}", open(sys.argv[1]).read(), re.S):
    namespace, service, port, protocol, _ = name.split(".")
    key = f"{namespace}/{service}{':' + port if port else ''}/{'tcp' if protocol == '6' else 'udp'}"
    programmed.setdefault(key, []).extend(re.findall(r"server (\S+);", body))
print(json.dumps([{"service_port": key, "endpoints": to} for key, to in programmed.items()]))
"#;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs all scenarios in a new namespace, and returns the names of the skipped ones.
fn run_scenarios(arguments: &[&str], command: impl FnOnce(&Path) -> Command) -> Vec<String> {
    let cluster = Cluster::builder().nodes(1).pods_per_node(0).start();
    let directory = tempfile::tempdir().expect("a directory");
    let backend = command(directory.path());
    let at = |name: &str| directory.path().join(name).display().to_string();
    let mut protocol_test = fairlead();
    protocol_test.args(["protocol-test", "--timeout", "60s", "-o", "json"]);
    protocol_test.args(["--listen", &format!("unix:{}", at("c.sock")), "--backend-log", &at("backend.log")]);
    protocol_test.args(arguments.iter().map(|argument| argument.replace("{directory}", &at(""))));
    protocol_test.arg("--").arg(backend.get_program()).args(backend.get_args());
    let netns = &cluster.node('a').netns;
    let protocol_test = Process::spawn(netns, protocol_test, &directory.path().join("report.json"));
    // The end of the document may be read after the program has ended.
    protocol_test.wait_for("the report", 0, TIMEOUT, |line| line == "}");
    let status = protocol_test.wait(TIMEOUT).expect("the end of all scenarios");
    let report = protocol_test.lines_since(0).join("\n");
    let log = fs::read_to_string(at("backend.log")).unwrap_or_default();
    assert!(status.success(), "{report}\n{log}");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let outcomes = report["results"].as_array().expect("results");
    assert!(outcomes.len() > 20, "{report}");
    let skipped = outcomes.iter().filter(|outcome| outcome["verdict"] == "SKIP");
    skipped.map(|outcome| outcome["scenario"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn nftables_backend_passes() {
    let skipped = run_scenarios(&[], |directory| {
        let mut command = fairlead();
        command.args(["backend", "nftables", "--frontend", "{address}", "--node-name", "{node}"]);
        command.args(["--conntrack-max-per-core", "0", "--state-dir"]).arg(directory.join("state"));
        command
    });
    assert_eq!(skipped, ["ack-after-kernel", "drain-levels"]);
}

#[test]
fn rust_example_passes() {
    let skipped = run_scenarios(&[], |directory| {
        let mut command = program("fairlead-example-forwarder");
        command.args(["{node}", "{address}"]).arg(directory.join("state"));
        command
    });
    assert_eq!(skipped, ["ack-after-kernel", "drain-levels"]);
}

#[test]
fn python_example_passes_and_programs_what_was_committed() {
    let python = tools::installed("python/bin/python").display().to_string();
    let programmed = format!("{python} -c '{}' {{directory}}/stream.conf", UPSTREAMS.replace('\'', "'\\''"));
    let skipped = run_scenarios(&["--state-command", &programmed], |directory| {
        let mut command = Command::new(&python);
        command.arg(top().join("docs/examples/backend-python/backend.py"));
        command.args(["--frontend", "{address}", "--node", "{node}", "--reload", "true", "--drains", "--config"]);
        command.arg(directory.join("stream.conf"));
        command
    });
    // The example computes no digests and does not store source versions.
    assert_eq!(skipped, ["digest-request", "repair", "source-version"]);
}

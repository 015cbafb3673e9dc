//! A service port that iptables rejects: session affinity without the match `recent`. It is reported, and everything
//! else is programmed.

use std::{fs, net::SocketAddr, os::unix::fs::symlink, path::Path, time::Duration};

use e2e::{
    Client, Cluster, Process, Protocol, fairlead,
    manifests::Service,
    plan::{self, IpFamily},
};

/// The directory in which iptables looks for its match extensions.
const VARIABLE: &str = "XTABLES_LIBDIR";
const MATCHES: &str = "/usr/lib/x86_64-linux-gnu/xtables";
const TIMEOUT: Duration = Duration::from_secs(20);

fn web(cluster: &Cluster, number: u8) -> Service {
    let service = Service::new(&format!("web-{number}")).cluster_ip(plan::cluster_ip(number));
    service.port_all(80, 8080).pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-1")])
}

fn sticky(cluster: &Cluster, number: u8) -> Service {
    web(cluster, number).affinity(10_800)
}

/// All matches except the one for session affinity.
fn matches_without_recent(directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    for entry in fs::read_dir(MATCHES).expect("iptables is installed") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        if name != "libxt_recent.so" {
            symlink(&path, directory.join(name)).expect("a link");
        }
    }
}

fn rejections(process: &Process) -> Vec<String> {
    let mut lines = process.lines_since(0);
    lines.retain(|line| line.contains("service port not programmed"));
    lines
}

#[test]
fn other_service_ports_are_programmed() {
    for variant in ["nft", "legacy"] {
        let cluster = Cluster::start();
        let directory = tempfile::tempdir().expect("a directory");
        let manifests = cluster.manifests(&directory.path().join("manifests"));
        for number in 1..=20 {
            manifests.apply(&web(&cluster, number));
        }
        manifests.apply(&sticky(&cluster, 7));
        let node = cluster.node('a');
        let client = node.pod(3).client();
        let state = directory.path().join("state");
        let matches = directory.path().join("matches");
        matches_without_recent(&matches);
        let start = |log: &str, matches: &Path| {
            let mut command = fairlead();
            command.args(["local", "--backend", "iptables", "--iptables-variant", variant, "--node-name"]);
            command.args([&node.name, "--conntrack-max-per-core", "0", "--manifests"]).arg(manifests.directory());
            command.arg("--state-dir").arg(&state).env(VARIABLE, matches);
            let process = Process::spawn(&node.netns, command, &directory.path().join(log));
            process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
            process
        };
        let ask = |client: &Client, number: u8| {
            let answers = IpFamily::ALL.map(|family| {
                let vip = SocketAddr::new(plan::cluster_ip(number).ip(family), 80);
                Protocol::ALL.map(|protocol| client.ask(protocol, vip))
            });
            answers.concat()
        };
        let assert_served = |number| {
            let answers = ask(&client, number);
            assert!(answers.iter().all(Result::is_ok), "{variant}: web-{number}: {answers:?}");
        };
        let hasty = client.clone().with_deadline(Duration::from_millis(100));
        let assert_unserved = |number| {
            let answers = ask(&hasty, number);
            assert!(answers.iter().all(Result::is_err), "{variant}: web-{number}: {answers:?}");
        };

        // A Service that exists at the start.
        let process = start("rejected.log", &matches);
        let lines = rejections(&process);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("default/web-7") && line.contains("recent")), "{lines:?}");
        assert_unserved(7);
        (1..=20).filter(|number| *number != 7).for_each(assert_served);
        // A Service that is created later.
        let mark = process.mark();
        manifests.apply(&sticky(&cluster, 9));
        manifests.apply(&web(&cluster, 21));
        process.wait_for("the rejection", mark, TIMEOUT, |line| {
            line.contains("service port not programmed") && line.contains("default/web-9")
        });
        process.wait_for("more", mark, TIMEOUT, |line| line.contains("reconciled") || line.contains("applied"));
        [7, 9].into_iter().for_each(assert_unserved);
        [1, 8].into_iter().for_each(assert_served);
        assert!(process.terminate().success());

        let process = start("cured.log", Path::new(MATCHES));
        assert_eq!(rejections(&process), [""; 0]);
        (1..=21).for_each(assert_served);
    }
}

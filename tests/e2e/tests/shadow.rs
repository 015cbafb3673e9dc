//! A shadow computes, compares and logs, and writes nothing: its system calls and the kernel state are checked.

use std::{ffi::OsStr, fs, path::Path, process::Command, time::Duration};

use e2e::{Cluster, Netns, Process, fairlead, manifests::Service, plan};
use netlink::nft::NftHandle;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Substrings of strace lines that are writes: links and addresses, programs, and listening.
const WRITES: [&str; 6] = ["RTM_NEWLINK", "RTM_NEWADDR", "NLM_F_CREATE", "-restore\"", "\"modprobe\"", "listen("];
/// `NFNL_MSG_BATCH_BEGIN` of `linux/netfilter/nfnetlink.h`: a transaction of nf_tables.
const BATCH_BEGIN: u16 = 16;
/// The end of a call of strace that sends an empty transaction: 40 bytes for its begin and its end.
const EMPTY_BATCH: &str = " = 40";
/// `NLM_F_CREATE` of `linux/netlink.h`.
const CREATE: u16 = 0x400;

/// A node, and a frontend with a unix socket.
struct Fixture {
    cluster: Cluster,
    directory: tempfile::TempDir,
    frontend: Process,
}

impl Fixture {
    fn start() -> Self {
        let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
        let directory = tempfile::tempdir().expect("a directory");
        let manifests = cluster.manifests(&directory.path().join("manifests"));
        manifests.apply(&web(&cluster, "pod-a-1"));
        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--manifests"]).arg(manifests.directory());
        command.args(["--listen", &socket(directory.path())]);
        let frontend = Process::spawn(cluster.outside(), command, &directory.path().join("frontend.log"));
        frontend.wait_for_line("every kind of object has been listed", 0, TIMEOUT);
        Self { cluster, directory, frontend }
    }

    fn node(&self) -> &Netns {
        &self.cluster.node('a').netns
    }

    /// Starts a backend under strace. Returns it and the file with its system calls.
    fn traced(&self, name: &str, arguments: &[&str]) -> (Process, std::path::PathBuf) {
        let mut backend = fairlead();
        backend.args(["backend", name, "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
        backend.args(["--frontend", &socket(self.directory.path()), "--state-dir"]).arg(self.state());
        backend.args(arguments);
        let calls = self.directory.path().join(format!("{name}.calls"));
        let mut command = Command::new("strace");
        command.args(["-f", "-s", "200", "-e", "trace=execve,sendto,sendmsg,openat,listen", "-o"]).arg(&calls);
        command.arg(backend.get_program()).args(backend.get_args());
        let log = self.directory.path().join(format!("{name}.log"));
        (Process::spawn(self.node(), command, &log), calls)
    }

    fn state(&self) -> std::path::PathBuf {
        self.directory.path().join("state")
    }

    fn status(&self) -> (i32, Value) {
        let mut command = fairlead();
        command.args(["status", "-o", "json", "--frontend", &socket(self.directory.path())]);
        let output = command.output().expect("fairlead runs");
        let document = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code().expect("an exit code"), document)
    }
}

fn socket(directory: &Path) -> String {
    format!("unix:{}", directory.join("frontend.sock").display())
}

fn web(cluster: &Cluster, pod: &str) -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).pods([cluster.pod(pod)])
}

/// The lines of strace about writes: netlink messages, programs and sysctls.
fn writes(calls: &Path) -> Vec<String> {
    let calls = fs::read_to_string(calls).expect("the output of strace");
    let opens = |line: &str| line.contains("/proc/sys/") && !line.contains("O_RDONLY");
    let is_write = |line: &&str| WRITES.iter().any(|word| line.contains(word)) || opens(line) || sends_changes(line);
    calls.lines().filter(is_write).map(str::to_owned).collect()
}

/// Whether a line is about a message of nf_tables that changes the kernel. Newer versions of strace decode it, others
/// print its bytes.
fn sends_changes(line: &str) -> bool {
    if line.contains("NFNL_MSG_BATCH_BEGIN") {
        return !line.ends_with(EMPTY_BATCH);
    }
    let Some((_, text)) = line.split_once("iov_base=\"") else { return false };
    let header = unescape(text, 8);
    let [_, _, _, _, kind @ .., _, _] = &header[..] else { return false };
    let [low, high] = kind else { return false };
    let kind = u16::from_le_bytes([*low, *high]);
    let flags = u16::from_le_bytes([header[6], header[7]]);
    (kind == BATCH_BEGIN && !line.ends_with(EMPTY_BATCH)) || flags & CREATE != 0
}

/// The first bytes of a string that strace prints in C syntax.
fn unescape(text: &str, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let ([first, tail @ ..], true) = (rest, bytes.len() < count) {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let octal = rest.iter().take(3).take_while(|digit| (b'0'..=b'7').contains(*digit)).count();
        if octal > 0 {
            let value = rest[..octal].iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(value as u8);
            rest = &rest[octal..];
        } else if let [letter, tail @ ..] = rest {
            let letters = [(b'n', 10), (b't', 9), (b'r', 13), (b'v', 11), (b'f', 12)];
            let value = letters.iter().find(|(name, _)| name == letter).map_or(*letter, |(_, value)| *value);
            bytes.push(value);
            rest = tail;
        }
    }
    bytes
}

/// The generation of the ruleset, which each transaction of nf_tables increments.
fn generation(netns: &Netns) -> u32 {
    netns.run(|| NftHandle::open().expect("a socket").generation().expect("an answer"))
}

#[test]
fn shadow_of_each_backend_writes_nothing() {
    let fixture = Fixture::start();
    let rules = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n\
         -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n\
         -A KUBE-SVC-AAAAAAAAAAAAAAAA -p tcp -j DNAT --to-destination 10.244.9.9:8080\nCOMMIT\n";
    fixture.node().run_with_input("iptables-nft-restore", &["--noflush"], rules);
    let manifests = fixture.cluster.manifests(&fixture.directory.path().join("manifests"));
    for (name, pod) in [("nftables", "pod-a-2"), ("iptables", "pod-a-1"), ("ipvs", "pod-a-2")] {
        let before = generation(fixture.node());
        let (process, calls) = fixture.traced(name, &["--shadow"]);
        process.wait_for_line("compared with the kernel, nothing written", 0, TIMEOUT);
        let would = process.wait_for_line("shadow: would write", 0, TIMEOUT);
        assert!(!would.contains("would write 0 added"), "{would}");
        process.wait_for_line("kube-proxy behaves differently: 10.96.0.1:80/tcp", 0, TIMEOUT);

        let (code, status) = fixture.status();
        assert_eq!(code, 1, "{status:#}");
        let [node] = &status["nodes"].as_array().expect("nodes")[..] else { panic!("{status:#}") };
        assert_eq!((&node["state"], &node["backend"]), (&"shadow".into(), &name.into()));

        let mark = process.mark();
        manifests.apply(&web(&fixture.cluster, pod));
        process.wait_for_line("shadow: would write", mark, TIMEOUT);
        assert_eq!(
            fixture.node().output("ss", &["-Hltn", "src", ":10256", "or", "src", ":10249", "or", "src", ":24256"]),
            ""
        );
        end(fixture.node(), &process);
        assert_eq!(writes(&calls), [""; 0], "{name}");
        assert_eq!(generation(fixture.node()), before, "{name}");
        assert!(!fixture.state().exists(), "{name}");
    }

    // The calls of a backend that is not a shadow are found.
    let (process, calls) = fixture.traced("nftables", &["--healthz", "none", "--metrics", "none"]);
    process.wait_for_line("ready: node state programmed", 0, TIMEOUT);
    end(fixture.node(), &process);
    assert!(writes(&calls).iter().any(|line| sends_changes(line)));
    assert!(fixture.frontend.exited().is_none());
}

/// Ends the traced program, and waits for strace, which ends after it has written all calls.
fn end(netns: &Netns, strace: &Process) {
    let pids = netns.output("ip", &["netns", "pids", netns.name()]);
    let is_ours = |pid: &&str| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.file_name() == Some(OsStr::new("fairlead"))
    };
    for pid in pids.lines().filter(is_ours) {
        kill(Pid::from_raw(pid.parse().expect("a number")), Signal::SIGTERM).expect("signal the backend");
    }
    assert!(strace.wait(TIMEOUT).is_some(), "it does not end");
}

//! Nodes on which one IP family cannot be programmed, and those whose kernel does not support the default variant of
//! iptables: the rest is served. In user-mode-linux, whose kernel has IPVS and iptables-legacy, and no nf_tables for
//! IPv4 and IPv6.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use e2e::{eventually, fairlead, http_get_here, uml};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The address of a device of the node, where the endpoint listens.
const ENDPOINTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const CLUSTER_IPS: [&str; 2] = ["10.96.0.1", "fd00:10:96::1"];
const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
/// For a machine under load.
const TIMEOUT: Duration = Duration::from_secs(90);

/// `fairlead local` in the network namespace of this thread.
struct Local {
    program: Child,
    log: PathBuf,
    directory: TempDir,
}

impl Local {
    fn start(backend: &str, configure: impl FnOnce(&mut Command)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let manifests = directory.path().join("manifests");
        fs::create_dir(&manifests).expect("a directory");
        fs::write(manifests.join("web.json"), objects().to_string()).expect("a file");
        let log = directory.path().join("log");
        let mut command = fairlead();
        command.args(["local", "--backend", backend, "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
        command.args(["--healthz", HEALTH, "--metrics", METRICS]).arg("--manifests").arg(&manifests);
        command.arg("--state-dir").arg(directory.path().join("state")).stdin(Stdio::null());
        command.stderr(File::create(&log).expect("a file")).env("XTABLES_LOCKFILE", directory.path().join("lock"));
        configure(&mut command);
        let program = command.spawn().expect("start fairlead");
        Self { program, log, directory }
    }

    /// The reason why a family is not programmed.
    fn unusable(&self, family: &str) -> Option<String> {
        let status: Value = serde_json::from_str(&get(METRICS, "/statusz").ok()?).ok()?;
        status["unusableFamilies"][family].as_str().map(str::to_owned)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits until the cluster IP of a family answers.
    #[track_caller]
    fn assert_serves(&self, family: usize) {
        let vip = SocketAddr::new(CLUSTER_IPS[family].parse().expect("an address"), 80);
        let connect = || TcpStream::connect_timeout(&vip, Duration::from_secs(1)).ok();
        let connected = std::panic::catch_unwind(|| eventually("the cluster IP answers", TIMEOUT, connect));
        assert!(connected.is_ok(), "{vip}: {}", self.log());
    }

    fn ready(&self) -> String {
        eventually("the backend is ready", TIMEOUT, || {
            get(HEALTH, "/readyz").ok().filter(|answer| answer.starts_with("ready\n"))
        })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
        println!("{}", self.log());
    }
}

/// A dual-stack Service with an endpoint of each family.
fn objects() -> Value {
    let slice = |family: &str, address| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {
                "name": format!("web-{}", family.to_lowercase()), "namespace": "default",
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "endpoints": [{ "addresses": [address], "conditions": { "ready": true }, "nodeName": "node-a" }],
            "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "clusterIP": CLUSTER_IPS[0], "clusterIPs": CLUSTER_IPS, "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{ "port": 80, "protocol": "TCP" }],
        },
    });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a" } });
    json!({
        "apiVersion": "v1", "kind": "List",
        "items": [service, slice("IPv4", ENDPOINTS[0]), slice("IPv6", ENDPOINTS[1]), node],
    })
}

fn get(at: &str, path: &str) -> io::Result<String> {
    let response = http_get_here(at.parse().expect("an address"), path, Duration::from_secs(2))?;
    Ok(response.body)
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("start ip");
    assert!(status.success(), "ip {arguments}");
}

/// A device with routes to the cluster IPs and the addresses of the endpoints, which accept connections.
fn set_up(families: usize) {
    ip("link set lo up");
    ip("link add ep0 type veth peer name ep1");
    ip("link set ep0 up");
    ip("link set ep1 up");
    for (family, endpoint) in ENDPOINTS.into_iter().enumerate().take(families) {
        ip(&format!("address add {endpoint}/{} dev ep0", [32, 128][family]));
        ip(&format!("{} route add default dev ep0", ["-4", "-6"][family]));
        // A new address is tentative for a moment.
        let address = SocketAddr::new(endpoint.parse().expect("an address"), 8080);
        let listener = eventually("the address is usable", TIMEOUT, || TcpListener::bind(address).ok());
        thread::spawn(move || listener.incoming().for_each(drop));
    }
}

/// `ipv6.disable=1`: no IPv6 sockets, no ip6tables tables. `iptables` is iptables-nft, which the kernel does not
/// support either: iptables-legacy is used.
pub(crate) fn ipv4_is_served_in_a_kernel_without_ipv6_by_iptables() {
    without_ipv6("iptables");
}

pub(crate) fn ipv4_is_served_in_a_kernel_without_ipv6_by_ipvs() {
    uml::load(&[]);
    without_ipv6("ipvs");
}

fn without_ipv6(backend: &str) {
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
    set_up(1);
    let local = Local::start(backend, |_| {});
    let ready = local.ready();
    assert!(ready.contains("IPv6 is not programmed: "), "{ready}");
    local.assert_serves(0);
    let reason = local.unusable("IPv6").expect("a reason");
    assert_eq!(local.unusable("IPv4"), None);
    let log = local.log();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(count("cannot program an IP family"), 1, "{reason}\n{log}");
    assert_eq!(count("using the variant legacy instead"), 1, "{log}");
    assert_eq!(count("still cannot"), 0, "{log}");
    assert!(reason.len() < 200, "{reason}");
    let metrics = get(METRICS, "/metrics").expect("metrics");
    assert!(metrics.contains(r#"fairlead_backend_unusable_family{ip_family="IPv6"} 1"#), "{metrics}");
}

/// IPVS needs IPv6 addresses on its device: while a sysctl disables them, IPv4 is served; afterwards both are.
pub(crate) fn ipvs_serves_ipv6_once_it_is_enabled() {
    uml::load(&[]);
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
    let set = |value| {
        for device in ["all", "default"] {
            fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), value).expect("a sysctl");
        }
    };
    set("1");
    set_up(1);
    let local = Local::start("ipvs", |_| {});
    local.assert_serves(0);
    let reason = local.unusable("IPv6").expect("a reason");
    assert!(reason.contains("disable_ipv6=1"), "{reason}");
    set("0");
    ip("address add 2001:db8::1/128 dev ep0");
    ip("-6 route add default dev ep0");
    let address: SocketAddr = "[2001:db8::1]:8080".parse().expect("an address");
    let listener = eventually("the address is usable", TIMEOUT, || TcpListener::bind(address).ok());
    thread::spawn(move || listener.incoming().for_each(drop));
    local.assert_serves(1);
    local.assert_serves(0);
    assert_eq!(local.unusable("IPv6"), None);
    assert!(local.log().contains("IP family programmed again"));
}

/// Without ip6tables IPv4 is served, and IPv6 too once it is installed.
#[test]
fn iptables_serves_ipv6_once_ip6tables_is_installed() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
    set_up(2);
    let bin = tempfile::tempdir().expect("a directory");
    link_programs(bin.path(), "iptables");
    let local = Local::start("iptables", |command| {
        command.env("PATH", bin.path());
    });
    assert_eq!(local.ready(), "ready\nIPv6 is not programmed: ip6tables is not installed\n");
    local.assert_serves(0);
    let health: Value = serde_json::from_str(&get(HEALTH, "/healthz").expect("an answer")).expect("JSON");
    assert_eq!(
        (&health["status"]["IPv4"]["healthy"], &health["status"]["IPv6"]["healthy"]),
        (&json!(true), &json!(false))
    );
    link_programs(bin.path(), "ip6tables");
    local.assert_serves(1);
    assert_eq!(local.ready(), "ready\n");
    assert!(local.directory.path().exists());
}

/// Installs the programs of a family.
fn link_programs(bin: &Path, name: &str) {
    for suffix in ["", "-nft", "-nft-save", "-nft-restore"] {
        symlink(format!("/usr/sbin/{name}{suffix}"), bin.join(format!("{name}{suffix}"))).expect("a link");
    }
}

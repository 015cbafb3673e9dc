//! HTTP endpoints of a real backend: health for load balancers and the kubelet, and metrics that follow a change.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use e2e::{
    Cluster, Netns, Process, eventually, fairlead, http_get,
    manifests::{Manifests, Service},
    plan,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const HEALTH: u16 = 10_256;
const METRICS: u16 = 10_249;

/// The backend of a node, and optionally a frontend.
struct Fixture {
    backend: Process,
    frontend: Option<Process>,
    manifests: Manifests,
    cluster: Cluster,
    directory: tempfile::TempDir,
}

impl Fixture {
    /// Starts a backend without a frontend.
    fn start(arguments: &[&str]) -> Self {
        let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
        let directory = tempfile::tempdir().expect("a directory");
        let manifests = cluster.manifests(&directory.path().join("manifests"));
        let mut command = fairlead();
        command.args(["backend", "nftables", "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
        command.args(["--frontend", &socket(&directory)]).args(arguments);
        command.arg("--state-dir").arg(directory.path().join("state"));
        let backend = Process::spawn(&cluster.node('a').netns, command, &directory.path().join("backend.log"));
        for server in ["healthz", "metrics"] {
            let listens = |line: &str| line.contains("listening") && line.contains(&format!("server=\"{server}\""));
            backend.wait_for(&format!("{server} listening"), 0, TIMEOUT, listens);
        }
        Self { backend, frontend: None, manifests, cluster, directory }
    }

    fn start_frontend(&mut self) {
        let mut command = fairlead();
        command.args(["frontend", "--listen", &socket(&self.directory), "--manifests"]);
        command.arg(self.manifests.directory());
        let log = self.directory.path().join("frontend.log");
        self.frontend = Some(Process::spawn(self.cluster.outside(), command, &log));
    }

    fn netns(&self) -> &Netns {
        &self.cluster.node('a').netns
    }

    fn get(&self, port: u16, path: &str) -> (u16, String) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let response = http_get(self.netns(), address, path, TIMEOUT);
        let response = response.unwrap_or_else(|error| panic!("{address}{path}: {error}"));
        (response.status, response.body)
    }

    fn statuses(&self) -> [u16; 3] {
        ["/healthz", "/livez", "/readyz"].map(|path| self.get(HEALTH, path).0)
    }

    fn until(&self, statuses: [u16; 3]) {
        eventually(&format!("{statuses:?}"), TIMEOUT, || (self.statuses() == statuses).then_some(()));
    }

    /// The value of one line of the metrics.
    fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = self.get(METRICS, "/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
        value.parse().expect("a number")
    }

    fn until_metric(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        eventually(name, TIMEOUT, || wanted(self.metric(name)).then_some(()));
    }

    fn taint(&self, key: &str) {
        let spec = json!({"taints": [{"key": key, "effect": "NoSchedule", "value": "1"}]});
        let node = self.cluster.node('a').address.v4.to_string();
        let status = json!({"addresses": [{"type": "InternalIP", "address": node}]});
        let metadata = json!({"name": "node-a"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status});
        self.manifests.write("node-a", &[node]);
    }
}

fn socket(directory: &tempfile::TempDir) -> String {
    format!("unix:{}", directory.path().join("frontend.sock").display())
}

/// A slice of the service `web` with the current time as its trigger time.
fn slice(name: &str, addresses: &[&str]) -> Value {
    let trigger = Timestamp::now().to_string();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": trigger},
        },
        "addressType": "IPv4",
        "ports": [{"name": "tcp-80", "protocol": "TCP", "port": 8080}],
        "endpoints": addresses.iter().map(|address| json!({"addresses": [address]})).collect::<Vec<_>>(),
    })
}

#[test]
fn health_endpoints_follow_the_state_of_the_node() {
    let mut fixture = Fixture::start(&[]);
    assert_eq!(fixture.statuses(), [503, 200, 503], "it has not been connected to a frontend");
    fixture.start_frontend();
    fixture.until([200, 200, 200]);
    let node = fixture.cluster.node('a').address;
    for ip in [IpAddr::from(node.v4), node.v6.into(), Ipv6Addr::LOCALHOST.into()] {
        let response = http_get(fixture.netns(), SocketAddr::new(ip, HEALTH), "/healthz", TIMEOUT);
        let response = response.expect("a response");
        let body: Value = serde_json::from_str(&response.body).expect("JSON");
        assert_eq!((response.status, &body["status"]["IPv6"]["healthy"]), (200, &true.into()), "{ip}: {body}");
    }
    fixture.taint("ToBeDeletedByClusterAutoscaler");
    fixture.until([503, 200, 200]);
    let (_, body) = fixture.get(HEALTH, "/healthz");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&false.into(), &true.into()), "{body}");
    fixture.taint("another");
    fixture.until([200, 200, 200]);
    assert!(fixture.metric("kubeproxy_proxy_healthz_total{code=\"503\"}") >= 2.0);
}

#[test]
fn metrics_follow_a_change() {
    let mut fixture = Fixture::start(&[]);
    let web = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
    fixture.manifests.apply(&web);
    fixture.manifests.write("slice", &[slice("one", &["10.244.1.77"])]);
    fixture.start_frontend();
    fixture.until([200, 200, 200]);
    assert_eq!(
        fixture.metric("fairlead_backend_propagation_seconds_count"),
        0.0,
        "objects from before the start are no change"
    );
    let partial = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    let (changes, pools) = (fixture.metric(partial), "kubeproxy_sync_proxy_rules_endpoint_changes_total");
    let before = fixture.metric(pools);

    fixture.manifests.write("slice", &[slice("one", &["10.244.1.77", "10.244.1.78"])]);
    fixture.until_metric("fairlead_backend_propagation_seconds_count", |count| count == 1.0);
    assert!(fixture.metric("fairlead_backend_propagation_seconds_sum") < TIMEOUT.as_secs_f64());
    let programming = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv6\"}";
    assert_eq!(fixture.metric(programming), 1.0);
    assert_eq!((fixture.metric(partial), fixture.metric(pools)), (changes + 1.0, before + 1.0));
    assert!(fixture.metric("fairlead_backend_sync_kernel_operations_sum") > 0.0);
    assert!(fixture.metric("fairlead_backend_staleness_seconds") < TIMEOUT.as_secs_f64());

    assert_eq!(fixture.get(METRICS, "/proxyMode"), (200, "nftables".to_owned()));
    let (_, status) = fixture.get(METRICS, "/statusz");
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((&status["node"], &status["connected"]), (&json!("node-a"), &json!(true)));
    let (_, config) = fixture.get(METRICS, "/configz");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(config["fairlead"]["flags"]["node-name"], json!({"value": "node-a", "from": "command line"}));

    // On loopback only, by default.
    let node = fixture.cluster.node('a').address.v4;
    let refused = http_get(fixture.netns(), SocketAddr::new(node.into(), METRICS), "/metrics", TIMEOUT);
    assert_eq!(refused.expect_err("nothing listens").kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn occupied_port_ends_the_backend_only_with_hard_fail() {
    let fixture = Fixture::start(&[]);
    let mut command = fairlead();
    command.args(["backend", "nftables", "--node-name", "node-a", "--conntrack-max-per-core", "0"]);
    command.args(["--frontend", &socket(&fixture.directory), "--healthz", "none", "--bind-address-hard-fail"]);
    command.arg("--state-dir").arg(fixture.directory.path().join("other"));
    let second = Process::spawn(fixture.netns(), command, &fixture.directory.path().join("second.log"));
    let ended = second.wait(TIMEOUT).expect("it ends");
    assert_eq!(ended.code(), Some(2));
    second.wait_for_line("--metrics: cannot listen at 127.0.0.1:10249", 0, TIMEOUT);
    second.wait_for_line("fairlead (pid ", 0, TIMEOUT);
    assert_eq!(fixture.backend.exited(), None);
}

//! Nodes that are identified by tokens of ServiceAccounts, with an API server in memory.

use std::{
    fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use e2e::{Authority, Cluster, Netns, Node, Process, eventually, fairlead, plan};
use fake_api_server::{ApiServer, Resource, ReviewedUser};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const TIMEOUT: Duration = Duration::from_secs(20);
const PORT: u16 = 7600;
const NODE_PORT: u16 = 30_600;
/// The name in the frontend's certificate; it is never resolved.
const NAME: &str = "fairlead.example";
const BACKEND: &str = "system:serviceaccount:kube-system:backend";
/// More than the reviews that the frontend lets one address have at once.
const FORGED_BEFORE: u64 = 64;

/// A cluster of one node, and outside of it an API server and a frontend.
struct Fixture {
    directory: tempfile::TempDir,
    cluster: Cluster,
    api: ApiServer,
    frontend: Process,
    _runtime: Runtime,
}

impl Fixture {
    fn new() -> Self {
        let cluster = Cluster::builder().nodes(1).pods_per_node(0).ports(&[]).start();
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("authority", &[]);
        let (certificate, key) = authority.sign("frontend", "", &[NAME]);
        fs::write(path("ca.crt"), authority.pem()).expect("a file");
        fs::write(path("tls.crt"), certificate).expect("a file");
        fs::write(path("tls.key"), key).expect("a file");

        let runtime = Runtime::new().expect("a runtime");
        let listener = cluster.outside().run(|| TcpListener::bind("127.0.0.1:0")).expect("a port");
        let api = ApiServer::serve(listener, runtime.handle()).expect("an API server");
        api.rotate_signing_key();
        for (resource, object) in objects(cluster.node('a')) {
            let _ = api.put(resource, object);
        }
        fs::write(path("kubeconfig"), api.kubeconfig()).expect("a file");

        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--log", "info,fairlead_frontend=debug"]);
        command.args(["--listen", &format!("0.0.0.0:{PORT}"), "--backend-service-account", "kube-system/backend"]);
        for (flag, file) in [("--kubeconfig", "kubeconfig"), ("--tls-cert", "tls.crt"), ("--tls-key", "tls.key")] {
            command.arg(flag).arg(path(file));
        }
        let frontend = Process::spawn(cluster.outside(), command, &path("frontend.log"));
        frontend.wait_for_line("listening", 0, TIMEOUT);
        Self { directory, cluster, api, frontend, _runtime: runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command that connects to a frontend at this address with this token.
    fn client(&self, arguments: &[&str], address: SocketAddr, token: &str, file: &str) -> Command {
        fs::write(self.path(file), token).expect("a file");
        let mut command = fairlead();
        command.args(arguments).args(["--frontend", &format!("https://{address}"), "--frontend-name", NAME]);
        command.arg("--tls-ca").arg(self.path("ca.crt")).arg("--token-file").arg(self.path(file));
        command
    }

    /// Starts the backend of the node with a new token. Returns whether its first attempt to connect succeeds.
    fn start_backend(&self, id: u64) -> (Process, bool) {
        let token = self.api.sign(&claims(id));
        let user = ReviewedUser {
            name: BACKEND.to_owned(),
            node: Some("node-a".to_owned()),
            audiences: vec!["fairlead".to_owned()],
        };
        self.api.add_token(&token, user);
        let arguments = ["backend", "nftables", "--node-name", "node-a", "--conntrack-max-per-core", "0"];
        let address = SocketAddr::new(plan::OUTSIDE.v4.into(), PORT);
        let mut command = self.client(&arguments, address, &token, "token");
        command.args(["--metrics", "none", "--healthz", "none"]).arg("--state-dir").arg(self.path("state"));
        let backend = Process::spawn(self.netns(), command, &self.path(&format!("backend-{id}.log")));
        let is_result =
            |line: &str| line.contains("connected to a frontend") || line.contains("cannot connect to a frontend");
        let line = backend.wait_for("a frontend", 0, TIMEOUT, is_result);
        let is_accepted = line.contains("connected to a frontend");
        (backend, is_accepted)
    }

    fn netns(&self) -> &Netns {
        &self.cluster.node('a').netns
    }
}

/// The node, and a node port whose hand-written endpoint is the frontend.
fn objects(node: &Node) -> Vec<(Resource, Value)> {
    let addresses = node.address.both().map(|ip| json!({"type": "InternalIP", "address": ip}));
    let frontend = json!({"addresses": [plan::OUTSIDE.v4], "conditions": {"ready": true}});
    vec![
        (
            Resource::Node,
            json!({
                "metadata": {"name": node.name},
                "spec": {"podCIDRs": node.pod_cidrs},
                "status": {"addresses": addresses},
            }),
        ),
        (
            Resource::Service,
            json!({
                "metadata": {"namespace": "tenant", "name": "hostile"},
                "spec": {
                    "type": "NodePort",
                    "clusterIP": plan::cluster_ip(1).v4,
                    "clusterIPs": [plan::cluster_ip(1).v4],
                    "ipFamilies": ["IPv4"],
                    "ports": [{"protocol": "TCP", "port": PORT, "nodePort": NODE_PORT}],
                },
            }),
        ),
        (
            Resource::EndpointSlice,
            json!({
                "metadata": {
                    "namespace": "tenant",
                    "name": "hostile",
                    "labels": {"kubernetes.io/service-name": "hostile"},
                },
                "addressType": "IPv4",
                "ports": [{"name": "", "protocol": "TCP", "port": PORT}],
                "endpoints": [frontend],
            }),
        ),
    ]
}

fn claims(id: u64) -> Value {
    json!({"aud": ["fairlead"], "sub": BACKEND, "jti": id, "kubernetes.io": {"node": {"name": "node-a"}}})
}

/// Connections through the node port arrive at the frontend masqueraded, from the address of the node.
#[test]
fn forged_tokens_through_a_node_port_do_not_keep_the_backend_of_the_node_out() {
    let fixture = Fixture::new();
    let node_port = SocketAddr::new(fixture.cluster.node('a').address.v4.into(), NODE_PORT);
    let (first, is_accepted) = fixture.start_backend(0);
    assert!(is_accepted);
    let connect = || std::net::TcpStream::connect_timeout(&node_port, Duration::from_secs(1)).is_ok();
    let outside = fixture.cluster.outside();
    eventually("the node port leads to the frontend", TIMEOUT, || outside.run(connect).then_some(()));
    first.kill();

    let another_cluster = ApiServer::in_process();
    another_cluster.rotate_signing_key();
    let forged = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let forge = |attacker: u64| {
        while !is_over.load(Relaxed) {
            let id = forged.fetch_add(1, Relaxed);
            let token = another_cluster.sign(&claims(id));
            let mut command = fixture.client(&["status"], node_port, &token, &format!("forged-{attacker}"));
            let output = outside.finish(&mut command);
            assert!(!output.status.success());
        }
    };
    let accepted = thread::scope(|scope| {
        for attacker in 0..3 {
            scope.spawn(move || forge(attacker));
        }
        let forged_enough = || (forged.load(Relaxed) > FORGED_BEFORE).then_some(());
        eventually("tokens were forged", 3 * TIMEOUT, forged_enough);
        let accepted = (1..=20).filter(|id| {
            let (backend, is_accepted) = fixture.start_backend(*id);
            backend.kill();
            is_accepted
        });
        let accepted = accepted.count();
        is_over.store(true, Relaxed);
        accepted
    });
    assert_eq!(accepted, 20);
    assert_eq!(fixture.api.reviews(), 21);

    let address = IpAddr::from(fixture.cluster.node('a').address.v4).to_string();
    let is_rejected = |line: &str| line.contains("client rejected") && line.contains(&address);
    let line = fixture.frontend.wait_for("a rejection of a client at the node", 0, TIMEOUT, is_rejected);
    assert!(line.contains("the API server has no key"), "{line}");
}

//! The example of a backend on the `backend` crate, `docs/examples/backend-rust`, forwards connections that are routed
//! to it.

use std::{net::SocketAddr, time::Duration};

use e2e::{Cluster, Failure, IpFamily, Process, Protocol, eventually, fairlead, manifests::Service, plan, program};

const TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 80;

#[test]
fn rust_backend_forwards_connections_and_restarts_without_a_frontend() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
    let directory = tempfile::tempdir().expect("a directory");
    let node = cluster.node('a');
    for cidr in plan::SERVICE_CIDRS {
        node.netns.output("ip", &["route", "add", "local", cidr, "dev", "lo"]);
    }
    cluster.route_vips_through(node);
    let manifests = cluster.manifests(&directory.path().join("manifests"));
    let vip = plan::cluster_ip(1);
    let web = |pod: &str| Service::new("web").cluster_ip(vip).port_all(PORT, 8080).pods([cluster.pod(pod)]);
    manifests.apply(&web("pod-a-1"));

    let address = format!("unix:{}", directory.path().join("frontend.sock").display());
    let mut command = fairlead();
    command.args(["frontend", "--metrics", "none", "--listen", &address, "--manifests"]);
    command.arg(manifests.directory());
    let frontend = Process::spawn(cluster.outside(), command, &directory.path().join("frontend.log"));
    frontend.wait_for_line("listening", 0, TIMEOUT);
    let start = |log: &str| {
        let mut command = program("fairlead-example-forwarder");
        command.args(["node-a", &address]).arg(directory.path().join("state"));
        Process::spawn(&node.netns, command, &directory.path().join(log))
    };
    let backend = start("backend.log");
    // A service port that cannot be forwarded is reported, and does not affect others.
    backend.wait_for_line("UDP is not supported, only TCP is", 0, TIMEOUT);

    let address = |family| SocketAddr::new(vip.ip(family), PORT);
    // It answers from outside and from the node itself, and at no other port.
    let answers = |pod: &str| {
        for family in IpFamily::ALL {
            for client in [node.client(), cluster.client()] {
                eventually(&format!("{pod} answers over {family:?}"), TIMEOUT, || {
                    client.tcp(address(family)).ok().filter(|reply| reply.pod == pod).map(drop)
                });
                let other = SocketAddr::new(vip.ip(family), PORT + 1);
                assert_eq!(client.tcp(other).expect_err("nothing listens there"), Failure::Refused);
            }
        }
    };
    answers("pod-a-1");
    let live = node.client().stream(Protocol::Tcp, address(IpFamily::V4), Duration::from_millis(20));
    let live = live.expect("a connection");
    manifests.apply(&web("pod-a-2"));
    answers("pod-a-2");
    // A connection keeps its endpoint, also after the endpoint is removed.
    let echoes = live.report().echoed;
    assert!(live.wait_echoes(echoes + 5, TIMEOUT));
    let report = live.finish();
    assert!(report.is_clean() && report.pods.keys().eq(["pod-a-1"]), "{report:?}");

    // Without a frontend the backend serves its last committed state.
    frontend.kill();
    backend.terminate();
    assert_eq!(node.client().tcp(address(IpFamily::V4)).expect_err("nothing listens there"), Failure::Refused);
    let _backend = start("backend-2.log");
    answers("pod-a-2");
}

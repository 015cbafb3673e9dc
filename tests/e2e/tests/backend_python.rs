//! The example of a backend in Python, `docs/examples/backend-python`, follows a frontend, forwards connections with
//! nginx, and prints how far pods are drained.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use e2e::{
    Cluster, Netns, Process, Protocol, eventually, fairlead,
    manifests::{Endpoint, EndpointState, Service},
    plan, tools,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const PORT: u16 = 80;

/// Starts nginx without any server. Returns it and the command that reloads its configuration.
fn nginx(netns: &Netns, directory: &Path) -> (Process, String) {
    let program = tools::installed("nginx/usr/sbin/nginx").display().to_string();
    let module = tools::installed("nginx/usr/lib/nginx/modules/ngx_stream_module.so").display().to_string();
    let at = directory.display();
    fs::write(directory.join("stream.conf"), "").expect("a file");
    let config = format!(
        "daemon off; user root; worker_processes 1; pid {at}/nginx.pid; error_log {at}/nginx-error.log notice; load_module {module};\n\
         events {{}}\nstream {{ include {at}/stream.conf; }}\n"
    );
    fs::write(directory.join("nginx.conf"), config).expect("a file");
    let arguments = ["-p", &at.to_string(), "-c", &format!("{at}/nginx.conf")].map(str::to_owned);
    let mut command = Command::new(&program);
    command.args(&arguments);
    let reload = format!("{program} {} -s reload", arguments.join(" "));
    let process = Process::spawn(netns, command, &directory.join("nginx.log"));
    eventually("nginx runs", TIMEOUT, || directory.join("nginx.pid").exists().then_some(()));
    (process, reload)
}

#[test]
fn python_backend_forwards_through_nginx() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
    let directory = tempfile::tempdir().expect("a directory");
    let node = cluster.node('a');
    // nginx can listen only at addresses of the node.
    let vip = plan::cluster_ip(1);
    vip.both().iter().for_each(|ip| node.netns.add_address(*ip, "lo", ""));
    let manifests = cluster.manifests(&directory.path().join("manifests"));
    // Without SCTP: pods wait a minute for a node that cannot program their Services.
    let service =
        || Service::new("web").cluster_ip(vip).port(Protocol::Tcp, PORT, 8080).port(Protocol::Udp, PORT, 8080);
    let web = |pod: &str| service().pods([cluster.pod(pod)]);
    manifests.apply(&web("pod-a-1"));

    let address = format!("unix:{}", directory.path().join("frontend.sock").display());
    let start = |log: &str| {
        let mut command = fairlead();
        command.args(["frontend", "--metrics", "none", "--listen", &address, "--manifests"]);
        command.arg(manifests.directory());
        let frontend = Process::spawn(cluster.outside(), command, &directory.path().join(log));
        frontend.wait_for_line("listening", 0, TIMEOUT);
        frontend
    };
    let frontend = start("frontend.log");
    let (_nginx, reload) = nginx(&node.netns, directory.path());
    let mut command = Command::new(tools::installed("python/bin/python"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/backend-python/backend.py"));
    command.args(["--node", "node-a", "--frontend", &address, "--drains", "--reload", &reload, "--config"]);
    command.arg(directory.path().join("stream.conf"));
    let backend = Process::spawn(&node.netns, command, &directory.path().join("backend.log"));
    backend.wait_for_line("programmed 2 service ports", 0, TIMEOUT);

    let answers = |pod: &str| {
        for address in [SocketAddr::new(vip.v4.into(), PORT), SocketAddr::new(vip.v6.into(), PORT)] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                eventually(&format!("{pod} answers at {address} over {protocol}"), TIMEOUT, || {
                    let reply = match protocol {
                        Protocol::Tcp => node.client().tcp(address),
                        _ => node.client().udp(address),
                    };
                    reply.ok().filter(|reply| reply.pod == pod).map(drop)
                });
            }
        }
    };
    let level_is = |level: &str, mark| {
        for address in cluster.pod("pod-a-1").address.both() {
            backend.wait_for_line(&format!("pod {address}: {level}"), mark, TIMEOUT);
        }
    };
    answers("pod-a-1");
    level_is("in use", 0);

    // The node is the only one, so that its Ack is what the pod waits for.
    let mark = backend.mark();
    let ending = Endpoint::of(cluster.pod("pod-a-1")).state(EndpointState::Draining);
    manifests.apply(&service().endpoints([ending, Endpoint::of(cluster.pod("pod-a-2"))]));
    backend.wait_for_line("programmed", mark, TIMEOUT);
    level_is("drained", mark);
    answers("pod-a-2");

    // After a restart of the frontend the backend continues from its state and writes nothing.
    let mark = backend.mark();
    frontend.kill();
    let frontend = start("frontend-2.log");
    frontend.wait_for_line("stream started", 0, TIMEOUT);
    backend.wait_for_line("stream ended", mark, TIMEOUT);
    manifests.apply(&web("pod-a-1"));
    backend.wait_for_line("programmed", mark, TIMEOUT);
    assert_eq!(backend.lines_since(mark).iter().filter(|line| line.contains("programmed")).count(), 1);
    answers("pod-a-1");
    level_is("in use", mark);
}

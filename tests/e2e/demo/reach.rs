//! Connections to a dual-stack Service through all its VIPs, to one with policy Local, and to one without endpoints.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fairlead_e2e::{Client, Failure, IpFamily, Protocol, plan};

use crate::{scene::Scene, show::Show};

/// Connections for a spread: with three pods, the chance that one gets none is 1 in 10 billion.
const REQUESTS: usize = 60;
/// Ports of the example manifests.
const PORT: u16 = 80;
const WEB_NODE_PORT: u16 = 30080;
const LOCAL_NODE_PORT: u16 = 30081;

/// The service `web`: cluster IP, node port and load-balancer IP in both families.
pub(crate) fn everywhere(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step(&format!("Connect to `web`: {REQUESTS} connections through each VIP"));
    let cluster = &scene.cluster;
    let inside = cluster.pod("pod-b-2").client();
    let outside = cluster.client();
    for family in IpFamily::ALL {
        let cluster_ip = SocketAddr::new(plan::cluster_ip(10).ip(family), PORT);
        let node_port = SocketAddr::new(cluster.node('b').address.ip(family), WEB_NODE_PORT);
        let load_balancer = SocketAddr::new(load_balancer_ip(family), PORT);
        for (what, source, client, to) in [
            ("cluster IP", "pod-b-2", &inside, cluster_ip),
            ("node port", "outside", &outside, node_port),
            ("load balancer", "outside", &outside, load_balancer),
        ] {
            show.command(source, &connect(to));
            let pods = spread(client, to)?;
            let seen = client.tcp(to)?.seen_source.ip();
            show.result(&format!("{what}, {family}: {}; pods see {seen}", join(&pods)));
            let names = pods.keys().map(String::as_str).collect::<Vec<_>>();
            ensure!(names == ["pod-a-1", "pod-a-2", "pod-b-1"], "{to} leads to {names:?}");
        }
    }
    Ok(())
}

/// The service `local-only`, whose one endpoint is on node-a.
pub(crate) fn policy_local(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("Connect to `local-only` (externalTrafficPolicy: Local, one endpoint, on node-a)");
    let cluster = &scene.cluster;
    let [a, b] = ['a', 'b'].map(|letter| SocketAddr::new(cluster.node(letter).address.v4.into(), LOCAL_NODE_PORT));

    show.command("outside", &connect(a));
    let reply = cluster.client().tcp(a).context("node-a")?;
    show.result(&format!("node-a: {}, which sees the client address {}", reply.pod, reply.seen_source.ip()));
    ensure!(reply.pod == "pod-a-2", "node-a leads to {}", reply.pod);
    ensure!(reply.seen_source.ip() == IpAddr::from(plan::OUTSIDE.v4), "the client is seen as {}", reply.seen_source);

    show.command("outside", &connect(b));
    let answer = cluster.client().tcp(b);
    show.result("node-b: dropped: no endpoint here (a load balancer would not send anything to this node)");
    ensure!(answer == Err(Failure::TimedOut), "node-b answers a client outside: {answer:?}");

    show.command("pod-b-1", &connect(b));
    let reply = cluster.pod("pod-b-1").client().tcp(b).context("from a pod of node-b")?;
    show.result(&format!("node-b, from a pod: {}; pods reach all endpoints", reply.pod));
    ensure!(reply.pod == "pod-a-2", "a pod of node-b is led to {}", reply.pod);
    Ok(())
}

/// The service `empty`: connections are rejected, not dropped.
pub(crate) fn empty(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("Connect to `empty`, which has no endpoints yet");
    let to = SocketAddr::new(plan::cluster_ip(30).v4.into(), PORT);
    show.command("pod-a-1", &connect(to));
    let started = Instant::now();
    let answer = scene.cluster.pod("pod-a-1").client().tcp(to);
    show.result(&format!("rejected after {:.1} ms, without waiting for a timeout", millis(started.elapsed())));
    ensure!(answer == Err(Failure::Refused), "{to} answers {answer:?}");
    Ok(())
}

/// The load-balancer IP of the Service `web`.
pub(crate) fn load_balancer_ip(family: IpFamily) -> IpAddr {
    plan::load_balancer_ip(10).ip(family)
}

/// Connections answered by each pod.
pub(crate) fn spread(client: &Client, to: SocketAddr) -> Result<BTreeMap<String, usize>> {
    client.spread(Protocol::Tcp, to, REQUESTS).with_context(|| format!("connect to {to}"))
}

/// A shell command that connects: the servers answer with one line that starts with their name.
pub(crate) fn connect(to: SocketAddr) -> String {
    format!("head -1 < /dev/tcp/{}/{}", to.ip(), to.port())
}

/// `pod-a-1 19, pod-a-2 21`.
pub(crate) fn join(pods: &BTreeMap<String, usize>) -> String {
    pods.iter().map(|(pod, count)| format!("{pod} {count}")).collect::<Vec<_>>().join(", ")
}

/// In milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

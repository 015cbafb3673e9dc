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
pub(crate) const PORT: u16 = 80;
const WEB_NODE_PORT: u16 = 30080;
const LOCAL_NODE_PORT: u16 = 30081;

/// The service `web`: cluster IP, node port and load-balancer IP in both families.
pub(crate) fn everywhere(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step(&format!("Connect to `web`: {REQUESTS} connections through each VIP, IPv4 and IPv6"));
    let cluster = &scene.cluster;
    let inside = cluster.pod("pod-b-2").client();
    let outside = cluster.client();
    let node_port = |family| SocketAddr::new(cluster.node('b').address.ip(family), WEB_NODE_PORT);
    let cluster_ip = |family| SocketAddr::new(plan::cluster_ip(10).ip(family), PORT);
    let load_balancer = |family| SocketAddr::new(load_balancer_ip(family), PORT);

    connect_to_web(show, "pod-b-2", &inside, "cluster IP", cluster_ip)?;
    connect_to_web(show, "outside", &outside, "node port", node_port)?;
    connect_to_web(show, "outside", &outside, "load balancer", load_balancer)
}

/// Connects to one kind of VIP of the Service `web`.
fn connect_to_web(
    show: &Show,
    source: &str,
    client: &Client,
    kind: &str,
    vip: impl Fn(IpFamily) -> SocketAddr + Copy,
) -> Result<()> {
    show.command(source, &format!("{}    # {kind}", connect(vip(IpFamily::V4))));
    let spreads = both_families(client, vip, ["pod-a-1", "pod-a-2", "pod-b-1"])?;
    let seen = client.tcp(vip(IpFamily::V4))?.seen_source.ip();
    show.result(&format!("{spreads}; pods see {seen}"));
    Ok(())
}

/// Which pods answer at a VIP of each family, as text. It must be these.
pub(crate) fn both_families(
    client: &Client,
    vip: impl Fn(IpFamily) -> SocketAddr,
    expected: [&str; 3],
) -> Result<String> {
    let mut spreads = Vec::new();
    for family in IpFamily::ALL {
        let to = vip(family);
        let pods = spread(client, to)?;
        let names = pods.keys().map(String::as_str).collect::<Vec<_>>();
        ensure!(names == expected, "{to} leads to {names:?}");
        spreads.push(format!("{family}: {}", join(&pods)));
    }
    Ok(spreads.join("; "))
}

/// The service `local-only`, whose one endpoint is on node-a, and the service `empty`.
pub(crate) fn refused(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("Connect to `local-only` (policy Local, one endpoint, on node-a) and to `empty` (no endpoint)");
    let cluster = &scene.cluster;
    let [a, b] = ['a', 'b'].map(|letter| SocketAddr::new(cluster.node(letter).address.v4.into(), LOCAL_NODE_PORT));

    let reply = cluster.client().tcp(a).context("node-a")?;
    show.result(&format!("outside, to {a}: {}, which sees the client {}", reply.pod, reply.seen_source.ip()));
    ensure!(reply.pod == "pod-a-2", "node-a leads to {}", reply.pod);
    ensure!(reply.seen_source.ip() == IpAddr::from(plan::OUTSIDE.v4), "the client is seen as {}", reply.seen_source);

    let answer = cluster.client().tcp(b);
    show.result(&format!("outside, to {b}: dropped, no endpoint on node-b"));
    ensure!(answer == Err(Failure::TimedOut), "node-b answers a client outside: {answer:?}");

    let reply = cluster.pod("pod-b-1").client().tcp(b).context("from a pod of node-b")?;
    show.result(&format!("pod-b-1, to {b}: {}; pods reach all endpoints", reply.pod));
    ensure!(reply.pod == "pod-a-2", "a pod of node-b is led to {}", reply.pod);

    let empty = SocketAddr::new(plan::cluster_ip(30).v4.into(), PORT);
    let started = Instant::now();
    let answer = cluster.pod("pod-a-1").client().tcp(empty);
    let waited = millis(started.elapsed());
    show.result(&format!("pod-a-1, to {empty}: rejected after {waited:.1} ms, without waiting for a timeout"));
    ensure!(answer == Err(Failure::Refused), "{empty} answers {answer:?}");
    Ok(())
}

/// The load-balancer IP of the Service `web`.
pub(crate) fn load_balancer_ip(family: IpFamily) -> IpAddr {
    plan::load_balancer_ip(10).ip(family)
}

/// Connections answered by each pod.
fn spread(client: &Client, to: SocketAddr) -> Result<BTreeMap<String, usize>> {
    client.spread(Protocol::Tcp, to, REQUESTS).with_context(|| format!("connect to {to}"))
}

/// A shell command that connects: the servers answer with one line that starts with their name.
fn connect(to: SocketAddr) -> String {
    format!("head -1 < /dev/tcp/{}/{}", to.ip(), to.port())
}

/// `pod-a-1 19, pod-a-2 21`.
fn join(pods: &BTreeMap<String, usize>) -> String {
    pods.iter().map(|(pod, count)| format!("{pod} {count}")).collect::<Vec<_>>().join(", ")
}

/// In milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

//! `bench resets`: 10,000 connections, of which 1,000 lead to a pod whose node goes: how long each of these waits for
//! its reset, and whether any other is touched. Processes of their own hold the others, for the limit of open files.

use std::{
    env,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    Backend, Cluster, Deployment, Netns,
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
};
use tokio::{io::Interest, task::JoinSet, time::timeout};

use crate::report::{Goal, Report};

const PORT: u16 = 80;
/// In each family: those that stay, and those whose endpoint goes.
const CONNECTIONS: [usize; 2] = [4_500, 500];
/// The goal for the last reset: an endpoint is gone for 3 s first.
const GOAL: Goal = Goal::AtMost(5_000.0);
/// How long a connection waits for its reset.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures one mode after the other.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    runtime::raise_file_limit()?;
    for (name, backend) in [
        ("nftables", Backend::Nft),
        ("iptables-nft", Backend::IptablesNft),
        ("iptables-legacy", Backend::IptablesLegacy),
    ] {
        measure_mode(report, name, backend)?;
    }
    Ok(())
}

fn measure_mode(report: &mut Report, name: &str, backend: Backend) -> Result<()> {
    let [kept, lost] = CONNECTIONS.map(|connections| connections * IpFamily::ALL.len());
    Report::progress(&format!("{name}: opening {kept} connections that stay, and {lost} others"));
    let builder = Deployment::builder(backend).frontend_argument("--reset-connections=node-gone");
    let mut deployment = builder.start(|_| vec![web()]);
    let cluster = deployment.cluster();
    let draining = ready(cluster, "pod-a-1").state(EndpointState::Terminating);
    let unserving = ready(cluster, "pod-b-1").state(EndpointState::NotReady);
    let steps = [
        web().endpoints([ready(cluster, "pod-a-1")]),
        web().endpoints([draining.clone(), ready(cluster, "pod-b-1")]),
        // Connections are reset only while another endpoint is ready.
        web().endpoints([draining, unserving, ready(cluster, "pod-a-2")]),
    ];
    let [first, second, third] = &steps;
    deployment.apply(first);
    let holders: Result<Vec<_>> = clients(deployment.cluster(), CONNECTIONS[0])
        .into_iter()
        .map(|(netns, vip, count)| Holder::start(&netns, vip, count, "pod-a-1"))
        .collect();
    let holders = holders.context("open connections that stay")?;
    deployment.apply(second);
    let mut lost = Vec::new();
    for (netns, vip, count) in clients(deployment.cluster(), CONNECTIONS[1]) {
        lost.extend(netns.run(|| connect(vip, count, "pod-b-1")).with_context(|| format!("connect to {vip}"))?);
    }
    deployment.cluster().pod("pod-b-1").netns.ip("link set eth0 down\n");
    deployment.apply(third);

    let begun = Instant::now();
    deployment.manifests().delete_node(deployment.cluster().node('b'));
    let waits = wait_for_resets(lost, begun)?;
    let last = waits.iter().max().copied().unwrap_or_default();
    report.spread(&format!("{name}: a node's deletion to the reset, {} connections", waits.len()), waits, Goal::None);
    report.duration(&format!("{name}: to the last reset"), last, GOAL);
    let mut touched = 0;
    for holder in holders {
        touched += holder.finish()?;
    }
    report.add(&format!("{name}: others that were touched, of {kept}"), touched as f64, "", Goal::AtMost(0.0));
    Ok(())
}

fn web() -> Service {
    Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080)
}

fn ready(cluster: &Cluster, pod: &str) -> Endpoint {
    Endpoint::of(cluster.pod(pod))
}

/// In each family a pod and, for half of the connections, its node.
fn clients(cluster: &Cluster, count: usize) -> Vec<(Netns, SocketAddr, usize)> {
    let (pod, node) = (&cluster.pod("pod-a-3").netns, &cluster.node('a').netns);
    let vips = IpFamily::ALL.map(|family| SocketAddr::new(plan::cluster_ip(1).ip(family), PORT));
    let of = |vip| [(pod.clone(), vip, count / 2), (node.clone(), vip, count - count / 2)];
    vips.into_iter().flat_map(of).collect()
}

fn connect(vip: SocketAddr, count: usize, to: &str) -> Result<Vec<TcpStream>> {
    (0..count).map(|_| open(vip, to)).collect()
}

/// A process with connections that stay.
struct Holder(Child);

impl Holder {
    fn start(netns: &Netns, vip: SocketAddr, count: usize, pod: &str) -> Result<Self> {
        let mut command = Command::new(env::current_exe().context("find this program")?);
        command.args(["resets-holder", &vip.to_string(), &count.to_string(), pod]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Self(netns.run(|| command.spawn())?);
        ensure!(holder.line()? == "open", "the process has no connections");
        Ok(holder)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        // Nothing follows a line before the process is asked.
        BufReader::new(self.0.stdout.as_mut().context("the output of a process")?).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The number of connections that do not work any more.
    fn finish(mut self) -> Result<usize> {
        self.0.stdin.as_mut().context("the input of a process")?.write_all(b"\n")?;
        let touched = self.line()?.parse().context("the number of connections that were touched")?;
        self.0.wait()?;
        Ok(touched)
    }
}

/// `bench resets-holder VIP COUNT POD`: opens connections, and after a line of input counts those that do not work.
pub(crate) fn hold(vip: &str, count: &str, pod: &str) -> Result<()> {
    let connections = connect(vip.parse()?, count.parse()?, pod)?;
    println!("open");
    std::io::stdin().read_line(&mut String::new())?;
    println!("{}", connections.iter().filter(|connection| !is_echoed(connection)).count());
    Ok(())
}

/// The greeting names the pod.
fn open(vip: SocketAddr, pod: &str) -> Result<TcpStream> {
    let mut connection = TcpStream::connect_timeout(&vip, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let (mut greeting, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        connection.read_exact(&mut byte)?;
        greeting.extend(byte);
    }
    let greeting = String::from_utf8_lossy(&greeting);
    ensure!(greeting.contains(pod), "{greeting:?} is not from {pod}");
    Ok(connection)
}

/// How long each connection waits.
fn wait_for_resets(connections: Vec<TcpStream>, begun: Instant) -> Result<Vec<Duration>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut waiting = JoinSet::new();
        for connection in connections {
            connection.set_nonblocking(true)?;
            let connection = tokio::net::TcpStream::from_std(connection)?;
            waiting.spawn(timeout(PATIENCE, async move {
                loop {
                    connection.ready(Interest::READABLE).await?;
                    match connection.try_read(&mut [0]) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(begun.elapsed()),
                        result => bail!("a connection to the endpoint that is gone: {result:?}"),
                    }
                }
            }));
        }
        let mut waits = Vec::new();
        while let Some(waited) = waiting.join_next().await {
            waits.push(waited?.context("a connection was not reset")??);
        }
        Ok(waits)
    })
}

fn is_echoed(mut connection: &TcpStream) -> bool {
    let mut echo = [0; 8];
    connection.write_all(&[7; 8]).is_ok() && connection.read_exact(&mut echo).is_ok() && echo == [7; 8]
}

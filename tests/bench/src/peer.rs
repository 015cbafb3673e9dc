//! Fairlead beside kube-proxy in nftables mode: the same API server, objects and kernel, each in a network namespace of
//! its own.
//!
//! ```text
//!   api ──list, watch──▶ fairlead local | kube-proxy ──▶ nf_tables ◀── connections to a VIP with local pods
//! ```

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use e2e::Process;

use crate::{
    lab::{Lab, commit, memory},
    manifests::CLUSTER_CIDR,
    report::{Goal, Report},
    scale::{
        cluster::{Cluster, Size, SliceId, cluster_ip, node_name},
        cluster_api::ClusterApi,
        process::Usage,
    },
    worker::Worker,
};

/// 10,000 Services x 10 endpoints; the first one has 10 too.
const SIZE: Size = Size { nodes: 1_000, services: 10_000, endpoints: 100_000, largest: 10 };
/// kube-proxy needs minutes for what Fairlead does in a second.
const DEADLINE: Duration = Duration::from_secs(600);
/// Between connection attempts to a VIP.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Endpoint changes, one at a time.
const CHANGES: usize = 10;
/// Between changes: more than kube-proxy's minimum interval between syncs (1 s), so that no change waits for it.
const CHANGE_INTERVAL: Duration = Duration::from_secs(3);
/// After a restart, the time in which transactions are counted.
const SETTLED: Duration = Duration::from_secs(5);

/// The programs that are compared.
#[derive(Clone, Copy)]
enum Proxy<'a> {
    Fairlead,
    KubeProxy(&'a Path),
}

pub(crate) fn measure(report: &mut Report, kube_proxy: &Path) -> Result<()> {
    for proxy in [Proxy::Fairlead, Proxy::KubeProxy(kube_proxy)] {
        measure_one(report, proxy).with_context(|| format!("measure {}", proxy.name()))?;
    }
    Ok(())
}

fn measure_one(report: &mut Report, proxy: Proxy<'_>) -> Result<()> {
    let what = |what: &str| format!("{}: {what}, 10,000 x 10", proxy.name());
    let lab = Lab::new()?;
    // All pods are local addresses, so that connections need no other node; VIPs get a route, as a default route would
    // give them.
    lab.netns().ip("route add local 10.128.0.0/9 dev lo\nlink set lo up\nroute add 10.64.0.0/12 dev lo\n");
    let listener = lab.run(|| TcpListener::bind("0.0.0.0:8080")).context("listen as the pods")?;
    thread::spawn(move || listener.incoming().flatten().for_each(drop));

    let worker = Worker::start(lab.netns())?;
    let api = ClusterApi::start(&lab, &worker, Cluster::new(SIZE))?;

    Report::progress(&format!("starting {}", proxy.name()));
    let started = Instant::now();
    let process = proxy.start(&lab, "first.log")?;
    wait_for_vip(&lab, &process, SIZE.services - 1, started)?;
    report.duration(&what("start to first packet through a VIP"), started.elapsed(), Goal::None);

    Report::progress(&format!("{CHANGES} endpoint changes"));
    thread::sleep(SETTLED);
    let usage = Usage::of(&process)?;
    let (mut kernel, mut times) = (lab.monitor()?, Vec::new());
    for number in 0..CHANGES {
        let changed = Instant::now();
        // Services without zone hints: with them, a change may not concern this node.
        replace_endpoint(&api, number * 100 + 2);
        commit(&mut kernel, DEADLINE).with_context(|| format!("change {number}"))?;
        times.push(changed.elapsed());
        thread::sleep(CHANGE_INTERVAL);
    }
    report.spread(&what("endpoint change to kernel"), times, Goal::None);
    report.add(&what("CPU for each change"), usage.since(&process)? / CHANGES as f64, "s", Goal::None);
    report.memory(&what("memory"), memory(&process)?.resident, Goal::None);

    Report::progress("restarting with nothing changed");
    process.terminate();
    let before = lab.generation()?;
    let mut kernel = lab.monitor()?;
    let started = Instant::now();
    let process = proxy.start(&lab, "second.log")?;
    match proxy {
        Proxy::Fairlead => drop(process.wait_for_line("reconciled", 0, DEADLINE)),
        Proxy::KubeProxy(_) => commit(&mut kernel, DEADLINE).context("the first sync after a restart")?,
    }
    report.duration(&what("restart to synced"), started.elapsed(), Goal::None);
    thread::sleep(SETTLED);
    let transactions = lab.generation()?.wrapping_sub(before);
    report.add(&what("kernel transactions of the restart"), transactions.into(), "", Goal::None);
    process.terminate();
    Ok(())
}

/// Replaces the first endpoint of a service in the API.
fn replace_endpoint(api: &ClusterApi, service: usize) {
    let id = SliceId { service, slice: 0 };
    api.with(|cluster| {
        let reach = cluster.remove(id);
        cluster.add(id, reach);
    });
    api.put_slice(id, 1);
}

/// Connects to the cluster IP of a service until a pod answers.
fn wait_for_vip(lab: &Lab, process: &Process, service: usize, started: Instant) -> Result<()> {
    let vip: Ipv4Addr = cluster_ip(service);
    let vip = SocketAddr::new(vip.into(), 80);
    lab.run(|| {
        while TcpStream::connect_timeout(&vip, Duration::from_millis(200)).is_err() {
            ensure!(started.elapsed() < DEADLINE, "{vip} does not answer within {DEADLINE:?}");
            if let Some(status) = process.exited() {
                anyhow::bail!("the proxy ended: {status}; see {}", process.log().display());
            }
            thread::sleep(PROBE_INTERVAL);
        }
        Ok(())
    })
}

impl Proxy<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Fairlead => "fairlead",
            Self::KubeProxy(_) => "kube-proxy",
        }
    }

    fn start(self, lab: &Lab, log: &str) -> Result<Process> {
        let kubeconfig = lab.kubeconfig().display().to_string();
        let (node, state) = (node_name(0), lab.path("state").display().to_string());
        Ok(match self {
            Self::Fairlead => {
                let local = ["local", "--backend", "nftables", "--kubeconfig", &kubeconfig, "--node-name", &node];
                let node = ["--cluster-cidr", CLUSTER_CIDR, "--state-dir", &state, "--conntrack-max-per-core=0"];
                lab.spawn_program(&[local.as_slice(), &node].concat(), log)
            }
            Self::KubeProxy(program) => {
                let arguments = [
                    "--proxy-mode=nftables",
                    &format!("--kubeconfig={kubeconfig}"),
                    &format!("--hostname-override={node}"),
                    &format!("--cluster-cidr={CLUSTER_CIDR}"),
                    "--kube-api-content-type=application/json",
                    "--conntrack-max-per-core=0",
                    "--conntrack-min=0",
                ];
                lab.spawn_other(program, &arguments, log)
            }
        })
    }
}

//! One proxy on its node, and the changes that it has to follow.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use e2e::Process;
use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};

use super::{changes::Changes, control_plane::ControlPlane, proxy::Proxy};
use crate::{
    lab::{Lab, commit, kernel_memory, memory},
    scale::{
        cluster::{Cluster, cluster_ip},
        process::CpuTime,
    },
};

/// kube-proxy needs minutes for what Fairlead does in a second.
const DEADLINE: Duration = Duration::from_secs(600);
/// Less than the second after which a SYN is repeated.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);
/// Of a connection to a VIP that may not be programmed yet: the kernel drops its SYN then.
const PROBE_TIMEOUT: Duration = Duration::from_millis(40);
/// Between such connections.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Endpoint changes, one at a time.
const CHANGES: usize = 10;
/// Of changes, and of new connections beside them.
const LOAD_DURATION: Duration = Duration::from_secs(20);
/// Between new connections under load.
const CONNECTION_INTERVAL: Duration = Duration::from_millis(1);
/// Without a transaction, and with less CPU time than [`IDLE_SECONDS`], a proxy has done everything. This is more than
/// the time that kube-proxy lets pass between two syncs (1 s), so that no change waits for the sync before it.
const SETTLED: Duration = Duration::from_millis(1_500);
const IDLE_SECONDS: f64 = 0.1;
/// By how much the kernel's memory differs from one moment to the next.
const MEMORY_NOISE_KB: u64 = 256;
/// From the start of a process to the change that it must not miss.
const CHANGE_AFTER_RESTART: Duration = Duration::from_millis(100);
/// The Service that connections under load are opened to. Its endpoints are not replaced.
const CONNECTED_SERVICE: usize = 0;
/// The Service whose endpoints are all replaced after the restart.
const RESTART_SERVICE: usize = 3;
const POD_PORT: u16 = 8080;

/// A node with one of the proxies.
pub(super) struct NodeUnderTest<'a> {
    lab: Lab,
    control_plane: &'a ControlPlane,
    proxy: &'a Proxy,
    changes: Changes<'a>,
}

/// Takes the name, the value and the unit of each figure.
type Figures<'a> = dyn FnMut(&str, f64, &'static str) + 'a;

impl<'a> NodeUnderTest<'a> {
    pub(super) fn new(
        lab: Lab,
        control_plane: &'a ControlPlane,
        cluster: &'a mut Cluster,
        proxy: &'a Proxy,
    ) -> Result<Self> {
        // All pods are local addresses, so that connections need no other node; VIPs get a route, as a default route
        // would give them.
        lab.netns().ip("route add local 10.128.0.0/9 dev lo\nroute add 10.64.0.0/12 dev lo\n");
        let listener = lab.run(|| TcpListener::bind(("0.0.0.0", POD_PORT))).context("listen as the pods")?;
        thread::spawn(move || listener.incoming().flatten().for_each(greet));
        Ok(Self { lab, control_plane, proxy, changes: Changes::new(cluster) })
    }

    pub(super) fn measure(mut self, figure: &mut Figures<'_>) -> Result<()> {
        let frontend = self.proxy.start_frontend(self.control_plane)?;
        let (frontend, frontend_start) = frontend.unzip();
        let mut frontend_figures = Vec::new();

        let process = self.start(figure)?;
        let [node, other] = self.one_by_one(&process, frontend.as_ref(), figure)?;
        figure("one endpoint replaced: CPU time of the node's process until it is idle", node, "s");
        frontend_figures.push(("a frontend: CPU time of one endpoint replaced", other, "s"));
        let [node, other] = self.under_load(&process, frontend.as_ref(), figure)?;
        figure("20 endpoints replaced/s: CPU of the node's process", node * 100.0, "% of a core");
        frontend_figures.push(("a frontend: CPU, 20 endpoints replaced/s", other * 100.0, "% of a core"));
        figure("memory of the node's process", megabytes(memory(&process)?.resident), "MB");
        let process = self.restart(process, figure)?;
        process.terminate();
        figure("memory of the kernel for its rules", megabytes(self.remove_rules()?), "MB");

        if let (Some(frontend), Some(start)) = (frontend, frontend_start) {
            figure("a frontend: start until it serves", start.as_secs_f64(), "s");
            figure("a frontend: memory", megabytes(memory(&frontend)?.resident), "MB");
            frontend_figures.into_iter().for_each(|(what, value, unit)| figure(what, value, unit));
            frontend.terminate();
        }
        Ok(())
    }

    /// Starts the proxy on an empty kernel.
    fn start(&self, figure: &mut Figures<'_>) -> Result<Process> {
        let started = Instant::now();
        let process = self.proxy.start(&self.lab, self.control_plane)?;
        let last = SocketAddr::new(cluster_ip(self.changes.services() - 1).into(), 80);
        self.wait_for_pod(&process, last, &BTreeSet::new())?;
        figure("start: to the first packet through a VIP", started.elapsed().as_secs_f64(), "s");
        let used = CpuTime::of(&process)?.seconds();
        figure("start: CPU time of the node's process until then", used, "s");

        self.settle(&process)?;
        Ok(process)
    }

    /// Replaces an endpoint again and again. Returns the CPU time of one change, in seconds, of the node's process and
    /// of the frontend.
    fn one_by_one(
        &mut self,
        process: &Process,
        frontend: Option<&Process>,
        figure: &mut Figures<'_>,
    ) -> Result<[f64; 2]> {
        let mut times = Vec::new();
        let mut used = [0.0; 2];
        for number in 0..CHANGES {
            let mut connection = self.control_plane.connect()?;
            let before = cpu_times(process, frontend)?;
            let mut kernel = self.lab.monitor()?;
            self.changes.replace_one(&mut connection)?;
            let written = Instant::now();
            commit(&mut kernel, DEADLINE).with_context(|| format!("change {number}"))?;
            times.push(written.elapsed());

            self.settle(process)?;
            for (used, more) in used.iter_mut().zip(seconds_since(&before)?) {
                *used += more;
            }
        }
        times.sort_unstable();
        figure("one endpoint replaced: API write to kernel, p50", quantile(&times, 0.5), "s");
        figure("one endpoint replaced: API write to kernel, slowest of 10", quantile(&times, 1.0), "s");
        Ok(used.map(|used| used / CHANGES as f64))
    }

    /// Replaces endpoints while a client opens connections. Returns the CPU time in each second of the node's process
    /// and of the frontend.
    fn under_load(
        &mut self,
        process: &Process,
        frontend: Option<&Process>,
        figure: &mut Figures<'_>,
    ) -> Result<[f64; 2]> {
        let vip = SocketAddr::new(cluster_ip(CONNECTED_SERVICE).into(), 80);
        let connection = self.control_plane.connect()?;
        let before = cpu_times(process, frontend)?;
        let lab = &self.lab;
        let changes = &mut self.changes;
        let (mut times, failed) = thread::scope(|scope| {
            let load = scope.spawn(move || changes.replace_for(connection, LOAD_DURATION));
            let connections = lab.run(|| open_connections(vip, LOAD_DURATION));
            load.join().map_err(|_| anyhow!("a thread has panicked"))??;
            connections
        })?;
        let used = seconds_since(&before)?;

        times.sort_unstable();
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            let what = format!("20 endpoints replaced/s: a new connection, {name}");
            figure(&what, quantile(&times, share), "s");
        }
        figure("20 endpoints replaced/s: connections that failed", failed as f64, "");
        self.settle(process)?;
        Ok(used.map(|used| used / LOAD_DURATION.as_secs_f64()))
    }

    /// Restarts the proxy, and then replaces all endpoints of a Service.
    fn restart(&mut self, process: Process, figure: &mut Figures<'_>) -> Result<Process> {
        process.terminate();
        let generation = self.lab.generation()?;
        let mut connection = self.control_plane.connect()?;
        let started = Instant::now();
        let process = self.proxy.start(&self.lab, self.control_plane)?;
        thread::sleep(CHANGE_AFTER_RESTART);
        let replaced = self.changes.replace_all(&mut connection, RESTART_SERVICE)?;
        let vip = SocketAddr::new(cluster_ip(RESTART_SERVICE).into(), 80);
        self.wait_for_pod(&process, vip, &replaced)?;
        let elapsed = started.elapsed().as_secs_f64();
        figure("restart: until a change made 0.1 s after it is in the kernel", elapsed, "s");

        self.settle(&process)?;
        let transactions = self.lab.generation()?.wrapping_sub(generation);
        figure("restart: transactions, one of them for that change", transactions.into(), "");
        Ok(process)
    }

    /// Removes all rules, and returns the memory that the kernel frees by that, in kB.
    fn remove_rules(&self) -> Result<u64> {
        let with_rules_kb = kernel_memory()?;
        self.lab.netns().output("nft", &["flush", "ruleset"]);
        let mut without_kb = kernel_memory()?;
        // The kernel frees them in the background.
        loop {
            thread::sleep(SETTLED);
            let now_kb = kernel_memory()?;
            if now_kb + MEMORY_NOISE_KB >= without_kb {
                return Ok(with_rules_kb.saturating_sub(now_kb));
            }
            without_kb = now_kb;
        }
    }

    /// Connects to a VIP until a pod answers that was not `replaced`.
    fn wait_for_pod(&self, process: &Process, vip: SocketAddr, replaced: &BTreeSet<Ipv4Addr>) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        self.lab.run(|| {
            while ask(vip).is_none_or(|pod| replaced.contains(&pod)) {
                ensure!(Instant::now() < deadline, "{vip} does not lead to a new pod within {DEADLINE:?}");
                if let Some(status) = process.exited() {
                    bail!("the proxy ended: {status}; see {}", process.log().display());
                }
                thread::sleep(PROBE_INTERVAL);
            }
            Ok(())
        })
    }

    /// Waits until the proxy has done everything.
    fn settle(&self, process: &Process) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            let generation = self.lab.generation()?;
            let before = CpuTime::of(process)?;
            thread::sleep(SETTLED);
            let used = CpuTime::of(process)?.since(&before);
            if self.lab.generation()? == generation && used < IDLE_SECONDS {
                return Ok(());
            }
        }
        bail!("the proxy does not settle within {DEADLINE:?}")
    }
}

/// A pod's answer: its address.
fn greet(mut connection: TcpStream) {
    if let Ok(address) = connection.local_addr()
        && let IpAddr::V4(ip) = address.ip()
    {
        // The client may be gone.
        let _ = connection.write_all(&ip.octets());
    }
}

/// The pod that answers.
fn ask(vip: SocketAddr) -> Option<Ipv4Addr> {
    let mut connection = TcpStream::connect_timeout(&vip, PROBE_TIMEOUT).ok()?;
    connection.set_read_timeout(Some(CONNECT_TIMEOUT)).ok()?;
    let mut address = [0; 4];
    connection.read_exact(&mut address).ok()?;
    Some(address.into())
}

/// Opens connections one after the other, each of which is reset at once. Returns how long each took to open, and how
/// many failed.
fn open_connections(vip: SocketAddr, duration: Duration) -> Result<(Vec<Duration>, usize)> {
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut failed = 0;
    while begun.elapsed() < duration {
        let started = Instant::now();
        match TcpStream::connect_timeout(&vip, CONNECT_TIMEOUT) {
            Ok(connection) => {
                times.push(started.elapsed());
                let reset = libc::linger { l_onoff: 1, l_linger: 0 };
                setsockopt(&connection, sockopt::Linger, &reset).context("let a connection end with a reset")?;
            }
            Err(_) => failed += 1,
        }
        thread::sleep(CONNECTION_INTERVAL);
    }
    Ok((times, failed))
}

/// The CPU time of the node's process and of the frontend so far.
fn cpu_times<'a>(process: &'a Process, frontend: Option<&'a Process>) -> Result<Vec<(&'a Process, CpuTime)>> {
    [Some(process), frontend].into_iter().flatten().map(|process| Ok((process, CpuTime::of(process)?))).collect()
}

/// The CPU time since, in seconds; 0 for a frontend that there is not.
fn seconds_since(before: &[(&Process, CpuTime)]) -> Result<[f64; 2]> {
    let mut seconds = [0.0; 2];
    for (seconds, (process, before)) in seconds.iter_mut().zip(before) {
        *seconds = CpuTime::of(process)?.since(before);
    }
    Ok(seconds)
}

/// In seconds. `times` are sorted.
fn quantile(times: &[Duration], share: f64) -> f64 {
    let rank = (times.len() as f64 * share).ceil() as usize;
    times.get(rank.saturating_sub(1)).map_or(f64::NAN, Duration::as_secs_f64)
}

fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 * 1024.0 / 1e6
}

//! A tenant who multiplies the ports, VIPs, endpoints and source ranges of a Service, or replaces its endpoints again
//! and again: what that costs, compared with the sum of its inputs, and how long another tenant's change waits for it.
//!
//! ```text
//!   tenant, bystander ──▶ API server ──▶ fairlead local ──▶ kernel ◀── connections to the bystander's VIP
//! ```
//!
//! For each product of dimensions (`tenant`) and each size of a doubling series: kernel writes, time, memory of the
//! kernel, and the delay of the bystander's change. The writes per input must not grow by more than [`TOLERANCE`] when
//! the inputs double; else the benchmark fails, and omits the larger sizes of that product.

mod tenant;

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::Process;
use fake_api_server::{ApiServer, Resource};
use serde_json::{Value, json};

use self::tenant::{Dimensions, PRODUCTS, Product, TENANT};
use crate::{
    api_server,
    lab::{Lab, field, stop, unreclaimable},
    manifests::CLUSTER_CIDR,
    report::{Report, Table},
    scale::process::Usage,
    worker::Worker,
};

/// The inputs of the smallest and the largest Service of each product.
const SIZES: [usize; 4] = [500, 1_000, 2_000, 4_000];
/// By how much the writes per input may grow when the inputs double: 2 would be a product of two dimensions, 1 is a
/// sum. What is between is allowed for fixed costs, and for structures of logarithmic cost.
pub(crate) const TOLERANCE: f64 = 1.25;
/// Writes that do not depend on the size: a smaller growth is not compared.
const FIXED_WRITES: f64 = 64.0;
/// Of one Service. The attacks of the past needed 26 s.
const DEADLINE: Duration = Duration::from_secs(240);
/// The bystander's change follows the attack after this time, so that it meets the sync of the attack.
const LEAD: Duration = Duration::from_millis(100);
/// Without a sync, and without CPU time of the backend, for this time, an attack is programmed.
const SETTLED: Duration = Duration::from_secs(2);
/// CPU time of an idle process in that time, in seconds.
const IDLE_SECONDS: f64 = 0.05;
/// The limits of a Service do not help: the mechanism is measured.
const NO_LIMITS: [&str; 6] = [
    "--max-service-vips=4096",
    "--max-service-port-vips=1000000",
    "--max-service-source-ranges=4096",
    "--max-service-port-source-ranges=1000000",
    "--max-service-endpoints=1000000",
    "--max-service-port-endpoints=1000000",
];
const POLL: Duration = Duration::from_millis(10);
const BYSTANDER: (&str, &str) = ("bystander", "web");
const BYSTANDER_VIP: &str = "10.64.0.10";
const BYSTANDER_POD: &str = "10.128.0.10";
const POD_PORT: u16 = 8_080;
const NODE: &str = "node-0";

/// What one Service has cost.
#[derive(Clone, Copy, Debug)]
struct AttackCost {
    inputs: usize,
    writes: f64,
    elapsed: Duration,
    /// The peak of unreclaimable kernel memory, in kB.
    kernel_kb: u64,
    bystander: Duration,
    bystander_transactions: u32,
}

/// A backend under attack.
struct Victim {
    lab: Lab,
    api: ApiServer,
    process: Process,
    /// Owns the thread of the API server.
    _worker: Worker,
}

/// Measures all products on a backend. Returns those whose cost grows faster than their inputs.
pub(crate) fn measure(report: &mut Report, backend: &str) -> Result<Vec<String>> {
    let mut table = Table::new(
        &format!("adversarial tenant, {backend}"),
        &["inputs", "writes", "per input", "ms", "kernel MB", "bystander ms", "bystander transactions"],
    );
    let mut super_linear = Vec::new();
    for Product { name, dimensions } in PRODUCTS {
        let victim = Victim::start(backend)?;
        let mut costs = Vec::new();
        for size in SIZES {
            Report::progress(&format!("{name}, {size}"));
            let cost = victim.attack(dimensions(size)).with_context(|| format!("{name}, {size}"))?;
            table.row(name, &cost.columns());
            costs.push(cost);
            // A larger one could take the memory of the whole machine.
            if growth(&costs).is_some() {
                break;
            }
        }
        super_linear.extend(growth(&costs).map(|growth| {
            format!("{name}: writes per input grow by {growth:.2} when the inputs double (at most {TOLERANCE})")
        }));
        stop(victim.process)?;
    }
    report.table(table);
    Ok(super_linear)
}

/// The largest growth of the writes per input from one size to the next, if it is too large.
fn growth(costs: &[AttackCost]) -> Option<f64> {
    let growths = costs.windows(2).filter_map(|pair| {
        let [small, large] = pair else { return None };
        (large.writes - small.writes > FIXED_WRITES).then(|| large.per_input() / small.per_input())
    });
    growths.max_by(f64::total_cmp).filter(|growth| *growth > TOLERANCE)
}

// === impl AttackCost ===

impl AttackCost {
    fn per_input(&self) -> f64 {
        self.writes.max(1.0) / self.inputs as f64
    }

    fn columns(&self) -> [f64; 7] {
        [
            self.inputs as f64,
            self.writes,
            self.per_input(),
            self.elapsed.as_secs_f64() * 1e3,
            self.kernel_kb as f64 / 1e3,
            self.bystander.as_secs_f64() * 1e3,
            self.bystander_transactions.into(),
        ]
    }
}

// === impl Victim ===

impl Victim {
    fn start(backend: &str) -> Result<Self> {
        let lab = Lab::new()?;
        // All pods are local addresses; VIPs get a route, as a default route would give them.
        lab.netns().ip("route add local 10.128.0.0/9 dev lo\nlink set lo up\nroute add 10.64.0.0/12 dev lo\n");
        let listener = lab.run(|| TcpListener::bind(("0.0.0.0", POD_PORT))).context("listen as a pod")?;
        thread::spawn(move || listener.incoming().flatten().for_each(drop));
        let worker = Worker::start(lab.netns())?;
        let node = json!({
            "metadata": {"name": NODE},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.16.0.11"}]},
        });
        let objects = [(Resource::Node, node), bystander_service(), bystander_slice(&[])];
        let api = api_server::start(&lab, &worker, objects)?;
        let (kubeconfig, state) = (lab.kubeconfig().display().to_string(), lab.path("state").display().to_string());
        let arguments = [
            "local",
            "--backend",
            backend,
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            NODE,
            "--cluster-cidr",
            CLUSTER_CIDR,
            "--state-dir",
            &state,
            "--conntrack-max-per-core=0",
        ];
        let arguments: Vec<_> = arguments.into_iter().chain(NO_LIMITS).collect();
        let process = lab.spawn_program(&arguments, "adversary.log");
        process.wait_for_line("reconciled", 0, DEADLINE);
        Ok(Self { lab, api, process, _worker: worker })
    }

    /// Measures a Service, and removes it again.
    fn attack(&self, dimensions: Dimensions) -> Result<AttackCost> {
        // The Service follows its slices: if it arrived before one of them, its VIPs would be programmed twice.
        self.put([bystander_slice(&[])]);
        self.put_slices(dimensions, 0);
        self.settle()?;
        let (syncs, memory, started) = (self.syncs()?.len(), KernelMemory::start()?, Instant::now());
        self.put([(Resource::Service, dimensions.service())]);
        thread::sleep(LEAD);
        let generation = self.lab.generation()?;
        let changed = Instant::now();
        self.put([bystander_slice(&[BYSTANDER_POD])]);
        self.wait_for_bystander(changed)?;
        let bystander = changed.elapsed();
        let bystander_transactions = self.lab.generation()?.wrapping_sub(generation);
        for flap in 0..dimensions.flaps {
            self.settle()?;
            self.put_slices(dimensions, flap + 1);
        }
        let elapsed = self.settle()?.duration_since(started);
        let (writes, kernel_kb) = (self.syncs()?[syncs..].iter().sum(), memory.peak());

        for (name, _) in dimensions.slices(0) {
            self.api.delete(Resource::EndpointSlice, TENANT.0, &name);
        }
        self.api.delete(Resource::Service, TENANT.0, TENANT.1);
        self.settle()?;
        // Each generation of endpoints is an input of its own.
        let inputs = dimensions.inputs() + dimensions.flaps * dimensions.ports * dimensions.endpoints;
        Ok(AttackCost { inputs, writes, elapsed, kernel_kb, bystander, bystander_transactions })
    }

    fn put_slices(&self, dimensions: Dimensions, generation: usize) {
        let slices = dimensions.slices(generation);
        self.put(slices.into_iter().map(|(_, slice)| (Resource::EndpointSlice, slice)));
    }

    fn put(&self, objects: impl IntoIterator<Item = (Resource, Value)>) {
        for (resource, object) in objects {
            let _version = self.api.put(resource, object);
        }
    }

    /// The kernel writes of each sync so far, from the log.
    fn syncs(&self) -> Result<Vec<f64>> {
        let log = fs::read_to_string(self.process.log()).context("read the log of the backend")?;
        let lines = log.lines().filter(|line| line.contains(" writes="));
        lines.map(|line| field(line, "writes")?.parse().with_context(|| line.to_owned())).collect()
    }

    /// Waits until everything is programmed, and returns the time of the last sync.
    fn settle(&self) -> Result<Instant> {
        let deadline = Instant::now() + DEADLINE;
        let (mut last, mut syncs, mut usage) = (Instant::now(), self.syncs()?.len(), Usage::of(&self.process)?);
        let mut quiet = last;
        while quiet.elapsed() < SETTLED {
            ensure!(Instant::now() < deadline, "not programmed within {DEADLINE:?}");
            ensure!(self.process.exited().is_none(), "the backend ended; see {}", self.process.log().display());
            thread::sleep(POLL);
            let now = self.syncs()?.len();
            if now != syncs {
                (syncs, last) = (now, Instant::now());
                (quiet, usage) = (last, Usage::of(&self.process)?);
            } else if usage.since(&self.process)? > IDLE_SECONDS {
                (quiet, usage) = (Instant::now(), Usage::of(&self.process)?);
            }
        }
        Ok(last)
    }

    fn wait_for_bystander(&self, since: Instant) -> Result<()> {
        let vip: SocketAddr = format!("{BYSTANDER_VIP}:80").parse()?;
        self.lab.run(|| {
            while TcpStream::connect_timeout(&vip, Duration::from_millis(200)).is_err() {
                if since.elapsed() > DEADLINE {
                    bail!("the bystander's change is not programmed within {DEADLINE:?}");
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    }
}

fn bystander_service() -> (Resource, Value) {
    let (namespace, name) = BYSTANDER;
    let service = json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": BYSTANDER_VIP,
            "clusterIPs": [BYSTANDER_VIP],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": POD_PORT}],
        },
    });
    (Resource::Service, service)
}

fn bystander_slice(addresses: &[&str]) -> (Resource, Value) {
    let (namespace, name) = BYSTANDER;
    let endpoints = addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}}));
    let slice = json!({
        "metadata": {
            "namespace": namespace,
            "name": format!("{name}-1"),
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": POD_PORT}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    (Resource::EndpointSlice, slice)
}

/// Samples the unreclaimable memory of the kernel.
struct KernelMemory {
    start_kb: u64,
    peak_kb: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl KernelMemory {
    fn start() -> Result<Self> {
        let start_kb = unreclaimable()?;
        let (peak_kb, done) = (Arc::new(AtomicU64::new(start_kb)), Arc::new(AtomicBool::new(false)));
        let (peak, end) = (peak_kb.clone(), done.clone());
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                peak.fetch_max(unreclaimable().unwrap_or_default(), Ordering::Relaxed);
                thread::sleep(POLL);
            }
        });
        Ok(Self { start_kb, peak_kb, done, thread })
    }

    /// The growth from the start to the peak, in kB.
    fn peak(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        // The panic of the thread, if any, has been printed.
        let _ = self.thread.join();
        self.peak_kb.load(Ordering::Relaxed).saturating_sub(self.start_kb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(writes: [f64; 3]) -> Vec<AttackCost> {
        let cost = |(inputs, writes)| AttackCost {
            inputs,
            writes,
            elapsed: Duration::ZERO,
            kernel_kb: 0,
            bystander: Duration::ZERO,
            bystander_transactions: 0,
        };
        [500, 1_000, 2_000].into_iter().zip(writes).map(cost).collect()
    }

    #[test]
    fn products_are_super_linear_and_sums_are_not() {
        assert_eq!(growth(&costs([250_000.0, 1_000_000.0, 4_000_000.0])), Some(2.0));
        assert_eq!(growth(&costs([600.0, 1_100.0, 2_100.0])), None);
        assert_eq!(growth(&costs([3.0, 9.0, 27.0])), None, "fixed costs");
        assert_eq!(growth(&costs([500.0, 1_000.0, 4_000.0])), Some(2.0), "beyond a limit only");
    }
}

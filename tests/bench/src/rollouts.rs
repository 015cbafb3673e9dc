//! `bench rollouts`: how many connections fail while pods are replaced, and how long each pod waits for its end.
//!
//! ```text
//!   ten pods, one on each node ─▶ for each half: new pods join ─▶ old ones terminate ─▶ wait ─▶ their ports close
//!                                                                                       │
//!                                    none, a sleep of 5 s, or the barrier: GET /drained ┘
//!   1,000 new connections per second from all nodes; the backend of the slow node is stopped for 400 ms of each second
//! ```
//!
//! The cluster is that of a soak: two frontends over TLS, ten nodes with three kinds of backends, synthetic streams.

use std::{
    net::SocketAddr,
    panic::resume_unwind,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Pod, Process, Protocol, http_get,
    manifests::{Endpoint, EndpointState, Service},
    plan::{self, IpFamily},
};
use nix::sys::signal::Signal;

use crate::{
    report::{Goal, Report},
    soak::{
        MAX_STREAM_AGE,
        stage::{self, Stage},
    },
};

/// The cluster IP of the Service that is rolled out, after those of the soak.
const SERVICE: u8 = 30;
const PORT: u16 = 8080;
/// The pods of a node that take turns: the others are endpoints of other Services, or clients.
const GENERATIONS: [usize; 2] = [3, 4];
const CLIENT: usize = 2;
/// New connections of each node in a second.
const NEW_PER_SECOND: u32 = 100;
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(100 * 3600);
/// How long an application answers after its wait.
const GRACE: Duration = Duration::from_millis(50);
/// The usual cure.
const SLEEP: Duration = Duration::from_secs(5);
/// The timeout of the barrier.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the slow node does nothing, and how often.
const STOPPED: Duration = Duration::from_millis(400);
const SLOW_EVERY: Duration = Duration::from_secs(1);

/// What a pod does between its deletion and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Barrier,
    Nothing,
    Sleep,
}

/// The results of rollouts with one kind of wait.
#[derive(Debug, Default)]
struct Rollouts {
    connections: u64,
    failed: usize,
    waits: Vec<Duration>,
}

/// Measures `count` rollouts with the barrier, as many without a wait, and a twentieth of them with a sleep, which
/// take ten seconds each; all with a slow node. Then as many with the barrier again, without one.
pub(crate) fn measure(report: &mut Report, count: usize, streams: u32) -> Result<()> {
    runtime::raise_file_limit()?;
    Report::progress(&format!("starting ten nodes, two frontends and {streams} streams"));
    let stage = Stage::start(streams, MAX_STREAM_AGE)?;
    // Those of the first generation serve already.
    stage.cluster().nodes().iter().for_each(|node| node.pod(GENERATIONS[1]).stop());
    let mut generation = 0;
    let done = AtomicBool::new(false);
    let slow = stage.backends().last().context("a backend")?;
    let result = thread::scope(|scope| {
        scope.spawn(|| stop_now_and_then(slow, &done));
        let waits = [Wait::Barrier, Wait::Nothing, Wait::Sleep];
        let result = measure_each(report, &stage, &waits, ("one slow node", count), &mut generation);
        done.store(true, Relaxed);
        result
    });
    result?;
    measure_each(report, &stage, &[Wait::Barrier], ("no slow node", count), &mut generation)?;
    stage.stop()
}

fn measure_each(
    report: &mut Report,
    stage: &Stage,
    waits: &[Wait],
    (nodes, count): (&str, usize),
    generation: &mut usize,
) -> Result<()> {
    for wait in waits.iter().copied() {
        let rollouts = if wait == Wait::Sleep { count.div_ceil(20) } else { count };
        let what = format!("{rollouts} rollouts, {nodes}, {}", wait.name());
        Report::progress(&what);
        let result = run(stage, wait, rollouts, generation)?;
        let goal = if wait == Wait::Barrier { Goal::AtMost(0.0) } else { Goal::None };
        report.add(&format!("{what}: failed connections"), result.failed as f64, "", goal);
        report.add(&format!("{what}: all connections"), result.connections as f64, "", Goal::None);
        if wait == Wait::Barrier {
            report.spread(&format!("{what}: wait of a pod"), result.waits, Goal::AtMost(300.0));
        }
    }
    Ok(())
}

fn run(stage: &Stage, wait: Wait, rollouts: usize, generation: &mut usize) -> Result<Rollouts> {
    let nodes = stage.cluster().nodes();
    // The generation of each node's pod.
    let mut current = vec![*generation; nodes.len()];
    let all = |current: &[usize]| -> Vec<_> {
        nodes.iter().zip(current).map(|(node, generation)| node.pod(GENERATIONS[*generation])).collect()
    };
    let apply = |ready: &[&Pod], terminating: &[&Pod]| {
        let states = [(ready, EndpointState::Ready), (terminating, EndpointState::Draining)];
        let endpoints = states
            .into_iter()
            .flat_map(|(pods, state)| pods.iter().map(move |pod| Endpoint::of(pod).state(state)).collect::<Vec<_>>());
        let service = Service::new("rollout").cluster_ip(plan::cluster_ip(SERVICE)).port(Protocol::Tcp, 80, PORT);
        stage.apply(&service.endpoints(endpoints));
    };
    apply(&all(&current), &[]);
    let vip = stage::vip(SERVICE);
    // All nodes have this state, also the slow one.
    thread::sleep(SLEEP);
    for node in nodes {
        ensure!(node.pod(CLIENT).client().tcp(vip).is_ok(), "{} does not serve the Service", node.name);
    }
    let churns: Vec<_> =
        nodes.iter().map(|node| node.pod(CLIENT).client().churn(Protocol::Tcp, vip, NEW_PER_SECOND, FOREVER)).collect();
    let mut result = Rollouts::default();
    for _ in 0..rollouts {
        for half in [0, 1] {
            let replaced: Vec<_> = (0..nodes.len()).filter(|node| node % 2 == half).collect();
            let old: Vec<_> = replaced.iter().map(|node| nodes[*node].pod(GENERATIONS[current[*node]])).collect();
            replaced.iter().for_each(|node| current[*node] = 1 - current[*node]);
            for node in &replaced {
                nodes[*node].pod(GENERATIONS[current[*node]]).serve(&[PORT]);
            }
            let new = all(&current);
            apply(&[&new[..], &old[..]].concat(), &[]);
            // The pods ask before the EndpointSlice says that they terminate.
            let waited = thread::scope(|scope| {
                let waiting: Vec<_> = replaced
                    .iter()
                    .zip(&old)
                    .map(|(node, pod)| {
                        let host = SocketAddr::new(nodes[*node].address.ip(IpFamily::V4), 24_256);
                        scope.spawn(move || wait.of(pod, host))
                    })
                    .collect();
                apply(&new, &old);
                waiting
                    .into_iter()
                    .map(|wait| wait.join().unwrap_or_else(|panic| resume_unwind(panic)))
                    .collect::<Result<Vec<_>>>()
            })?;
            result.waits.extend(waited);
            thread::sleep(GRACE);
            old.iter().for_each(|pod| pod.stop());
            apply(&new, &[]);
        }
        *generation = 1 - *generation;
    }
    for churn in churns {
        let report = churn.finish();
        result.connections += report.attempts;
        result.failed += report.failures.len();
    }
    Ok(result)
}

impl Wait {
    fn name(self) -> &'static str {
        match self {
            Self::Barrier => "the barrier",
            Self::Nothing => "no wait",
            Self::Sleep => "sleep 5",
        }
    }

    /// Waits as a pod, and returns how long that took. `host`: the health port of its node.
    fn of(self, pod: &Pod, host: SocketAddr) -> Result<Duration> {
        let begun = Instant::now();
        match self {
            Self::Nothing => {}
            Self::Sleep => thread::sleep(SLEEP),
            Self::Barrier => {
                let path = format!("/drained?timeout={}s", TIMEOUT.as_secs());
                let response =
                    http_get(&pod.netns, host, &path, TIMEOUT * 2).context("ask whether a pod is drained")?;
                ensure!(response.status == 200, "{}: {}", pod.name, response.body);
            }
        }
        Ok(begun.elapsed())
    }
}

/// Stops a process for a while, again and again, until `done`.
fn stop_now_and_then(process: &Process, done: &AtomicBool) {
    while !done.load(Relaxed) {
        process.signal(Signal::SIGSTOP);
        thread::sleep(STOPPED);
        process.signal(Signal::SIGCONT);
        thread::sleep(SLOW_EVERY - STOPPED);
    }
}

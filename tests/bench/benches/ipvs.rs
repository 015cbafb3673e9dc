//! Benchmarks of the IPVS backend in user-mode-linux: a cold start, one change and a restart, compared with `ipvsadm
//! -R`, `ipset restore` and `ip -batch` for the same objects. With `json`, the last line is for programs.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{
    env,
    fs::{self, File},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use backend::{
    Backend, NodeState,
    testing::{ProgramAll as _, Stack, synthetic, transition},
};
use backend_ipvs::{Ipvs, Settings};
use e2e::uml;
use iptables::Variant;
use proto::model::{Endpoint, PoolClass};
use serde_json::{Value, json};

const SERVICES: u32 = 5_000;
const ENDPOINTS: u32 = 5;
const DEADLINE: Duration = Duration::from_secs(15 * 60);

fn main() {
    // `cargo nextest` runs this with `--list` to find tests.
    if env::args().any(|argument| argument == "--list") {
        return;
    }
    if !uml::is_guest() {
        let this = env::current_exe().unwrap();
        let guest = uml::run(&this, &["--bench"], DEADLINE);
        assert_eq!(guest.status, 0);
        if env::args().any(|argument| argument == "json") {
            println!("{}", guest.shared.unwrap());
        }
        return;
    }
    uml::load(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let measurements = runtime.block_on(measure());
    let json = json!({ "backend": "ipvs", "measurements": measurements });
    fs::write(uml::shared_file().unwrap(), json.to_string()).unwrap();
}

fn backend() -> Ipvs {
    backend_ipvs::open(Settings { iptables: Some(Variant::Legacy).into(), ..Settings::default() }).unwrap()
}

/// Returns the time, and the number of writes.
async fn reconcile(what: &str, state: &NodeState) -> (Duration, usize) {
    let started = Instant::now();
    let applied = backend().reconcile_all(state).await.unwrap();
    let elapsed = started.elapsed();
    println!("{what}: {:.2} s, {} writes", elapsed.as_secs_f64(), applied.writes);
    (elapsed, applied.writes)
}

async fn measure() -> Vec<Value> {
    println!("{SERVICES} services x {ENDPOINTS} endpoints, IPv4");
    let state = synthetic(SERVICES, ENDPOINTS, Stack::V4);
    // Rules, sets, settings and the device, which the tools below do not create.
    reconcile("an empty state", &synthetic(0, 0, Stack::V4)).await;
    let (cold, _) = reconcile("cold load", &state).await;
    let (restart, restart_writes) = reconcile("restart, nothing changed", &state).await;
    let messages = change(&state).await;
    reconcile("change reverted", &state).await;

    let saved = save();
    backend().cleanup().await.unwrap();
    reconcile("an empty state", &synthetic(0, 0, Stack::V4)).await;
    let mut tools = Duration::ZERO;
    for (program, arguments, path) in &saved {
        let started = Instant::now();
        let mut command = Command::new(program);
        let status = command.args(arguments).stdin(File::open(path).unwrap()).status().unwrap();
        let elapsed = started.elapsed();
        println!("{program} {}: {:.2} s, {status}", arguments.join(" "), elapsed.as_secs_f64());
        if *program != "ip" {
            tools += elapsed;
        }
    }
    println!("cold load : ipvsadm -R and ipset restore = 1 : {:.1}", tools.as_secs_f64() / cold.as_secs_f64());

    vec![
        measured("cold load", cold.as_secs_f64(), "s", None),
        measured("cold load, to ipvsadm -R with ipset restore", cold.div_duration_f64(tools), "x", Some(0.1)),
        measured("one endpoint replaced, messages", messages as f64, "", Some(4.0)),
        measured("restart, nothing changed", restart.as_secs_f64(), "s", Some(2.0)),
        measured("restart, nothing changed: writes", restart_writes as f64, "", Some(0.0)),
    ]
}

fn measured(what: &str, value: f64, unit: &str, goal: Option<f64>) -> Value {
    json!({ "services": SERVICES, "what": what, "value": value, "unit": unit, "goal": goal })
}

/// One endpoint of one service is replaced. Returns the number of writes.
async fn change(state: &NodeState) -> usize {
    let mut backend = backend();
    backend.reconcile_all(state).await.unwrap();
    let (mut state, mut target) = (state.clone(), state.clone());
    let key = state.service_ports().keys().nth(2_500).unwrap().clone();
    let pool = state.service_port(&key).unwrap().cluster.v4.clone();
    let id = proto::model::PoolId { key, class: PoolClass::Cluster, family: proto::model::IpFamily::V4 };
    let new = Endpoint::new([10, 250, 0, 1].into(), pool[0].port);
    let operations = [proto::model::Operation::ChangePool { pool: id, add: vec![new], remove: vec![pool[0]] }];
    backend::testing::apply(&mut target, operations);
    let changes = transition(&mut state, &target);
    let started = Instant::now();
    let applied = backend.apply_all(&state, &changes).await.unwrap();
    let elapsed = started.elapsed();
    println!(
        "one endpoint replaced: {:.2} ms, {} writes, each one message",
        elapsed.as_secs_f64() * 1e3,
        applied.writes
    );
    applied.writes
}

/// The input with which the tools would create the same objects.
fn save() -> Vec<(&'static str, Vec<&'static str>, String)> {
    let directory = env::temp_dir();
    let mut saved = Vec::new();
    for (program, save, load, name) in
        [("ipset", vec!["save"], vec!["-exist", "restore"], "sets"), ("ipvsadm", vec!["-Sn"], vec!["-R"], "servers")]
    {
        let path = directory.join(name).display().to_string();
        let output = File::create(&path).unwrap();
        assert!(Command::new(program).args(save).stdout(Stdio::from(output)).status().unwrap().success());
        saved.push((program, load, path));
    }
    let addresses = Command::new("ip").args(["-oneline", "address", "show", "dev", "kube-ipvs0"]).output().unwrap();
    let addresses = String::from_utf8(addresses.stdout).unwrap();
    let addresses = addresses.lines().filter_map(|line| line.split_whitespace().nth(3));
    let batch: String = addresses.map(|address| format!("address add {address} dev kube-ipvs0\n")).collect();
    let path = directory.join("addresses").display().to_string();
    fs::write(&path, batch).unwrap();
    saved.push(("ip", vec!["-batch", "-"], path));
    saved
}

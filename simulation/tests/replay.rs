//! Some seeds, and that a seed gives the same trace each time. `make simulate` runs more of them.

use std::process::Command;

/// Enough for each fault to occur.
const SEEDS: u64 = 24;

fn simulate(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn some_clusters_converge_and_restart_without_writes() {
    let (success, text) = simulate(&["--from", "1", "--seeds", &SEEDS.to_string(), "--seconds", "100"]);
    assert!(success, "{text}");
}

#[test]
fn seed_gives_the_same_trace_each_time() {
    let trace = || simulate(&["--seed", "7"]).1;
    let first = trace();
    assert!(first.lines().count() > 100, "{first}");
    assert_eq!(first, trace());
}

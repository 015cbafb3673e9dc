//! Runs the demo as `make demo` does. It checks its own results.

use std::process::{Command, Stdio};

#[test]
fn nft_is_shown() {
    shows("nftables");
}

#[test]
fn iptables_is_shown() {
    shows("iptables");
}

/// In user-mode-linux.
#[test]
fn ipvs_is_shown() {
    shows("ipvs");
}

#[track_caller]
fn shows(backend: &str) {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    let Ok(output) = demo.arg(backend).stdin(Stdio::null()).output() else { panic!("the demo does not start") };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    // It ran to its end.
    assert!(stdout.contains("All as expected"), "{stdout}");
}

#[test]
fn an_unknown_backend_is_named_in_the_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_demo")).arg("none").output().expect("start the demo");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("\"none\""), "{stderr}");
}

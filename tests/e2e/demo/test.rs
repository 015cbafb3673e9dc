//! Runs the demo as `make demo` does. It checks its own results.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// The most lines of the output: with the line of `make demo` itself, all of it is on one screen.
const MAX_LINES: usize = 59;

#[test]
fn nft_is_shown() {
    shows("nftables", "table ip fairlead1 {");
}

#[test]
fn iptables_is_shown() {
    shows("iptables", "KUBE-SERVICES");
}

/// In user-mode-linux.
#[test]
fn ipvs_is_shown() {
    shows("ipvs", "IP Virtual Server");
}

#[track_caller]
fn shows(backend: &str, kernel_object: &str) {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
    let Ok(output) = demo.arg(backend).stdin(Stdio::null()).output() else { panic!("the demo does not start") };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);

    // It ran to its end, and tells the story on one screen.
    assert!(stdout.contains("All as expected"), "{stdout}");
    let lines = stdout.lines().count();
    assert!(lines <= MAX_LINES, "{lines} lines\n{stdout}");
    for command in ["fairlead status", "fairlead trace"] {
        assert!(stdout.contains(command), "{command} is missing\n{stdout}");
    }

    // The rest is in the file that the last line names.
    let path = stdout.lines().last().and_then(|line| line.split_once(": ")).map(|(_, path)| Path::new(path));
    let Some(path) = path else { panic!("no file is named\n{stdout}") };
    let details = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(fs::remove_file(path).is_ok(), "{} cannot be removed", path.display());
    for text in ["fairlead services", "default/web:http/tcp", kernel_object] {
        assert!(details.contains(text), "{text} is missing\n{details}");
    }
}

#[test]
fn an_unknown_backend_is_named_in_the_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_demo")).arg("none").output().expect("start the demo");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("\"none\""), "{stderr}");
}

//! Fairlead as a kubectl plugin, and the completion script of bash.

use std::{env, ffi::OsString, os::unix::fs::symlink, process::Command};

use e2e::fairlead;
use tempfile::TempDir;

/// A directory with the plugin, installed as in docs/tools.md.
fn installed() -> TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let program = fairlead().get_program().to_owned();
    symlink(program, home.path().join("kubectl-fairlead")).expect("a link");
    home
}

fn kubectl(home: &TempDir, arguments: &[&str]) -> String {
    let mut path = OsString::from(home.path());
    path.push(":");
    path.push(env::var_os("PATH").expect("PATH"));
    let output = Command::new("kubectl").args(arguments).env("HOME", home.path()).env("PATH", path).output();
    let output = output.expect("kubectl starts (`make setup` installs it)");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn kubectl_runs_the_plugin() {
    let home = installed();
    let plugins = kubectl(&home, &["plugin", "list"]);
    let link = home.path().join("kubectl-fairlead");
    assert!(plugins.lines().any(|line| line == link.to_str().expect("UTF-8")), "{plugins}");
    let help = kubectl(&home, &["fairlead", "--help"]);
    assert!(help.contains("Usage: ") && help.contains("status"), "{help}");
    let help = kubectl(&home, &["fairlead", "status", "--help"]);
    assert!(help.contains(" status "), "{help}");
    let error = kubectl(&home, &["fairlead", "status", "--frontend", "kubernetes:a/b"]);
    assert!(error.contains("needs --discovery-kubeconfig"), "{error}");
}

#[test]
fn bash_completes_with_the_script() {
    let home = installed();
    let script = fairlead().args(["completion", "bash"]).output().expect("the program starts");
    let file = home.path().join("script");
    std::fs::write(&file, script.stdout).expect("a file");
    let script = ". \"$0\" && COMP_WORDS=(fairlead stat) COMP_CWORD=1 && _fairlead fairlead stat fairlead && echo \"${COMPREPLY[@]}\"";
    let answer = Command::new("bash").args(["-c", script]).arg(&file).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "status\n", "{}", String::from_utf8_lossy(&answer.stderr));
}

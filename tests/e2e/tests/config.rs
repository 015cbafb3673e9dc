//! Configuration files of the binary: precedence, and conversion of kube-proxy's file.

use std::{fs, process::Output};

use e2e::fairlead;
use tempfile::TempDir;

fn file(text: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.yaml");
    fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("UTF-8").to_owned();
    (directory, path)
}

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = fairlead();
    command.args(arguments).envs(environment.iter().copied());
    command.output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// This frontend address requires another flag, so the program names the address in an error and exits before it
/// changes anything.
#[test]
fn flags_override_the_environment_and_the_file() {
    let (_directory, config) = file(
        "apiVersion: fairlead.io/v1alpha1\nkind: BackendConfiguration\nbackend: nft\nfrontend: ['kubernetes:of/file']\n",
    );
    let error = |flags: &[&str], environment: &[(&str, &str)]| {
        let output = run(&[&["backend", "configured", "--config", &config], flags].concat(), environment);
        assert!(!output.status.success());
        stderr(&output)
    };
    let variable = [("FAIRLEAD_FRONTEND", "kubernetes:of/environment")];
    assert!(error(&[], &[]).contains("--frontend kubernetes:of/file needs"), "{}", error(&[], &[]));
    assert!(error(&[], &variable).contains("--frontend kubernetes:of/environment needs"));
    assert!(error(&["--frontend", "kubernetes:of/flag"], &variable).contains("--frontend kubernetes:of/flag needs"));
}

#[test]
fn kube_proxy_configuration_is_converted() {
    let kube_proxys = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                       oomScoreAdj: -5\nipvs: {syncPeriod: 30s}\n";
    let (_directory, config) = file(kube_proxys);
    for (process, kind) in [("local", "LocalConfiguration"), ("backend", "BackendConfiguration")] {
        let output = run(&["config", "convert", &config, "--for", process], &[]);
        let ours = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && ours.contains("oomScoreAdj: -5"), "{ours}{}", stderr(&output));
        assert!(stderr(&output).contains("ipvs.syncPeriod: \"30s\" has no effect"), "{}", stderr(&output));
        let (_directory, ours) = file(&ours);
        let output = run(&["config", "validate", &ours], &[]);
        assert!(String::from_utf8_lossy(&output.stdout).contains(kind), "{}", stderr(&output));
    }
    let output = run(&["config", "convert", &config, "--for", "chart"], &[]);
    let values = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && values.contains("mode: ipvs") && values.contains("  oomScoreAdj: -5"),
        "{values}"
    );
    let (_directory, config) = file(&kube_proxys.replace("-5", "-5000"));
    let output = run(&["config", "convert", &config], &[]);
    assert!(
        !output.status.success() && stderr(&output).contains("oomScoreAdj: invalid value '-5000'"),
        "{}",
        stderr(&output)
    );
}

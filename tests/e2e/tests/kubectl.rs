//! Fairlead as a kubectl plugin, and the completion script of bash.

use std::{
    env,
    ffi::OsString,
    fs::{self, Permissions},
    net::{SocketAddr, TcpStream},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use e2e::{Authority, Backend, Cluster, Deployment, Netns, Process, eventually, fairlead, manifests::Service, plan};
use serde_json::json;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(20);

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

/// Writes a program into the directory of the plugin.
fn write_program(home: &TempDir, name: &str, text: &str) {
    let path = home.path().join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("permissions");
}

/// The exit code of the plugin and what it prints. It finds the `kubectl` of its directory first.
fn plugin(home: &TempDir, netns: &Netns, arguments: &[&str]) -> (Option<i32>, String) {
    let search = format!("{}:{}", home.path().display(), env::var("PATH").expect("PATH"));
    let mut plugin = Command::new(home.path().join("kubectl-fairlead"));
    for (name, _) in fairlead().get_envs() {
        plugin.env_remove(name);
    }
    plugin.args(arguments).env("PATH", search).env("FAIRLEAD_NAMESPACE", "network");
    let output = netns.finish(&mut plugin);
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), printed)
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
    let error = kubectl(&home, &["fairlead", "endpoints", "kube-system/kube-dns"]);
    assert!(error.contains("set it to the name of a Node"), "{error}");
}

/// Answers as kubectl does, with what is in its directory, and forwards to a frontend.
const KUBECTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit
case "$*" in
    "--namespace network get endpointslices"*) cat slices.json ;;
    "--namespace network get configmap fairlead-ca "*) cat ca.crt ;;
    "--namespace network create token fairlead-operator --audience fairlead "*) echo token; touch created ;;
    "--namespace network port-forward pod/frontend-a "*)
        echo $$ > forward.pid
        echo "Forwarding from $(cat address) -> 7600"
        exec sleep 60 ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

#[test]
fn plugin_reaches_a_frontend_through_kubectl() {
    let home = installed();
    let path = |name: &str| home.path().join(name);
    let write = |name: &str, text: &str| fs::write(path(name), text).expect("a file");
    let authority = Authority::new("authority", &[]);
    let sign = |file: &str, hosts: &[&str]| {
        let (certificate, key) = authority.sign(file, "people", hosts);
        write(&format!("{file}.crt"), &certificate);
        write(&format!("{file}.key"), &key);
    };
    sign("frontend", &["fairlead.network.svc"]);
    sign("ops", &[]);
    let address = SocketAddr::new(plan::OUTSIDE.v4.into(), 7600).to_string();
    write("address", &address);
    write("ca.crt", &authority.pem());
    write("slices.json", r#"{"items": [{"endpoints": [{"targetRef": {"kind": "Pod", "name": "frontend-a"}}]}]}"#);
    write_program(&home, "kubectl", KUBECTL);

    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    cluster.manifests(&path("manifests"));
    let mut frontend = fairlead();
    frontend.args(["frontend", "--metrics", "none", "--admin-identity", "ops", "--listen", &address]);
    frontend.arg("--manifests").arg(path("manifests")).arg("--tls-client-ca").arg(path("ca.crt"));
    frontend.arg("--tls-cert").arg(path("frontend.crt")).arg("--tls-key").arg(path("frontend.key"));
    let frontend = Process::spawn(cluster.outside(), frontend, &path("frontend.log"));
    frontend.wait_for_line("every kind of object has been listed", 0, TIMEOUT);
    frontend.wait_for_line("listening", 0, TIMEOUT);

    let plugin = |arguments: &[&str]| plugin(&home, cluster.outside(), arguments).1;
    let (certificate, key) = (path("ops.crt").display().to_string(), path("ops.key").display().to_string());
    let printed = plugin(&["status", "--tls-cert", &certificate, "--tls-key", &key]);
    assert!(printed.contains("programmed on "), "{printed}");
    assert!(!path("created").exists(), "a certificate is given");
    let forward = fs::read_to_string(path("forward.pid")).expect("a forward");
    let process = Path::new("/proc").join(forward.trim()).join("cwd");
    eventually("the forward ends", TIMEOUT, || fs::read_link(&process).err());

    // This frontend reviews no tokens.
    let printed = plugin(&["status"]);
    assert!(printed.contains("this frontend accepts no tokens") && path("created").exists(), "{printed}");

    write("slices.json", r#"{"items": []}"#);
    let printed = plugin(&["status"]);
    assert!(printed.contains("Service network/fairlead has no ready frontend"), "{printed}");
}

/// Answers as kubectl does: lists the pods of a file, and runs commands in a pod by the program that has its name.
const KUBECTL_EXEC: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit
case "$*" in
    "--namespace network get pods "*) cat pods.json ;;
    "--namespace network exec fairlead-backend-"*" --container backend -- fairlead connections "*)
        pod=$4
        shift 8
        [ -x "./$pod" ] || { echo 'error: container not found ("backend")' >&2; exit 1; }
        exec "./$pod" "$@" ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"#;

/// The list of the pods of backends on node-a, node-b and node-c.
fn backend_pods() -> String {
    let pods = ["a", "b", "c"].map(|node| {
        let owner = json!({ "kind": "DaemonSet", "name": "fairlead-backend" });
        let metadata = json!({ "name": format!("fairlead-backend-{node}"), "ownerReferences": [owner] });
        json!({
            "metadata": metadata,
            "spec": { "nodeName": format!("node-{node}") },
            "status": { "phase": "Running" },
        })
    });
    json!({ "items": pods }).to_string()
}

/// The lines of a table with one space between cells.
fn lines(printed: &str) -> Vec<String> {
    printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn connections_of_all_nodes_are_added() {
    let deployment = Deployment::start(Backend::Nft, |cluster| {
        vec![Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).pods([cluster.pod("pod-b-1")])]
    });
    let cluster = deployment.cluster();
    let home = installed();
    write_program(&home, "kubectl", KUBECTL_EXEC);
    fs::write(home.path().join("pods.json"), backend_pods()).expect("a file");
    for letter in ['a', 'b'] {
        let node = cluster.node(letter);
        let program = fairlead().get_program().display().to_string();
        let state = deployment.state(node).display().to_string();
        let script = format!(
            "#!/bin/sh\nexec env NODE_NAME={} FAIRLEAD_STATE_DIR={state} ip netns exec {} {program} \"$@\"\n",
            node.name,
            node.netns.name()
        );
        write_program(&home, &format!("fairlead-backend-{letter}"), &script);
    }

    let web = SocketAddr::new(plan::cluster_ip(1).v4.into(), 80);
    let connect = |pod: &str| cluster.pod(pod).netns.run(|| TcpStream::connect(web).expect("a connection"));
    let from_a = [(); 3].map(|()| connect("pod-a-1"));
    let from_b = [(); 4].map(|()| connect("pod-b-2"));
    // A backend writes its state file after the kernel.
    let (code, printed) = eventually("two nodes answer", TIMEOUT, || {
        let (code, printed) = plugin(&home, cluster.outside(), &["connections", "default/web"]);
        printed.contains(" connections are tracked on 2 of 3 nodes").then_some((code, printed))
    });

    assert_eq!(code, Some(1), "{printed}");
    let lines = lines(&printed);
    let position = |wanted: &str| lines.iter().position(|line| line == wanted).unwrap_or_else(|| panic!("{printed}"));
    let translated = position("default/web:tcp-80/tcp 10.244.2.11:8080 - 7 7.0 0 0 - -");
    let arriving = position("default/web:tcp-80/tcp 10.244.2.11:8080 - 3 - 0 0 - -");
    assert!(translated < arriving, "{printed}");
    position(r#"fairlead: node node-c is missing: error: container not found ("backend")"#);
    drop((from_a, from_b));

    fs::remove_file(home.path().join("fairlead-backend-a")).expect("a program");
    fs::remove_file(home.path().join("fairlead-backend-b")).expect("a program");
    let (code, printed) = plugin(&home, cluster.outside(), &["connections"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("no node has answered"), "{printed}");
}

#[test]
fn bash_completes_with_the_script() {
    let home = installed();
    let script = fairlead().args(["completion", "bash"]).output().expect("the program starts");
    let file = home.path().join("script");
    fs::write(&file, script.stdout).expect("a file");
    let script = ". \"$0\" && COMP_WORDS=(fairlead stat) COMP_CWORD=1 && _fairlead fairlead stat fairlead && echo \"${COMPREPLY[@]}\"";
    let answer = Command::new("bash").args(["-c", script]).arg(&file).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "status\n", "{}", String::from_utf8_lossy(&answer.stderr));
}

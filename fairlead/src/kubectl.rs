//! The kubectl plugin: reaches the frontends of a cluster through kubectl, which uses the kubeconfig of its user.
//!
//! ```text
//!   get endpointslices ──▶ ready frontends ──▶ port-forward to each ──▶ --frontend
//!   get configmap NAME-ca ──▶ --tls-ca         create token NAME-operator ──▶ --token-file
//! ```
//!
//! A command about the kernels of all nodes runs in the pods of backends (`kubectl exec`), because no server of
//! Fairlead shows a tenant who connects to whom.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsStr,
    fs::File,
    io::Write as _,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Error, Result, bail};
use futures::future;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::cli::FrontendAddressArgs;

/// How long kubectl may take to forward a port.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwarded ports, and files in memory, which a command needs until it ends.
#[derive(Debug, Default)]
pub(crate) struct KubectlConnection {
    /// kubectl, which forwards ports of this machine to frontends until this is dropped.
    forwards: Vec<Child>,
    /// Only this process and its user can open them, by [`KubectlConnection::file`].
    files: Vec<File>,
    /// Pods of frontends to which no port is forwarded.
    pub(crate) unreachable: Vec<(String, Error)>,
}

/// The names of the chart's objects.
#[derive(Debug)]
struct Installation {
    namespace: String,
    /// The chart's `fullnameOverride`, by default `fairlead`.
    name: String,
}

/// The pod of a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackendPod {
    /// The name of its node.
    pub(crate) node: String,
    pub(crate) name: String,
    /// Whether it is in phase `Running`.
    pub(crate) is_running: bool,
}

/// One run of kubectl.
#[derive(Debug)]
struct KubectlCall {
    arguments: Vec<String>,
    /// What to check if it fails.
    hint: String,
}

/// Whether kubectl has started this process as its plugin, by the path of the program.
fn is_plugin(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_name()) == Some(OsStr::new("kubectl-fairlead"))
}

/// Whether this process is the plugin.
pub(crate) fn is_plugin_process() -> bool {
    is_plugin(env::args_os().next().as_deref())
}

/// The pods of all backends, by node.
///
/// # Errors
/// When kubectl fails, or there are none.
pub(crate) async fn backend_pods() -> Result<Vec<BackendPod>> {
    let installation = Installation::from_environment();
    let pods = installation.backends_in(&installation.backends().output().await?)?;
    if pods.is_empty() {
        let Installation { namespace, name } = installation;
        bail!(
            "DaemonSet {namespace}/{name}-backend has no pod: check FAIRLEAD_NAMESPACE and FAIRLEAD_NAME \
             (fullnameOverride of the chart), and `kubectl -n {namespace} get pods`"
        );
    }
    Ok(pods)
}

/// What a command prints that runs in the pod of a backend. Killed when the result is dropped.
///
/// # Errors
/// When kubectl or the command fails, with what they print on standard error.
pub(crate) async fn exec(pod: &BackendPod, command: &[&str]) -> Result<Vec<u8>> {
    let call = Installation::from_environment().exec(&pod.name, command);
    let output = call.command().output().await.context("cannot start kubectl: install it in PATH")?;
    if !output.status.success() {
        // It names the right that is missing.
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// Lets a command reach the ready frontends; fails if there is none to which a port is forwarded. Credentials that are
/// given are kept.
pub(crate) async fn connect(args: &mut FrontendAddressArgs) -> Result<KubectlConnection> {
    let installation = Installation::from_environment();
    let pods = ready_pods(&installation.frontends().output().await?)?;
    if pods.is_empty() {
        let Installation { namespace, name } = installation;
        bail!(
            "Service {namespace}/{name} has no ready frontend: check FAIRLEAD_NAMESPACE and FAIRLEAD_NAME \
             (fullnameOverride of the chart), and `kubectl -n {namespace} get pods`"
        );
    }

    let mut connection = KubectlConnection::default();
    if args.tls_ca.is_none() {
        args.tls_ca = Some(connection.file(&installation.authorities().output().await?)?);
    }
    if args.token_file.is_none() && args.tls_cert.is_none() {
        args.token_file = Some(connection.file(&installation.token().output().await?)?);
    }

    let forwards = future::join_all(pods.iter().map(|pod| forward(installation.forward(pod)))).await;
    args.addresses.clear();
    for (pod, forwarded) in pods.into_iter().zip(forwards) {
        match forwarded {
            Ok((address, process)) => {
                args.addresses.push(format!("https://{address}"));
                connection.forwards.push(process);
            }
            Err(error) => connection.unreachable.push((format!("pod {pod}"), error)),
        }
    }
    if connection.forwards.is_empty() {
        let (_, error) = connection.unreachable.swap_remove(0);
        return Err(error);
    }

    args.frontend_name.get_or_insert_with(|| installation.server_name());
    Ok(connection)
}

/// The pods of ready endpoints in a list of EndpointSlices. A pod is in a slice of each of its IP families.
fn ready_pods(list: &[u8]) -> Result<BTreeSet<String>> {
    let list: Value = serde_json::from_slice(list).context("kubectl printed no list of EndpointSlices")?;
    let slices = list["items"].as_array().into_iter().flatten();
    let endpoints = slices.filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
    let pods = ready.map(|endpoint| &endpoint["targetRef"]).filter(|target| target["kind"] == "Pod");
    Ok(pods.filter_map(|pod| pod["name"].as_str().map(str::to_owned)).collect())
}

/// The address in the first line of `kubectl port-forward`.
fn local_address(line: &str) -> Option<SocketAddr> {
    let (address, _port) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    address.parse().ok()
}

impl KubectlConnection {
    /// The path of a new file in memory.
    fn file(&mut self, content: &[u8]) -> Result<PathBuf> {
        let file = memfd_create("kubectl", MFdFlags::MFD_CLOEXEC).context("cannot create a file in memory")?;
        let mut file = File::from(file);
        file.write_all(content).context("cannot write a file in memory")?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.files.push(file);
        Ok(path.into())
    }
}

/// The address of this machine that kubectl forwards, until the process is dropped.
async fn forward(call: KubectlCall) -> Result<(SocketAddr, Child)> {
    let mut process = call.spawn()?;

    let mut line = String::new();
    // The pipe stays open as long as the process: kubectl would end when it cannot write to it.
    if let Some(output) = &mut process.stdout {
        let mut output = BufReader::new(output);
        let first = timeout(FORWARD_TIMEOUT, output.read_line(&mut line)).await;
        let too_late = || call.failed(&format!("did not forward a port within {} s", FORWARD_TIMEOUT.as_secs()));
        first.with_context(too_late)?.context("cannot read from kubectl")?;
    }

    let address = local_address(&line).with_context(|| call.failed("did not forward a port"))?;
    Ok((address, process))
}

fn variable_or(name: &str, default: &str) -> String {
    match env::var(name) {
        Ok(value) if !value.is_empty() => value,
        _ => default.to_owned(),
    }
}

impl Installation {
    fn from_environment() -> Self {
        Self {
            namespace: variable_or("FAIRLEAD_NAMESPACE", "kube-system"),
            name: variable_or("FAIRLEAD_NAME", "fairlead"),
        }
    }

    /// The name in the certificate of frontends.
    fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    fn frontends(&self) -> KubectlCall {
        let Self { namespace, name } = self;
        let selector = format!("kubernetes.io/service-name={name}");
        let arguments = ["get", "endpointslices.discovery.k8s.io", "--selector", &selector, "--output", "json"];
        self.call(&arguments, format!("you need `list` on endpointslices.discovery.k8s.io in {namespace}"))
    }

    fn authorities(&self) -> KubectlCall {
        let arguments = ["get", "configmap", &format!("{}-ca", self.name), "--output", r"jsonpath={.data.ca\.crt}"];
        let namespace = &self.namespace;
        let hint = format!(
            "you need `get` on configmaps in {namespace}; unless the chart has tls.mode selfSigned, save the CA of the \
             frontends and set --tls-ca"
        );
        self.call(&arguments, hint)
    }

    fn token(&self) -> KubectlCall {
        let account = format!("{}-operator", self.name);
        let hint = format!(
            "you need `create` on serviceaccounts/token for {account} in {}, and the chart identity: token and \
             operators.serviceAccount: true; or set --tls-cert and --tls-key",
            self.namespace
        );
        self.call(&["create", "token", &account, "--audience", "fairlead", "--duration", "10m"], hint)
    }

    fn backends(&self) -> KubectlCall {
        let selector = "app.kubernetes.io/part-of=fairlead,app.kubernetes.io/component=backend";
        let arguments = ["get", "pods", "--selector", selector, "--output", "json"];
        self.call(&arguments, format!("you need `list` on pods in {}", self.namespace))
    }

    /// The pods of this installation's DaemonSet in a list of pods.
    fn backends_in(&self, list: &[u8]) -> Result<Vec<BackendPod>> {
        let list: Value = serde_json::from_slice(list).context("kubectl printed no list of pods")?;
        let owner = format!("{}-backend", self.name);
        let mut pods = Vec::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            let is_own = pod["metadata"]["ownerReferences"][0]["name"] == *owner;
            let node = pod["spec"]["nodeName"].as_str();
            let name = pod["metadata"]["name"].as_str();
            if let (true, Some(node), Some(name)) = (is_own, node, name) {
                let is_running = pod["status"]["phase"] == "Running";
                pods.push(BackendPod { node: node.to_owned(), name: name.to_owned(), is_running });
            }
        }
        pods.sort_unstable();
        Ok(pods)
    }

    fn exec(&self, pod: &str, command: &[&str]) -> KubectlCall {
        let arguments = [&["exec", pod, "--container", "backend", "--"], command].concat();
        self.call(&arguments, format!("you need `create` on pods/exec in {}", self.namespace))
    }

    fn forward(&self, pod: &str) -> KubectlCall {
        let arguments = ["port-forward", &format!("pod/{pod}"), ":grpc", "--address", "127.0.0.1"];
        self.call(&arguments, format!("you need `get` on pods and `create` on pods/portforward in {}", self.namespace))
    }

    fn call(&self, arguments: &[&str], hint: String) -> KubectlCall {
        let arguments = [&["--namespace", self.namespace.as_str()], arguments].concat();
        KubectlCall { arguments: arguments.into_iter().map(str::to_owned).collect(), hint }
    }
}

impl KubectlCall {
    /// Starts kubectl. It prints its errors itself, asks for passwords, and is killed when the result is dropped.
    fn spawn(&self) -> Result<Child> {
        let mut command = self.command();
        command.stdout(Stdio::piped());
        command.spawn().context("cannot start kubectl: install it in PATH, or set --frontend")
    }

    fn command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.arguments).kill_on_drop(true);
        command
    }

    /// What kubectl prints.
    async fn output(&self) -> Result<Vec<u8>> {
        let output = self.spawn()?.wait_with_output().await.context("cannot read from kubectl")?;
        if !output.status.success() || output.stdout.is_empty() {
            bail!("{}", self.failed("failed or printed nothing"));
        }
        Ok(output.stdout)
    }

    fn failed(&self, how: &str) -> String {
        format!("`kubectl {}` {how}: {}", self.arguments.join(" "), self.hint)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plugin_is_known_by_its_name() {
        for (program, expected) in [
            ("/usr/local/bin/kubectl-fairlead", true),
            ("kubectl-fairlead", true),
            ("/kubectl-fairlead/fairlead", false),
            ("", false),
        ] {
            assert_eq!(is_plugin(Some(OsStr::new(program))), expected, "{program}");
        }
        assert!(!is_plugin(None));
    }

    #[test]
    fn frontends_are_the_pods_of_ready_endpoints() {
        let endpoint = |kind: &str, name: &str, ready: Value| {
            let target = json!({"kind": kind, "name": name});
            json!({"targetRef": target, "conditions": {"ready": ready}})
        };
        let list = json!({"items": [
            {"endpoints": [endpoint("Pod", "b", true.into()), endpoint("Pod", "a", Value::Null)]},
            {"endpoints": [endpoint("Pod", "a", true.into()), endpoint("Pod", "c", false.into())]},
            {"endpoints": [endpoint("Node", "n", true.into()), {"addresses": ["192.0.2.1"]}]},
            {"endpoints": null},
        ]});
        let pods = ready_pods(list.to_string().as_bytes()).unwrap();
        assert_eq!(pods.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert!(ready_pods(br#"{"items": []}"#).unwrap().is_empty());
        ready_pods(b"error").unwrap_err();
    }

    #[test]
    fn backends_are_the_pods_of_the_daemon_set() {
        let pod = |name: &str, owner: &str, phase: &str| {
            let owners = json!([{ "kind": "DaemonSet", "name": owner }]);
            let metadata = json!({ "name": name, "ownerReferences": owners });
            let spec = json!({ "nodeName": format!("node-of-{name}") });
            json!({ "metadata": metadata, "spec": spec, "status": { "phase": phase } })
        };
        let list = json!({ "items": [
            pod("b", "fl-backend", "Running"),
            pod("a", "fl-backend", "Running"),
            pod("c", "fl-backend", "Pending"),
            pod("d", "other-backend", "Running"),
            { "metadata": { "name": "e" } },
        ] });
        let installation = Installation { namespace: "network".into(), name: "fl".into() };
        let pods = installation.backends_in(list.to_string().as_bytes()).unwrap();
        let seen: Vec<_> = pods.iter().map(|pod| (&*pod.node, &*pod.name, pod.is_running)).collect();
        assert_eq!(seen, [("node-of-a", "a", true), ("node-of-b", "b", true), ("node-of-c", "c", false)]);
        installation.backends_in(b"error").unwrap_err();
    }

    #[test]
    fn local_port_is_read_from_the_first_line() {
        let address = "127.0.0.1:40123".parse().unwrap();
        assert_eq!(local_address("Forwarding from 127.0.0.1:40123 -> 7600\n"), Some(address));
        for line in ["", "Forwarding from 127.0.0.1 -> 7600", "Handling connection for 40123"] {
            assert_eq!(local_address(line), None, "{line}");
        }
    }

    #[test]
    fn calls_name_the_objects_of_the_installation() {
        let of = |namespace: &str, name: &str| Installation { namespace: namespace.into(), name: name.into() };
        let installation = of("network", "fl");
        let line = |call: KubectlCall| call.arguments.join(" ");
        assert_eq!(
            line(installation.frontends()),
            "--namespace network get endpointslices.discovery.k8s.io --selector kubernetes.io/service-name=fl \
             --output json"
        );
        assert_eq!(
            line(installation.authorities()),
            r"--namespace network get configmap fl-ca --output jsonpath={.data.ca\.crt}"
        );
        assert_eq!(
            line(installation.token()),
            "--namespace network create token fl-operator --audience fairlead --duration 10m"
        );
        assert_eq!(
            line(installation.forward("fl-frontend-x")),
            "--namespace network port-forward pod/fl-frontend-x :grpc --address 127.0.0.1"
        );
        assert_eq!(
            line(installation.exec("fl-backend-x", &["fairlead", "connections"])),
            "--namespace network exec fl-backend-x --container backend -- fairlead connections"
        );
        assert_eq!(installation.server_name(), "fl.network.svc");
        assert!(installation.token().failed("failed").contains("`create` on serviceaccounts/token for fl-operator"));
    }

    #[test]
    fn files_in_memory_are_read_by_path() {
        let mut connection = KubectlConnection::default();
        let path = connection.file(b"token").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"token");
        assert_eq!(std::fs::read(path).unwrap(), b"token", "each time from the start");
    }
}

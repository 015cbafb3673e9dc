//! A proxy under comparison: a node in network namespaces of its own, and the process that programs its kernel.

use std::{
    fmt, fs,
    net::TcpListener,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use e2e::{Netns, Process, fairlead, plan};
use iptables::{SavedRules, Variant, block_on, save_variants};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::{
    api::{Api, Marker, node_name},
    cluster::{Cluster, PODS},
    packets::Peers,
    question::{Answer, Question, answers, of_marker},
};

/// Timeout for one change.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two reads of the rules, each of which starts two programs with iptables.
const POLL: Duration = Duration::from_millis(30);

/// A program with a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProxyKind {
    pub(crate) program: Program,
    pub(crate) mode: Mode,
}

/// Who programs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    Fairlead,
    KubeProxy,
}

/// How the kernel is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Nftables,
    Iptables(Variant),
}

/// The namespaces of a node, and what is around it.
#[derive(Debug)]
enum NodeNetns {
    /// Interfaces and routes, for a trace.
    Alone(e2e::Cluster),
    /// Everything that answers packets.
    WithPeers(Peers),
}

/// How questions are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By evaluating the rules, as `fairlead trace` does.
    Trace,
    /// By packets.
    Packets,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    process: Process,
    node: NodeNetns,
    _directory: TempDir,
}

// === impl ProxyKind ===

impl ProxyKind {
    /// All that are compared; those of kube-proxy if there is one.
    pub(crate) fn all(has_kube_proxy: bool) -> Vec<Self> {
        let fairlead = [Mode::Nftables, Mode::Iptables(Variant::Nft), Mode::Iptables(Variant::Legacy)];
        let fairlead = fairlead.map(|mode| Self { program: Program::Fairlead, mode });
        let kube_proxy = [Mode::Nftables, Mode::Iptables(Variant::Nft)];
        let kube_proxy = kube_proxy.map(|mode| Self { program: Program::KubeProxy, mode });
        fairlead.into_iter().chain(kube_proxy.into_iter().filter(|_| has_kube_proxy)).collect()
    }
}

impl fmt::Display for ProxyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.program {
            Program::Fairlead => "Fairlead",
            Program::KubeProxy => "kube-proxy",
        })?;
        match self.mode {
            Mode::Nftables => f.write_str(" nftables"),
            Mode::Iptables(variant) => write!(f, " iptables-{variant}"),
        }
    }
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy on a node of its own. `runtime` serves the API to it.
    pub(crate) fn start(
        kind: ProxyKind,
        method: Method,
        api: &Api,
        runtime: &Handle,
        kube_proxy: Option<&Path>,
    ) -> Result<Self> {
        let node = match method {
            Method::Trace => NodeNetns::Alone(e2e::Cluster::builder().nodes(1).pods_per_node(2).ports(&[]).start()),
            Method::Packets => NodeNetns::WithPeers(Peers::start(PODS)),
        };
        let netns = node.netns();
        let directory = tempfile::tempdir().context("make a temporary directory")?;
        let listener = netns.run(|| TcpListener::bind("127.0.0.1:0")).context("bind the API server")?;
        let kubeconfig = directory.path().join("kubeconfig");
        let address = listener.local_addr().context("get the address of the API server")?;
        fs::write(&kubeconfig, fake_api_server::kubeconfig(address)).context("write a kubeconfig")?;
        api.server().listen(listener, runtime).context("start the API server")?;
        let command = match (kind.program, kube_proxy) {
            (Program::Fairlead, _) => of_fairlead(kind.mode, &kubeconfig, directory.path()),
            (Program::KubeProxy, Some(program)) => of_kube_proxy(program, kind.mode, &kubeconfig, directory.path())?,
            (Program::KubeProxy, None) => bail!("no kube-proxy"),
        };
        let process = Process::spawn(netns, command, &directory.path().join("log"));
        Ok(Self { kind, process, node, _directory: directory })
    }

    /// Waits until a change has been programmed, and all before it.
    pub(crate) fn wait(&self, marker: &Marker) -> Result<()> {
        let (questions, expected): (Vec<_>, Vec<_>) = of_marker(marker).into_iter().unzip();
        let begun = Instant::now();
        while self.traced(&questions)? != expected {
            if let Some(status) = self.process.exited() {
                bail!("{} has ended: {status}\n{}", self.kind, self.log());
            }
            if begun.elapsed() > DEADLINE {
                bail!("{} has not programmed a change within {DEADLINE:?}\n{}", self.kind, self.log());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// What happens to packets; `None`: a question that cannot be asked.
    pub(crate) fn ask(
        &self,
        cluster: &Cluster,
        questions: &[Question],
        expected: &[Answer],
    ) -> Result<Vec<Option<Answer>>> {
        match &self.node {
            NodeNetns::Alone(_) => Ok(self.traced(questions)?.into_iter().map(Some).collect()),
            NodeNetns::WithPeers(peers) => Ok(peers.answers(cluster, questions, expected)),
        }
    }

    /// What its rules do.
    fn traced(&self, questions: &[Question]) -> Result<Vec<Answer>> {
        self.node.netns().run(|| answers(&self.saved()?, questions))
    }

    /// The rules of iptables, in the namespace of the calling thread.
    fn saved(&self) -> Result<Vec<SavedRules>> {
        match self.kind.mode {
            Mode::Nftables => Ok(Vec::new()),
            Mode::Iptables(variant) => block_on(save_variants(&[variant])),
        }
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let lines = self.process.lines_since(0);
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

// === impl NodeNetns ===

impl NodeNetns {
    fn netns(&self) -> &Netns {
        match self {
            Self::Alone(cluster) => &cluster.node('a').netns,
            Self::WithPeers(peers) => &peers.cluster().node('a').netns,
        }
    }
}

fn of_fairlead(mode: Mode, kubeconfig: &Path, directory: &Path) -> Command {
    let mut command = fairlead();
    command.args(["local", "--node-name", &node_name(1), "--cluster-cidr", &plan::CLUSTER_CIDRS.join(",")]);
    command.arg("--kubeconfig").arg(kubeconfig).arg("--state-dir").arg(directory.join("state"));
    // A random cluster has nothing in common with the one before.
    command.args(["--max-loss=100%", "--conntrack-max-per-core=0"]);
    match mode {
        Mode::Nftables => command.arg("--backend=nftables"),
        Mode::Iptables(variant) => command.arg("--backend=iptables").arg(format!("--iptables-variant={variant}")),
    };
    command
}

fn of_kube_proxy(program: &Path, mode: Mode, kubeconfig: &Path, directory: &Path) -> Result<Command> {
    let mode = match mode {
        Mode::Nftables => "nftables",
        Mode::Iptables(_) => "iptables",
    };
    // Without the delays between syncs; node ports as Fairlead serves them.
    let config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
         clientConnection: {{kubeconfig: {}, contentType: application/json}}\nhostnameOverride: {}\n\
         clusterCIDR: {}\nnodePortAddresses: [primary]\nconntrack: {{maxPerCore: 0, min: 0}}\n\
         iptables: {{localhostNodePorts: false, minSyncPeriod: 1ms, syncPeriod: 1h}}\n\
         nftables: {{minSyncPeriod: 1ms, syncPeriod: 1h}}\n",
        kubeconfig.display(),
        node_name(1),
        plan::CLUSTER_CIDRS.join(","),
    );
    let path = directory.join("kube-proxy.yaml");
    fs::write(&path, config).context("write the configuration of kube-proxy")?;
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg("--config").arg(path);
    Ok(command)
}

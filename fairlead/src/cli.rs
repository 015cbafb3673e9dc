//! The command line: what can be asked for, with its help.

use std::{net::IpAddr, path::PathBuf, str::FromStr};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use proto::model::{Family, PerFamily};
use runtime::LogFormat;

/// Where a frontend listens, and where everybody looks for it, unless told otherwise.
const DEFAULT_ADDRESS: &str = "unix:/run/fairlead/frontend.sock";

/// A Service proxy for Kubernetes: one frontend decides, one backend per node programs the kernel.
#[derive(Debug, Parser)]
#[command(name = "fairlead", version, max_term_width = 110, after_help = "\
Examples:
  fairlead local --backend nft --manifests ./manifests --node-name node-a    everything in one process
  fairlead frontend --kubeconfig ~/.kube/config                              decide, for all nodes
  fairlead backend nft --node-name node-a --cluster-cidr 10.244.0.0/16       program this node
  fairlead services --node node-a                                            what a node is to do
  fairlead watch --node node-a                                               follow what it is told")]
pub struct Cli {
    /// How log lines look: text or json.
    #[arg(long, global = true, env = "FAIRLEAD_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// What is logged: a level, or directives such as `info,fairlead_agent=debug`.
    #[arg(long = "log", global = true, env = "FAIRLEAD_LOG", default_value = "info", value_name = "FILTER")]
    pub log_filter: String,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watches the cluster, decides what each node must do, and streams it.
    Frontend(FrontendArgs),
    /// Follows a frontend and programs this node's kernel.
    Backend(BackendArgs),
    /// Frontend and backend in one process, without a network between them.
    Local(LocalArgs),
    /// Follows a node's stream and prints each change.
    Watch(ViewArgs),
    /// Lists the service ports that a node is told to serve.
    Services(ViewArgs),
    /// Removes everything that a backend has put into this node's kernel, and nothing else.
    Cleanup(CleanupArgs),
}

#[derive(Debug, Args)]
pub struct FrontendArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Where to listen: `unix:/PATH` or HOST:PORT. May be given several times.
    #[arg(long, default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub listen: Vec<String>,

    /// Listen on TCP without TLS: everybody who can reach the port can read every node's view.
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Debug, Args)]
pub struct BackendArgs {
    #[command(subcommand)]
    pub backend: BackendCommand,
}

#[derive(Debug, Subcommand)]
pub enum BackendCommand {
    /// nftables, over netlink; no program is run.
    Nft(BackendNftArgs),
}

#[derive(Debug, Args)]
pub struct BackendNftArgs {
    #[command(flatten)]
    pub frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub traffic: TrafficArgs,
}

#[derive(Debug, Args)]
pub struct LocalArgs {
    /// What programs the kernel.
    #[arg(long, value_enum)]
    pub backend: BackendName,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub traffic: TrafficArgs,
}

#[derive(Debug, Args)]
pub struct ViewArgs {
    #[command(flatten)]
    pub frontend: FrontendAddressArgs,

    /// Whose view: Node metadata.name. The default is this machine's host name.
    #[arg(long, visible_alias = "node-name", value_name = "NAME")]
    pub node: Option<String>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Whose objects to remove.
    #[arg(long, value_enum)]
    pub backend: BackendName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum BackendName {
    /// nftables
    Nft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For scripts: one document (`services`), or one a line (`watch`).
    Json,
}

/// Where the cluster's objects come from. Without either flag: the API server of the cluster that this runs in.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct SourceArgs {
    /// A directory of Kubernetes manifests (Service, EndpointSlice, Node); edits take effect at once.
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,

    /// A kubeconfig file that leads to the API server.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct FrontendAddressArgs {
    /// Where the frontend listens: `unix:/PATH` or `http://HOST:PORT`. Several are tried in turn.
    #[arg(long = "frontend", env = "FAIRLEAD_FRONTEND", default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// Where the last committed state is kept, so that a node that reboots alone comes up with it.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub state_dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct TrafficArgs {
    /// Where pod addresses are allocated from: one CIDR, or one of each family, comma-separated. Traffic to cluster IPs
    /// from outside it is masqueraded; under external policy Local, pods reach every endpoint.
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    pub cluster_cidr: Vec<IpNet>,

    /// Masquerade all traffic to cluster IPs.
    #[arg(long)]
    pub masquerade_all: bool,

    /// The bit of the packet mark that says "masquerade this" (0 to 31).
    #[arg(long, default_value_t = 14, value_name = "BIT", value_parser = clap::value_parser!(u8).range(0..32))]
    pub masquerade_bit: u8,

    /// Where node ports answer: `primary` (the node's first address of each family), or CIDRs of local addresses,
    /// comma-separated. Never on loopback.
    #[arg(long, default_value = "primary", value_name = "primary|CIDR,...")]
    pub nodeport_addresses: NodePortAddressesArg,
}

/// The value of `--nodeport-addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddressesArg {
    Primary,
    Cidrs(Vec<IpNet>),
}

impl FromStr for NodePortAddressesArg {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        if value == "primary" {
            return Ok(Self::Primary);
        }
        let cidr = |text: &str| {
            let text = text.trim();
            let hint = "expected `primary` alone, or CIDRs such as 192.168.0.0/16";
            text.parse::<IpNet>().map(|cidr| cidr.trunc()).map_err(|_| format!("{text:?} is no CIDR: {hint}"))
        };
        value.split(',').map(cidr).collect::<Result<_, _>>().map(Self::Cidrs)
    }
}

impl TrafficArgs {
    /// `--cluster-cidr` by family.
    pub fn cluster_cidrs(&self) -> Result<PerFamily<Option<IpNet>>> {
        let mut by_family = PerFamily::<Option<IpNet>>::default();
        for cidr in &self.cluster_cidr {
            let family = Family::of(&cidr.addr());
            if let Some(first) = by_family[family].replace(cidr.trunc()) {
                bail!("--cluster-cidr: {first} and {cidr} are both {family}; give at most one of each family");
            }
        }
        Ok(by_family)
    }
}

impl NodeArgs {
    /// `--node-name`, or this machine's host name.
    pub fn name(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

impl ViewArgs {
    /// `--node`, or this machine's host name.
    pub fn node_name(&self) -> Result<String> {
        node_name(self.node.as_deref())
    }
}

/// A node's name as Kubernetes has it: trimmed, in lower case.
fn node_name(given: Option<&str>) -> Result<String> {
    let name = match given {
        Some(name) => name.trim().to_lowercase(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .context("cannot read this machine's host name; give --node-name")?
            .trim()
            .to_lowercase(),
    };
    if name.is_empty() {
        bail!("the node's name is empty: give --node-name");
    }
    Ok(name)
}

/// A listening address of the frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Unix(PathBuf),
    Tcp(String),
}

impl FrontendArgs {
    /// `--listen`, checked against `--insecure`.
    pub fn addresses(&self) -> Result<Vec<ListenAddress>> {
        let address = |text: &String| match text.strip_prefix("unix:") {
            Some(path) => Ok(ListenAddress::Unix(path.into())),
            None if self.insecure || is_loopback(text) => Ok(ListenAddress::Tcp(text.clone())),
            None => bail!(
                "--listen {text}: a TCP port without TLS is open to everybody who can reach it. \
                 Use unix:/PATH or a loopback address, or say --insecure"
            ),
        };
        self.listen.iter().map(address).collect()
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<std::net::SocketAddr>().is_ok_and(|address| IpAddr::is_loopback(&address.ip()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, String> {
        Cli::try_parse_from(std::iter::once("fairlead").chain(args.iter().copied()))
            .map_err(|error| error.to_string())
    }

    fn traffic(args: &[&str]) -> TrafficArgs {
        let args = [&["local", "--backend", "nft", "--manifests", "m"], args].concat();
        match parse(&args).unwrap().command {
            Command::Local(local) => local.traffic,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_dual_stack_pair_of_cluster_cidrs_is_taken_apart() {
        let cidrs = traffic(&["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56"]).cluster_cidrs().unwrap();
        assert_eq!(cidrs.v4, Some("10.244.0.0/16".parse().unwrap()));
        assert_eq!(cidrs.v6, Some("fd00:10:244::/56".parse().unwrap()));
        let error = traffic(&["--cluster-cidr", "10.0.0.0/8,11.0.0.0/8"]).cluster_cidrs().unwrap_err();
        assert!(error.to_string().contains("both IPv4"), "{error}");
    }

    #[test]
    fn nodeport_addresses_are_primary_or_cidrs() {
        assert_eq!(traffic(&[]).nodeport_addresses, NodePortAddressesArg::Primary);
        let cidrs = traffic(&["--nodeport-addresses", "192.168.1.7/16, fd00::/8"]).nodeport_addresses;
        let expected = ["192.168.0.0/16", "fd00::/8"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs, NodePortAddressesArg::Cidrs(expected));
        let error =
            parse(&["local", "--backend", "nft", "--nodeport-addresses", "primary,10.0.0.0/8"]).unwrap_err();
        assert!(error.contains("`primary` alone"), "{error}");
    }

    #[test]
    fn plaintext_tcp_beyond_loopback_must_be_asked_for() {
        let addresses = |args: &[&str]| match parse(&[&["frontend", "--manifests", "m"], args].concat()) {
            Ok(Cli { command: Command::Frontend(frontend), .. }) => frontend.addresses(),
            other => panic!("{other:?}"),
        };
        assert_eq!(addresses(&[]).unwrap(), [ListenAddress::Unix("/run/fairlead/frontend.sock".into())]);
        assert!(addresses(&["--listen", "127.0.0.1:7600"]).is_ok());
        let error = addresses(&["--listen", "0.0.0.0:7600"]).unwrap_err();
        assert!(error.to_string().contains("say --insecure"), "{error}");
        assert!(addresses(&["--listen", "0.0.0.0:7600", "--insecure"]).is_ok());
    }

    #[test]
    fn the_sources_exclude_each_other() {
        assert!(parse(&["frontend", "--manifests", "m", "--kubeconfig", "k"]).is_err());
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!(node_name(Some(" Node-A ")).unwrap(), "node-a");
        assert!(node_name(Some(" ")).unwrap_err().to_string().contains("--node-name"));
    }
}

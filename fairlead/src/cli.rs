//! The command line: what can be asked for, with its help.

use std::{net::SocketAddr, path::PathBuf};

use agent::{Credentials, Grpc, GrpcOptions};
use anyhow::{Context as _, Result, bail};
use backend_nft::NodePortAddresses;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use runtime::LogFormat;

/// Where a frontend listens, and where everybody looks for it, unless told otherwise.
const DEFAULT_ADDRESS: &str = "unix:/run/fairlead/frontend.sock";

/// A Service proxy for Kubernetes: one frontend decides, one backend per node programs the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "fairlead",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  fairlead local --backend nft --manifests ./manifests --node-name node-a    everything in one process
  fairlead frontend --kubeconfig ~/.kube/config                              decide, for all nodes
  fairlead backend nft --node-name node-a --cluster-cidr 10.244.0.0/16       program this node
  fairlead services --node node-a                                            what a node is to do
  fairlead watch --node node-a                                               follow what it is told"
)]
pub(crate) struct Cli {
    /// How log lines look: text or json.
    #[arg(long, global = true, env = "FAIRLEAD_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,

    /// What is logged: a level, or directives such as `info,fairlead_agent=debug`. The default is `info`, and `warn` for
    /// commands that print something.
    #[arg(long = "log", global = true, env = "FAIRLEAD_LOG", value_name = "FILTER")]
    pub(crate) log_filter: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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
pub(crate) struct FrontendArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// Where to listen: `unix:/PATH` or HOST:PORT. May be given several times.
    #[arg(long, default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,

    /// Listen on TCP without TLS: everybody who can reach the port can read every node's view.
    #[arg(long)]
    pub(crate) insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    #[command(subcommand)]
    pub(crate) backend: BackendCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// nftables, over netlink; no program is run.
    Nft(BackendNftArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BackendNftArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LocalArgs {
    /// What programs the kernel.
    #[arg(long, value_enum)]
    pub(crate) backend: BackendName,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Whose view: Node metadata.name. The default is this machine's host name.
    #[arg(long, visible_alias = "node-name", value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// Whose objects to remove.
    #[arg(long, value_enum)]
    pub(crate) backend: BackendName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BackendName {
    /// nftables
    Nft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For scripts: one document (`services`), or one a line (`watch`).
    Json,
}

/// Where the cluster's objects come from. Without either flag: the API server of the cluster that this runs in.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct SourceArgs {
    /// A directory of Kubernetes manifests (Service, EndpointSlice, Node); edits take effect at once.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// A kubeconfig file that leads to the API server. The default is the environment's KUBECONFIG, if there is one.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FrontendAddressArgs {
    /// Where the frontend listens: `unix:/PATH`, `https://HOST:PORT` (through something that ends TLS) or
    /// `http://HOST:PORT`. Several are tried in turn.
    #[arg(long = "frontend", env = "FAIRLEAD_FRONTEND", default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) addresses: Vec<String>,

    /// Certificates (PEM) of the authorities that may have signed the frontend's; for https.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// This node's certificate (PEM); for https.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key (PEM) of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A ServiceAccount token that is bound to this node; for https.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Where the last committed state is kept, so that a node that reboots alone comes up with it.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Where pod addresses are allocated from: one CIDR, or one of each family, comma-separated. Traffic to cluster IPs
    /// from outside it is masqueraded; under external policy Local, pods reach every endpoint.
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    pub(crate) cluster_cidr: Vec<IpNet>,

    /// Masquerade all traffic to cluster IPs.
    #[arg(long)]
    pub(crate) masquerade_all: bool,

    /// The bit of the packet mark that says "masquerade this" (0 to 31).
    #[arg(long, default_value_t = 14, value_name = "BIT", value_parser = clap::value_parser!(u8).range(0..32))]
    pub(crate) masquerade_bit: u8,

    /// Where node ports answer: `primary` (the node's first address of each family), or CIDRs of local addresses,
    /// comma-separated. Never on loopback.
    #[arg(long, default_value = "primary", value_name = "primary|CIDR,...", value_parser = nodeport_addresses)]
    pub(crate) nodeport_addresses: NodePortAddresses,
}

/// Reads `--nodeport-addresses`.
fn nodeport_addresses(value: &str) -> Result<NodePortAddresses, String> {
    if value == "primary" {
        return Ok(NodePortAddresses::Primary);
    }
    let cidr = |text: &str| {
        let text = text.trim();
        let hint = "expected `primary` alone, or CIDRs such as 192.168.0.0/16";
        text.parse::<IpNet>().map(|cidr| cidr.trunc()).map_err(|_| format!("{text:?} is no CIDR: {hint}"))
    };
    value.split(',').map(cidr).collect::<Result<_, _>>().map(NodePortAddresses::Cidrs)
}

impl SourceArgs {
    /// `--kubeconfig`, or else the environment's. Not left to the parser: a variable must not exclude `--manifests`.
    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        let environment =
            || std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.kubeconfig.clone().or_else(environment)
    }
}

impl FrontendAddressArgs {
    /// Where to connect, and with what.
    pub(crate) fn grpc(&self) -> Result<Grpc> {
        let Self { addresses, tls_ca, tls_cert, tls_key, token_file } = self.clone();
        let credentials =
            Credentials { authorities: tls_ca, identity: tls_cert.zip(tls_key), token: token_file };
        Grpc::new(GrpcOptions { endpoints: addresses, credentials })
    }
}

impl NodeArgs {
    /// `--node-name`, or this machine's host name.
    pub(crate) fn name(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

impl ViewArgs {
    /// `--node`, or this machine's host name.
    pub(crate) fn node_name(&self) -> Result<String> {
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

impl FrontendArgs {
    /// `--listen`, checked against `--insecure`.
    pub(crate) fn addresses(&self) -> Result<&[String]> {
        let refused =
            |address: &&String| !(self.insecure || address.starts_with("unix:") || is_loopback(address));
        if let Some(address) = self.listen.iter().find(refused) {
            bail!(
                "--listen {address}: a TCP port without TLS is open to everybody who can reach it. \
                 Use unix:/PATH or a loopback address, or say --insecure"
            );
        }
        Ok(&self.listen)
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
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
        let pair = ["10.244.0.0/16", "fd00:10:244::/56"];
        let expected = pair.map(|cidr| cidr.parse().unwrap());
        assert_eq!(traffic(&["--cluster-cidr", &pair.join(",")]).cluster_cidr, expected);
    }

    #[test]
    fn nodeport_addresses_are_primary_or_cidrs() {
        assert_eq!(traffic(&[]).nodeport_addresses, NodePortAddresses::Primary);
        let cidrs = traffic(&["--nodeport-addresses", "192.168.1.7/16, fd00::/8"]).nodeport_addresses;
        let expected = ["192.168.0.0/16", "fd00::/8"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs, NodePortAddresses::Cidrs(expected));
        let error =
            parse(&["local", "--backend", "nft", "--nodeport-addresses", "primary,10.0.0.0/8"]).unwrap_err();
        assert!(error.contains("`primary` alone"), "{error}");
    }

    #[test]
    fn plaintext_tcp_beyond_loopback_must_be_asked_for() {
        let addresses = |args: &[&str]| match parse(&[&["frontend", "--manifests", "m"], args].concat()) {
            Ok(Cli { command: Command::Frontend(frontend), .. }) => {
                frontend.addresses().map(<[String]>::to_vec).map_err(|error| error.to_string())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(addresses(&[]).unwrap(), ["unix:/run/fairlead/frontend.sock"]);
        assert!(addresses(&["--listen", "127.0.0.1:7600"]).is_ok());
        let error = addresses(&["--listen", "0.0.0.0:7600"]).unwrap_err();
        assert!(error.contains("say --insecure"), "{error}");
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

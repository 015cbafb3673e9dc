//! The command line: what can be asked for, with its help.

mod bundle;
mod check;
mod cleanup;
mod completion;
mod config;
mod conformance;
mod connectivity;
mod conntrack;
mod diff;
mod effective;
mod endpoints;
mod frontend;
mod iptables;
mod ipvs;
mod node;
mod observe;
mod services;
mod status;
mod trace;
mod traffic;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use runtime::LogFormat;

pub(crate) use self::{
    bundle::BundleArgs,
    check::CheckArgs,
    cleanup::{CleanupArgs, Predecessor, WhoseArgs},
    completion::{CompletionArgs, Shell},
    config::{ConfigArgs, ConfigCommand, ConvertArgs, Process, ValidateArgs},
    conformance::ConformanceArgs,
    connectivity::TestArgs,
    conntrack::ConntrackArgs,
    diff::DiffArgs,
    effective::Effective,
    endpoints::{EndpointsArgs, ServiceName},
    frontend::{ClusterArgs, FrontendArgs, SourceArgs},
    iptables::{IptablesArgs, VariantArgs},
    ipvs::{ExcludeArgs, IpvsArgs},
    node::{FrontendAddressArgs, HereArgs, NodeArgs},
    observe::{HttpAddress, ObserveArgs},
    services::ServicesArgs,
    status::{SHOWN_NODES, StatusArgs},
    trace::{Origin, TraceArgs},
    traffic::TrafficArgs,
};

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
  fairlead services --kernel                                                 what this node's IPVS does, and what drains
  fairlead endpoints default/web --node node-a                               which endpoints it uses, and why not others
  fairlead diff --cluster-cidr 10.244.0.0/16                                 what is not in this node's kernel as it should be
  fairlead watch --node node-a                                               follow what it is told
  fairlead trace 10.244.1.9 10.96.0.10:80                                    what this node's rules do with a packet
  fairlead check --pre                                                       is this node fit for Fairlead?
  fairlead status --wait 30s                                                 wait until all nodes have everything"
)]
pub(crate) struct Cli {
    /// How log lines look: text or json.
    #[arg(long, global = true, env = "FAIRLEAD_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,

    /// What is logged: a level, or directives such as `info,fairlead_backend=debug`. The default is `info`, and `warn` for
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
    /// Lists the service ports that a node is told to serve, or what is in this node's kernel.
    Services(ServicesArgs),
    /// Lists every endpoint of a Service: whether a node is told to use it, and why not.
    Endpoints(EndpointsArgs),
    /// Says what a backend would write into this node's kernel, or what kube-proxy's rules do otherwise. Writes nothing.
    Diff(DiffArgs),
    /// Asks all frontends for all nodes: who is connected, who is behind and for how long, what could not be programmed.
    Status(StatusArgs),
    /// Looks at all that Services depend on, on this node and around it, and says what is wrong and what to do.
    Check(CheckArgs),
    /// Follows a packet through the rules in this node's kernel, whoever wrote them, and says what happens to it and why.
    Trace(TraceArgs),
    /// Plays a frontend to a backend that somebody has written, and says what it does wrong.
    Conformance(ConformanceArgs),
    /// Connects from this node to everything that it serves, and says whether that is as the frontend says.
    Test(TestArgs),
    /// Puts everything that helps to find out what is wrong with this node into one file, without secrets.
    Bundle(BundleArgs),
    /// Removes everything that a backend, or kube-proxy, has put into this node's kernel, and nothing else.
    Cleanup(CleanupArgs),
    /// Checks configuration files, and translates kube-proxy's.
    Config(ConfigArgs),
    /// Prints a script that teaches a shell to complete these commands and flags.
    Completion(CompletionArgs),
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
    /// iptables, by `iptables-restore`, writing only what changed.
    Iptables(BackendIptablesArgs),
    /// IPVS and ipset, over netlink; `iptables-restore` is run for a few rules at the start.
    Ipvs(BackendIpvsArgs),
    /// The one that `--backend`, or the file that `--config` gives, names.
    Configured(BackendConfiguredArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BackendNftArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BackendIptablesArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    #[command(flatten)]
    pub(crate) iptables: IptablesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BackendIpvsArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    #[command(flatten)]
    pub(crate) iptables: VariantArgs,
    #[command(flatten)]
    pub(crate) ipvs: IpvsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BackendConfiguredArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) any: AnyBackendArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LocalArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) any: AnyBackendArgs,
}

/// A backend that is named by a flag.
#[derive(Debug, Args)]
pub(crate) struct AnyBackendArgs {
    /// What programs the kernel.
    #[arg(long, value_enum)]
    pub(crate) backend: BackendName,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    #[command(flatten)]
    pub(crate) iptables: IptablesArgs,
    #[command(flatten)]
    pub(crate) ipvs: IpvsArgs,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// nftables
    Nft,
    /// iptables
    Iptables,
    /// IPVS and ipset
    Ipvs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For scripts: one document, or one a line (`watch`).
    Json,
    /// The same, to read and to compare: one document, or one after each `---` (`watch`).
    Yaml,
}

impl AnyBackendArgs {
    /// Flags that are of use for one backend only are given for no other.
    pub(crate) fn check(&self) -> Result<()> {
        self.iptables.check(self.backend)?;
        self.ipvs.check(self.backend)
    }
}

impl BackendName {
    /// As it is said on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

impl ViewArgs {
    /// `--node`, or this machine's host name.
    pub(crate) fn node_name(&self) -> Result<String> {
        node::node_name(self.node.as_deref())
    }
}

#[cfg(test)]
mod testing {
    //! Command lines, parsed.

    use super::*;

    pub(super) fn parse(args: &[&str]) -> Result<Cli, String> {
        Cli::try_parse_from(std::iter::once("fairlead").chain(args.iter().copied())).map_err(|error| error.to_string())
    }

    /// `fairlead local` with these flags besides those that it needs.
    pub(super) fn local(args: &[&str]) -> LocalArgs {
        let args = [&["local", "--backend", "nft", "--manifests", "m"], args].concat();
        match parse(&args).unwrap().command {
            Command::Local(local) => local,
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}

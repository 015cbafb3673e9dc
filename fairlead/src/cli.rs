//! The command line: commands, their flags and help.

mod check;
mod cleanup;
mod config;
mod connections;
mod conntrack;
mod diff;
mod drained;
mod effective;
mod frontend;
mod iptables;
mod ipvs;
mod node;
mod observe;
mod parse;
mod policy;
mod protocol_test;
mod status;
mod trace;
mod traffic;
mod view;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use clap_complete::Shell;
use runtime::LogFormat;

pub(crate) use self::{
    check::{BundleArgs, CheckArgs, InspectedNodeArgs, RunningBackendArgs},
    cleanup::{CleanupArgs, OtherProxy},
    config::ConfigCommand,
    connections::ConnectionsArgs,
    conntrack::{ConntrackArgs, invalid_packets_by_sysctl},
    diff::DiffArgs,
    drained::DrainedArgs,
    effective::Effective,
    frontend::{ClusterArgs, FrontendArgs, SourceArgs},
    iptables::{IptablesArgs, VariantArgs},
    ipvs::{ExcludeArgs, IpvsArgs},
    node::{FrontendAddressArgs, NodeArgs, node_name},
    observe::{DEFAULT_METRICS, DrainedPortArgs, HttpAddress, ObserveArgs},
    parse::{CheckedDocument, Parsed, check_document, command, parse, with_settings_of},
    protocol_test::ProtocolTestArgs,
    status::{SHOWN_NODES, StatusArgs},
    trace::TraceArgs,
    traffic::TrafficArgs,
    view::{ChangesArgs, EndpointsArgs, NamespaceArgs, PlanArgs, ServicesArgs, TestArgs, ViewArgs},
};

use crate::{modes::Mode, print::OutputArgs};

/// The default address of a frontend, for frontends and their clients.
pub(crate) const DEFAULT_ADDRESS: &str = "unix:/run/fairlead/frontend.sock";

/// The last heading of every help page.
const GLOBAL_FLAGS: &str = "Global flags";

/// A Service proxy for Kubernetes: one frontend decides, one backend per node programs the kernel.
#[derive(Debug, Parser)]
#[command(
    name = "fairlead",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  fairlead local --backend nftables --manifests DIR        run frontend and backend in one process
  fairlead frontend --kubeconfig ~/.kube/config            run a frontend for all nodes
  fairlead backend nftables --cluster-cidr 10.244.0.0/16   program this node
  fairlead services --node node-a                          list the service ports of a node
  fairlead services --kernel                               list this node's IPVS virtual servers
  fairlead endpoints default/web --node node-a             explain which endpoints a node uses
  fairlead plan -f service.yaml                            print what a manifest would change
  fairlead log --service default/web                       list what changed, and who wrote it
  fairlead diff                                            compare the kernel with the desired state
  fairlead watch --node node-a                             follow the stream of a node
  fairlead trace 10.244.1.9 10.96.0.10:80                  trace a packet through this node's rules
  fairlead check --pre                                     check whether this node can run Fairlead
  fairlead status --wait 30s                               wait until all nodes are in sync

Exit codes:
  0  success
  1  the check found something
  2  the command could not run"
)]
pub(crate) struct Cli {
    /// Format of log lines: text or json.
    #[arg(
        long,
        global = true,
        env = "FAIRLEAD_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT",
        help_heading = GLOBAL_FLAGS
    )]
    pub(crate) log_format: LogFormat,

    /// Log filter: a level, or directives such as `info,fairlead_backend=debug`. Default: info, or warn for commands
    /// that print a result.
    #[arg(long = "log", global = true, env = "FAIRLEAD_LOG", value_name = "FILTER", help_heading = GLOBAL_FLAGS)]
    pub(crate) log_filter: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch the cluster, compute the state of each node, and stream it to the backends.
    Frontend(FrontendArgs),
    /// Follow a frontend and program this node's kernel.
    #[command(subcommand)]
    Backend(BackendCommand),
    /// Run frontend and backend in one process.
    Local(LocalArgs),
    /// Follow the stream of a node and print each change.
    Watch(ViewArgs),
    /// List the service ports that a node must serve, or the virtual servers in this node's kernel.
    Services(ServicesArgs),
    /// List the endpoints of a Service, and explain which of them a node uses.
    Endpoints(EndpointsArgs),
    /// List what changed in the service ports, when, because of which object, and who wrote it.
    Log(ChangesArgs),
    /// Print what would change, and on which nodes, if Services and EndpointSlices were applied. Applies nothing.
    Plan(PlanArgs),
    /// Print what a backend would write into this node's kernel, or where kube-proxy's rules behave differently. Writes
    /// nothing.
    Diff(DiffArgs),
    /// Print the state of all nodes and frontends: connected, behind, and rejected service ports.
    Status(StatusArgs),
    /// Check everything that Services depend on, on this node and around it, and print how to fix what is wrong.
    Check(CheckArgs),
    /// Count the connections of Services on this node, or in the cluster, by endpoint and client.
    Connections(ConnectionsArgs),
    /// Trace a packet through the rules in this node's kernel, and explain what happens to it.
    Trace(TraceArgs),
    /// Test a backend against the protocol: play the frontend and report violations.
    ProtocolTest(ProtocolTestArgs),
    /// Connect from this node to all VIPs that it serves, and compare the results with the frontend's view.
    Test(TestArgs),
    /// Wait in a pod, until no node sends new connections to it: for `preStop`.
    Drained(DrainedArgs),
    /// Collect diagnostics of this node in one archive, without secrets.
    Bundle(BundleArgs),
    /// Remove everything that a backend, or kube-proxy, has written into this node's kernel.
    Cleanup(CleanupArgs),
    /// Validate configuration files, and convert kube-proxy's.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the version.
    Version(OutputArgs),
    /// Print a shell completion script.
    #[command(after_help = "\
Examples:
  fairlead completion bash > /etc/bash_completion.d/fairlead
  fairlead completion zsh > \"${fpath[1]}/_fairlead\"
  fairlead completion fish > ~/.config/fish/completions/fairlead.fish")]
    Completion {
        /// Print the script for this shell.
        #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
        shell: Shell,
    },
}

/// A configuration file.
#[derive(Debug, Default, Args)]
pub(crate) struct ConfigFileArgs {
    /// Read settings that neither a flag nor the environment sets from this file (YAML; docs/configuration.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// Program nftables, over netlink.
    #[command(visible_alias = "nft")]
    Nftables {
        #[command(flatten)]
        stream: StreamArgs,
        #[command(flatten)]
        common: CommonBackendArgs,
    },
    /// Program iptables, by `iptables-restore` with only the changed rules.
    Iptables {
        #[command(flatten)]
        stream: StreamArgs,
        #[command(flatten)]
        common: CommonBackendArgs,
        #[command(flatten)]
        iptables: IptablesArgs,
    },
    /// Program IPVS and ipset, over netlink, and a few rules by `iptables-restore`.
    Ipvs {
        #[command(flatten)]
        stream: StreamArgs,
        #[command(flatten)]
        common: CommonBackendArgs,
        #[command(flatten)]
        variant: VariantArgs,
        #[command(flatten)]
        ipvs: IpvsArgs,
    },
    /// Program what `--backend`, or the configuration file, names.
    Configured {
        #[command(flatten)]
        stream: StreamArgs,
        #[command(flatten)]
        any: AnyBackendArgs,
    },
}

/// The settings of every backend.
#[derive(Debug, Args)]
pub(crate) struct CommonBackendArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) conntrack: ConntrackArgs,
    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
}

/// The flags of a backend that follows the frontend of all nodes, which `local` does not. Apart from the file, `local`
/// has none of them.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFileArgs,
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
    #[command(flatten)]
    pub(crate) drained: DrainedPortArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LocalArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFileArgs,
    /// Answer `fairlead status`, `services`, `endpoints`, `log`, `plan`, `test`, `diff` and `watch` at this unix
    /// socket. Default: nowhere.
    #[arg(long, value_name = "unix:/PATH", value_parser = unix_socket)]
    pub(crate) listen: Option<String>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) any: AnyBackendArgs,
}

/// Parses the address of a unix socket.
fn unix_socket(text: &str) -> Result<String, String> {
    let is_path = text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/'));
    if is_path {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?}: expected a unix socket, such as {DEFAULT_ADDRESS}"))
    }
}

/// A backend that a setting names.
#[derive(Debug, Args)]
pub(crate) struct AnyBackendArgs {
    /// Program the kernel through this backend. Required, here or in the configuration file.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<Mode>,
    #[command(flatten)]
    pub(crate) common: CommonBackendArgs,
    #[command(flatten)]
    pub(crate) iptables: IptablesArgs,
    #[command(flatten)]
    pub(crate) ipvs: IpvsArgs,
}

impl Cli {
    /// Checks settings that depend on each other.
    pub(crate) fn validate(&self) -> Result<()> {
        match &self.command {
            Command::Frontend(args) => args.validate(),
            Command::Local(args) => args.source.validate().and_then(|()| args.any.validate()),
            Command::Backend(backend) => {
                backend.stream().frontend.validate()?;
                match backend {
                    BackendCommand::Configured { any, .. } => any.validate(),
                    BackendCommand::Nftables { common, .. }
                    | BackendCommand::Iptables { common, .. }
                    | BackendCommand::Ipvs { common, .. } => common.traffic.validate(),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Command {
    /// `--config`.
    pub(crate) fn config_file(&self) -> Option<&PathBuf> {
        match self {
            Self::Frontend(args) => args.file.config.as_ref(),
            Self::Local(args) => args.file.config.as_ref(),
            Self::Backend(backend) => backend.stream().file.config.as_ref(),
            _ => None,
        }
    }

    /// Where the backend of this node answers, whose settings apply to this command.
    pub(crate) fn running_backend(&self) -> Option<SocketAddr> {
        let running = match self {
            Self::Diff(args) => args.running,
            Self::Test(args) => args.running,
            Self::Check(args) => args.inspected.running,
            Self::Connections(args) => args.running,
            Self::Bundle(args) => args.inspected.running,
            _ => return None,
        };
        running.backend_address.0
    }

    /// Whether it asks a frontend for all that it shows.
    pub(crate) fn asks_a_frontend(&mut self) -> bool {
        match self {
            Self::Test(_) => true,
            Self::Diff(args) => args.state.is_none(),
            _ => self.frontend_of_cluster().is_some(),
        }
    }

    /// The address of the frontend, of a command that shows only what frontends know, and nothing of this machine.
    pub(crate) fn frontend_of_cluster(&mut self) -> Option<&mut FrontendAddressArgs> {
        match self {
            Self::Status(args) => Some(&mut args.frontend),
            Self::Watch(args) => Some(&mut args.frontend),
            Self::Services(args) if !args.kernel => Some(&mut args.view.frontend),
            Self::Endpoints(args) => Some(&mut args.view.frontend),
            Self::Log(args) => Some(&mut args.frontend),
            Self::Plan(args) => Some(&mut args.frontend),
            _ => None,
        }
    }
}

impl BackendCommand {
    fn stream(&self) -> &StreamArgs {
        match self {
            Self::Nftables { stream, .. }
            | Self::Iptables { stream, .. }
            | Self::Ipvs { stream, .. }
            | Self::Configured { stream, .. } => stream,
        }
    }

    /// The frontend, and the backend with its settings.
    pub(crate) fn into_parts(self) -> (StreamArgs, AnyBackendArgs) {
        match self {
            Self::Configured { stream, any } => (stream, any),
            Self::Nftables { stream, common } => (stream, AnyBackendArgs::new(Mode::Nftables, common)),
            Self::Iptables { stream, common, iptables } => {
                (stream, AnyBackendArgs { iptables, ..AnyBackendArgs::new(Mode::Iptables, common) })
            }
            Self::Ipvs { stream, common, variant, ipvs } => {
                let iptables = IptablesArgs { variant, ..IptablesArgs::default() };
                (stream, AnyBackendArgs { iptables, ipvs, ..AnyBackendArgs::new(Mode::Ipvs, common) })
            }
        }
    }
}

impl AnyBackendArgs {
    /// A backend without flags of its mode.
    fn new(mode: Mode, common: CommonBackendArgs) -> Self {
        Self { backend: Some(mode), common, iptables: IptablesArgs::default(), ipvs: IpvsArgs::default() }
    }

    /// The mode that is set.
    pub(crate) fn mode(&self) -> Result<Mode> {
        self.backend.context("no backend: set --backend, or the field `backend`, to nftables, iptables or ipvs")
    }

    /// Rejects settings of other modes, and settings that contradict each other.
    fn validate(&self) -> Result<()> {
        let mode = self.mode()?;
        self.iptables.validate(mode)?;
        self.ipvs.validate(mode)?;
        self.common.traffic.validate()
    }
}

#[cfg(test)]
mod testing {
    //! Command lines, parsed.

    use super::*;

    pub(super) fn parse(args: &[&str]) -> Result<Cli, String> {
        let parsed = super::parse(std::iter::once("fairlead").chain(args.iter().copied()));
        parsed.map(|parsed| parsed.cli).map_err(|error| format!("{error:#}"))
    }

    /// `fairlead local --backend BACKEND` with these flags.
    pub(super) fn local(backend: &str, args: &[&str]) -> LocalArgs {
        let args = [&["local", "--backend", backend, "--manifests", "m"], args].concat();
        match parse(&args).unwrap().command {
            Command::Local(local) => local,
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::parse;

    #[test]
    fn command_line_is_well_formed() {
        super::command().debug_assert();
    }

    #[test]
    fn own_flags_of_a_command_come_first_and_global_ones_last() {
        fn check(command: &mut clap::Command) {
            let headings = command.get_arguments().filter_map(clap::Arg::get_help_heading).map(str::to_owned);
            let headings: Vec<_> = headings.collect();
            let help = command.render_long_help().to_string();
            let place = |heading: &str| help.find(&format!("\n{heading}:\n"));
            for heading in headings.iter().filter(|heading| *heading != super::GLOBAL_FLAGS) {
                assert!(place(heading) < place(super::GLOBAL_FLAGS), "{}: {heading}", command.get_name());
            }
            assert!(place("Options") < place(super::GLOBAL_FLAGS), "{}", command.get_name());
            command.get_subcommands_mut().filter(|inner| inner.get_name() != "help").for_each(check);
        }
        let mut command = super::command();
        command.build();
        command.get_subcommands_mut().filter(|inner| inner.get_name() != "help").for_each(check);
        let status = command.find_subcommand_mut("status").unwrap().render_long_help().to_string();
        let places = ["--wait", "--frontend <", "--log-format"].map(|flag| status.find(flag).unwrap());
        assert!(places.is_sorted(), "{status}");
        let frontend = command.find_subcommand_mut("frontend").unwrap().render_long_help().to_string();
        assert!(!frontend.contains("Connection to the frontend"), "{frontend}");
    }

    #[test]
    fn backend_without_a_mode_is_explained() {
        for line in ["backend --cluster-cidr 10.244.0.0/16", "backend --log debug --shadow", "--log info backend --x"] {
            let error = parse(&line.split(' ').collect::<Vec<_>>()).unwrap_err();
            let expected = "the mode of the backend is missing: write nftables, iptables, ipvs or configured before";
            assert!(error.contains(expected), "{line}: {error}");
        }
        let error = parse(&["backend", "nftables", "--unknown"]).unwrap_err();
        assert!(error.contains("unexpected argument '--unknown'"), "{error}");
        assert!(parse(&["backend", "--help"]).unwrap_err().contains("Usage: fairlead backend"));
    }

    /// clap wraps longer lines a second time.
    #[test]
    fn help_texts_are_not_wrapped_twice() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&super::command());
    }

    #[test]
    fn only_commands_about_the_cluster_use_the_kubeconfig_of_kubectl() {
        for (line, expected) in [
            ("status", true),
            ("watch", true),
            ("services", true),
            ("services --kernel", false),
            ("endpoints default/web", true),
            ("log", true),
            ("plan -f -", true),
            ("check", false),
            ("diff", false),
            ("test", false),
        ] {
            let mut cli = parse(&line.split(' ').collect::<Vec<_>>()).unwrap();
            assert_eq!(cli.command.frontend_of_cluster().is_some(), expected, "{line}");
        }
    }
}

//! The flags of `fairlead status`.

use std::time::Duration;

use clap::Args;

use super::FrontendAddressArgs;
use crate::{config::duration, print::OutputArgs};

/// How many nodes are listed without `--all`.
pub(crate) const SHOWN_NODES: usize = 40;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every node has a stream to some frontend and has programmed its state
  1  a node has no stream or only a shadow, is behind by more than --max-lag, has
     rejected service ports, or cannot program an IP family that has VIPs; or a
     frontend is not ready, or does not follow the API: requests fail, and objects
     are unconfirmed for three minutes
  2  a frontend could not be queried; with --node only if no other frontend
     reports the node as healthy

Each frontend knows only its own streams: give the addresses of all frontends,
or a name that resolves to all of them; `kubectl fairlead status` asks all. A
node is connected if it has a stream to one of them. If only a unix socket is
given, only the nodes that are connected to that replica count, and at least one
must be connected; with --wait all nodes of the cluster count. Over TLS this
requires an admin identity, or with --node the identity of that node. In a
backend's pod no flags are needed: its own node is shown.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Wait until every node has programmed the current revision and those without a stream have connected, for at most
    /// this long.
    #[arg(long, num_args = 0..=1, default_missing_value = "1m", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Report a node as behind if a change takes longer than this.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    pub(crate) max_lag: Duration,

    /// Show only this node, with all its rejected service ports.
    #[arg(long, visible_alias = "node-name", env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// List all nodes. Default: the first 40, those with problems first.
    #[arg(long)]
    pub(crate) all: bool,

    /// List service ports that have lost their last endpoint, invalid objects and manifests, and the state of the
    /// watches of all frontends, instead of the nodes.
    #[arg(long, conflicts_with = "node")]
    pub(crate) problems: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

//! The flags of `fairlead status`.

use std::time::Duration;

use clap::Args;

use super::{FrontendAddressArgs, Output, conntrack::duration};

/// How many nodes are listed without `--all`.
pub(crate) const SHOWN_NODES: usize = 40;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every node of the cluster has a stream to some frontend, and everything that it should have
  1  some frontend could not be asked
  2  some node has no stream or only a shadow, is behind by more than --max-lag or could not program everything, or some frontend has not listed all objects yet

Each frontend knows its own streams only: name all of them, or a name that stands for all. A node is connected if it is to one of them.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Wait until every node has what is committed now, and those without a stream have come; at most so long.
    #[arg(long, num_args = 0..=1, default_missing_value = "1m", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// For so long a change may be on its way to a node before the node is called behind.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    pub(crate) max_lag: Duration,

    /// This node only, with all that it could not program.
    #[arg(long, visible_alias = "node-name", value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// List all nodes. Otherwise the first 40 are: those with which something is wrong come first.
    #[arg(long)]
    pub(crate) all: bool,

    /// List what is wrong with objects of the cluster, and how well the frontends hear from the API, in place of the nodes.
    #[arg(long, conflicts_with = "node")]
    pub(crate) problems: bool,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

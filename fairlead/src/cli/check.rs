//! The flags of `fairlead check`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{BackendName, FrontendAddressArgs, Output, node};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  everything is as it should be
  1  something will not work (FAIL), or could not be looked at
  2  something may surprise (WARN)

Nothing is changed: what the kernel can do is tried in a network namespace of its own, which is gone afterwards.")]
pub(crate) struct CheckArgs {
    /// Before installation: there is no frontend yet, and what kube-proxy has here is expected.
    #[arg(long)]
    pub(crate) pre: bool,

    /// Which backend runs here, or will.
    #[arg(long, value_enum, default_value = "nft")]
    pub(crate) backend: BackendName,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Where the backend keeps its state, or will.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// A kubeconfig with the identity of a frontend: asks the API server whether it may do what a frontend does.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

impl CheckArgs {
    /// `--node-name`, or this machine's host name.
    pub(crate) fn node(&self) -> Result<String> {
        node::node_name(self.node_name.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn before_installation_or_after() {
        assert!(parse(&["check"]).is_ok());
        assert!(parse(&["check", "--pre", "--backend", "ipvs", "-o", "json"]).is_ok());
        assert!(parse(&["check", "--backend", "bpf"]).is_err());
    }
}

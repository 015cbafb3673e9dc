//! The flags of `fairlead check` and `fairlead bundle`, which inspect this node.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{
    FrontendAddressArgs, HttpAddress,
    node::node_name,
    observe::{DEFAULT_METRICS, METRICS_PORT},
};
use crate::{modes::Mode, print::OutputArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  no check failed; warnings (WARN) are possible
  1  a check failed (FAIL): something does not work, or could not be inspected
  2  the command could not run

Nothing is changed: kernel features are probed in a temporary network namespace.")]
pub(crate) struct CheckArgs {
    /// Check a node before installation: no frontend exists, and rules of kube-proxy are expected.
    #[arg(long)]
    pub(crate) pre: bool,

    #[command(flatten)]
    pub(crate) inspected: InspectedNodeArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file manifest.json lists what the archive contains, and what was left out
and why. It never contains private keys, tokens or the content of Secrets. It
contains names of Services and, without --redact-ips, IP addresses: check it
before you share it.")]
pub(crate) struct BundleArgs {
    /// Write the archive to this file, which must not exist. Default: fairlead-bundle-NODE.tar.gz in the current
    /// directory, or in --state-dir if that is read-only.
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub(crate) output: Option<PathBuf>,

    /// Replace each IP address by a pseudonym, the same everywhere in the archive.
    #[arg(long)]
    pub(crate) redact_ips: bool,

    #[command(flatten)]
    pub(crate) inspected: InspectedNodeArgs,

    /// Find the state of the backend in this directory.
    #[arg(long, env = "FAIRLEAD_STATE_DIR", default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
}

/// The backend that runs on this node.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RunningBackendArgs {
    /// Ask the backend that runs here, at its --metrics, for its node name and settings. They apply where neither a
    /// flag nor the environment sets them. `none`: use only those.
    #[arg(long, env = "FAIRLEAD_BACKEND_ADDRESS", default_value = DEFAULT_METRICS, value_name = "ADDRESS:PORT")]
    pub(crate) backend_address: HttpAddress<METRICS_PORT>,
}

/// This node, for commands that inspect it.
#[derive(Clone, Debug, Args)]
pub(crate) struct InspectedNodeArgs {
    /// Inspect the node for this backend. Default: the running one, else nftables.
    #[arg(long, env = "FAIRLEAD_BACKEND", value_enum, default_value = "nftables", hide_default_value = true)]
    pub(crate) backend: Mode,

    /// Run as this node, its Node's metadata.name. Default: that of the running backend, else the host name in lower
    /// case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    #[command(flatten)]
    pub(crate) running: RunningBackendArgs,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,
}

impl InspectedNodeArgs {
    /// `--node-name`, or this machine's host name.
    pub(crate) fn node(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn flags_are_parsed() {
        assert!(parse(&["check"]).is_ok());
        assert!(parse(&["check", "--pre", "--backend", "ipvs", "-o", "json"]).is_ok());
        assert!(parse(&["check", "--backend", "bpf"]).is_err());
        assert!(parse(&["bundle", "--state-dir", "/s"]).is_ok());
        assert!(parse(&["check", "--state-dir", "/s"]).is_err(), "check reads no state");
    }
}

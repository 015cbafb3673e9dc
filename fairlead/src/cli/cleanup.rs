//! The flags of `fairlead cleanup`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::{ExcludeArgs, VariantArgs};
use crate::{modes::Mode, print::OutputArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  removed, or with --dry-run listed
  2  the command could not run, or could not remove everything")]
#[command(group(ArgGroup::new("owner").required(true)))]
pub(crate) struct CleanupArgs {
    /// Remove all kernel objects and the state of this backend, which must not run.
    #[arg(long, value_enum, group = "owner")]
    pub(crate) backend: Option<Mode>,

    /// Remove all kernel objects and the state of all backends of Fairlead. None may run.
    #[arg(long, group = "owner")]
    pub(crate) all: bool,

    /// Remove all kernel objects of another proxy. Established connections continue.
    #[arg(long, value_enum, group = "owner")]
    pub(crate) of: Option<OtherProxy>,

    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Remove kube-proxy's rules although no backend of Fairlead serves this node. Services stop working here.
    #[arg(long, conflicts_with_all = ["backend", "all"])]
    pub(crate) force: bool,

    /// Remove the state of the backend from this directory too, unless another backend runs.
    #[arg(long, env = "FAIRLEAD_STATE_DIR", default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// Wait for a signal when everything is removed, so that the pod of a DaemonSet stays ready.
    #[arg(long, conflicts_with_all = ["dry_run", "of"])]
    pub(crate) keep_running: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) iptables: VariantArgs,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,
}

/// A proxy that Fairlead replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OtherProxy {
    /// kube-proxy in any mode.
    KubeProxy,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn exactly_one_owner_is_required() {
        assert!(parse(&["cleanup"]).is_err());
        assert!(parse(&["cleanup", "--backend", "nftables", "--of", "kube-proxy"]).is_err());
        assert!(parse(&["cleanup", "--backend", "nft", "--dry-run"]).is_ok());
        assert!(parse(&["cleanup", "--all", "--keep-running"]).is_ok());
        assert!(parse(&["cleanup", "--all", "--backend", "nft"]).is_err());
        assert!(parse(&["cleanup", "--of", "kube-proxy", "--force", "-o", "json"]).is_ok());
        assert!(parse(&["cleanup", "--backend", "nftables", "--force"]).is_err());
    }
}

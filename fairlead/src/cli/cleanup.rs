//! The flags of `fairlead cleanup`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{BackendName, ExcludeArgs, OutputArgs, VariantArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  removed, or with --dry-run listed
  2  the command could not run, or could not remove everything")]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,

    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Remove kube-proxy's rules although no backend of Fairlead serves this node. Services stop working here.
    #[arg(long, conflicts_with = "backend")]
    pub(crate) force: bool,

    /// Remove the state of the backend from this directory too.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR", conflicts_with = "of")]
    pub(crate) state_dir: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) iptables: VariantArgs,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,
}

/// Whose kernel objects are removed.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct OwnerArgs {
    /// Remove all kernel objects and the state of this backend.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendName>,

    /// Remove all kernel objects of another proxy. Established connections continue.
    #[arg(long, value_enum)]
    pub(crate) of: Option<OtherProxy>,
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
        assert!(parse(&["cleanup", "--of", "kube-proxy", "--force", "-o", "json"]).is_ok());
        assert!(parse(&["cleanup", "--backend", "nftables", "--force"]).is_err());
    }
}

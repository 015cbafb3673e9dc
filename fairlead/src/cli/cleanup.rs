//! The flags of `fairlead cleanup`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{BackendName, ExcludeArgs, Output, VariantArgs};

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    pub(crate) whose: WhoseArgs,

    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Remove what is kube-proxy's even though Fairlead serves nothing on this node: Services end here then.
    #[arg(long, conflicts_with = "backend")]
    pub(crate) force: bool,

    /// Where the backend keeps its state, which goes too.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR", conflicts_with = "of")]
    pub(crate) state_dir: PathBuf,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,

    #[command(flatten)]
    pub(crate) iptables: VariantArgs,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct WhoseArgs {
    /// Removes everything that this backend of ours has put into the kernel, and its state.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendName>,

    /// Removes everything that another proxy has put into the kernel; connections live on.
    #[arg(long, value_enum)]
    pub(crate) of: Option<Predecessor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Predecessor {
    /// kube-proxy, whichever mode it ran in.
    KubeProxy,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn one_owner_is_named() {
        assert!(parse(&["cleanup"]).is_err());
        assert!(parse(&["cleanup", "--backend", "nft", "--of", "kube-proxy"]).is_err());
        assert!(parse(&["cleanup", "--backend", "nft", "--dry-run"]).is_ok());
        assert!(parse(&["cleanup", "--of", "kube-proxy", "--force", "-o", "json"]).is_ok());
        assert!(parse(&["cleanup", "--backend", "nft", "--force"]).is_err());
    }
}

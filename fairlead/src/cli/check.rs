//! The flags of `fairlead check`.

use std::path::PathBuf;

use clap::Args;

use super::{HereArgs, Output};

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

    #[command(flatten)]
    pub(crate) here: HereArgs,

    /// A kubeconfig with the identity of a frontend: asks the API server whether it may do what a frontend does.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
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

//! The flags of `fairlead check`.

use std::path::PathBuf;

use clap::Args;

use super::{HereArgs, OutputArgs};

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
    pub(crate) here: HereArgs,

    /// Check with this kubeconfig, which has the identity of a frontend, whether the API server grants what a frontend
    /// needs.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn flags_are_parsed() {
        assert!(parse(&["check"]).is_ok());
        assert!(parse(&["check", "--pre", "--backend", "ipvs", "-o", "json"]).is_ok());
        assert!(parse(&["check", "--backend", "bpf"]).is_err());
    }
}

//! The flags of `fairlead diff`.

use std::path::PathBuf;

use clap::Args;

use super::{BackendName, IptablesArgs, IpvsArgs, Predecessor, TrafficArgs, ViewArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead diff --node-name node-a --cluster-cidr 10.244.0.0/16    what the backend that runs here would write now
  fairlead diff --backend nft                                      the same of one that does not run here yet
  fairlead diff --state                                            without a frontend, by what was committed here last
  fairlead diff --of kube-proxy                                    what kube-proxy's rules do otherwise

Nothing is written: no rule, no setting. Say what the backend is told too, above all what is a pod (--cluster-cidr and its siblings).

Exit codes, as of diff(1):
  0  no difference
  1  something differs; with --of kube-proxy: other than what docs/semantics.md says
  2  it cannot be told")]
pub(crate) struct DiffArgs {
    /// Whose rules are looked at. Without it, those of the one backend of Fairlead's whose rules are in this node's kernel.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendName>,

    /// Compare with what another proxy's rules do, service port by service port.
    #[arg(long, value_enum, conflicts_with = "backend")]
    pub(crate) of: Option<Predecessor>,

    /// What should be is what an agent here has committed last, by its state file, and no frontend is asked.
    // `--frontend` is no conflict: its variable may be set for the backend that runs here.
    #[arg(long, num_args = 0..=1, default_missing_value = "/var/lib/fairlead/state", value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    #[command(flatten)]
    pub(crate) iptables: IptablesArgs,
    #[command(flatten)]
    pub(crate) ipvs: IpvsArgs,
}

#[cfg(test)]
mod tests {
    use super::super::{Command, testing::parse};

    #[test]
    fn one_thing_is_compared_with() {
        assert!(parse(&["diff", "--backend", "nft", "--of", "kube-proxy"]).is_err());
        let Command::Diff(args) = parse(&["diff", "--state", "--of", "kube-proxy"]).unwrap().command else { panic!() };
        assert_eq!(args.state.unwrap().to_str(), Some("/var/lib/fairlead/state"));
    }
}

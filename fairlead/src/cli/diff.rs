//! The flags of `fairlead diff`.

use std::path::PathBuf;

use clap::Args;

use super::{
    DrainedPortArgs, HttpAddress, IptablesArgs, IpvsArgs, OtherProxy, RunningBackendArgs, TrafficArgs, ViewArgs,
    observe::{DEFAULT_HEALTHZ, HEALTHZ_PORT},
};
use crate::modes::Mode;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead diff                                what this node's backend would write now
  fairlead diff --state                        use the state file, without a frontend
  fairlead diff --of kube-proxy                where kube-proxy's rules behave differently
  fairlead diff --backend nftables --cluster-cidr 10.244.0.0/16
                                               what a backend not yet running here would write

Nothing is written. The settings are those of the running backend. If none is
running, pass the flags that you would give the backend, especially those that
identify pods (--cluster-cidr, --detect-local-mode).

Exit codes:
  0  no differences
  1  there are differences; with --of kube-proxy: differences that docs/semantics.md does not list
  2  the command could not run")]
pub(crate) struct DiffArgs {
    /// Compare with this backend. Default: the running one, else the one whose objects are in this node's kernel.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<Mode>,

    /// Compare with the rules of another proxy, service port by service port.
    #[arg(long, value_enum, conflicts_with = "backend")]
    pub(crate) of: Option<OtherProxy>,

    /// Read the desired state from the state file of a backend instead of a frontend.
    // No conflict with `--frontend`: its variable may be set for the backend of this node.
    #[arg(long, num_args = 0..=1, default_missing_value = "/var/lib/fairlead/state", value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,

    /// The --healthz of the backend.
    #[arg(long, env = "FAIRLEAD_HEALTHZ", default_value = DEFAULT_HEALTHZ, value_name = "ADDRESS")]
    pub(crate) healthz: HttpAddress<HEALTHZ_PORT>,

    #[command(flatten)]
    pub(crate) drained: DrainedPortArgs,
    #[command(flatten)]
    pub(crate) running: RunningBackendArgs,
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
    fn backend_and_other_proxy_exclude_each_other() {
        assert!(parse(&["diff", "--backend", "nft", "--of", "kube-proxy"]).is_err());
        let Command::Diff(args) = parse(&["diff", "--state", "--of", "kube-proxy"]).unwrap().command else { panic!() };
        assert_eq!(args.state.unwrap().to_str(), Some("/var/lib/fairlead/state"));
    }
}

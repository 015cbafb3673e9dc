//! The flags of `fairlead config`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::config::TargetRole;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  fairlead config convert /var/lib/kube-proxy/config.conf
  kubectl -n kube-system get configmap kube-proxy -o yaml | fairlead config convert -
  fairlead config convert --for backend /var/lib/kube-proxy/config.conf
  fairlead config convert --for chart kube-proxy.yaml > values.yaml
  fairlead config validate /etc/fairlead/config.yaml

Exit codes:
  0  the file is valid; fields without effect are printed as warnings
  1  the file is invalid
  2  the file could not be read")]
pub(crate) enum ConfigCommand {
    /// Convert kube-proxy's configuration to Fairlead's. Fields without effect are printed on standard error.
    Convert {
        /// Read this file, or standard input (`-`): a KubeProxyConfiguration, or a ConfigMap that contains one.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Write the configuration of this process, or the values of the Helm chart.
        #[arg(long = "for", value_enum, default_value = "local", value_name = "TARGET")]
        role: TargetRole,
    },
    /// Check a configuration file.
    Validate {
        /// Check this file, or standard input (`-`).
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

//! The flags of `fairlead config`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead config convert /var/lib/kube-proxy/config.conf
  kubectl -n kube-system get configmap kube-proxy -o yaml | fairlead config convert -
  fairlead config convert --for backend --kube-proxy-arg=proxy-mode=ipvs --kube-proxy-arg=ipvs-scheduler=wlc
  fairlead config validate /etc/fairlead/config.yaml")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints kube-proxy's configuration as one of Fairlead's own, and on standard error what has no effect in it.
    Convert(ConvertArgs),
    /// Says what is wrong with a file, if anything, and what of it has no effect.
    Validate(ValidateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The file, or `-` for what comes in: a KubeProxyConfiguration, or the ConfigMap that holds one.
    #[arg(value_name = "FILE", required_unless_present = "kube_proxy_args")]
    pub(crate) file: Option<PathBuf>,

    /// One of kube-proxy's flags in place of a file, as k3s and RKE2 take them: proxy-mode=ipvs, with or without dashes. May be given
    /// several times.
    #[arg(long = "kube-proxy-arg", value_name = "FLAG", conflicts_with = "file", allow_hyphen_values = true)]
    pub(crate) kube_proxy_args: Vec<String>,

    /// Which of our processes is to do its work.
    #[arg(long = "for", value_enum, default_value = "local", value_name = "PROCESS")]
    pub(crate) process: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Process {
    /// `fairlead local`, which asks the API server by itself, as kube-proxy does.
    Local,
    /// `fairlead backend configured`, which follows a frontend.
    Backend,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The file, or `-` for what comes in.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

//! The flags of `fairlead frontend`: where its objects come from, and where it listens.

mod tls;

use std::{
    net::SocketAddr,
    num::{NonZeroU16, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::Args;
use frontend::{ConnectionLimits, HistoryLimits};
use ipnet::IpNet;
use runtime::ConnectionBounds;

use super::{ConfigFileArgs, DEFAULT_ADDRESS, HttpAddress, policy::PolicyArgs};
use crate::config::{cidr, duration};
pub(crate) use tls::TlsArgs;

#[derive(Debug, Args)]
pub(crate) struct FrontendArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFileArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Treat these CIDRs, comma-separated, as those of pods: no external IP in them is served, and no load-balancer IP
    /// that is an endpoint. Needed where Nodes have no pod CIDRs. Shorter CIDRs than /8 (IPv6: /32) protect nothing.
    #[arg(long, value_delimiter = ',', value_name = "CIDR", value_parser = some_addresses)]
    pub(crate) cluster_cidr: Vec<IpNet>,

    /// Listen for backends at `unix:/PATH`, where everyone who can open the socket is trusted, or at HOST:PORT, which
    /// needs --tls-cert. 0.0.0.0 and [::] listen in both IP families. May be given several times.
    #[arg(long, default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,

    /// Listen on TCP without TLS, also on 127.0.0.1: everyone who can reach the port can read the view of every node,
    /// and act as every node.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Ask a node to reconnect when its stream is this old, plus or minus a fifth, to spread nodes over all replicas. 0
    /// disables this.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration)]
    pub(crate) max_stream_age: Duration,

    /// Keep up to this many MiB of past changes, which are sent to nodes that reconnect. A node that missed older
    /// changes compares digests with the frontend instead.
    #[arg(long, default_value = "64", value_name = "MIB")]
    pub(crate) max_history: NonZeroU16,

    /// Keep at most this many connections of unidentified clients from one address (IPv6: from one /64). A further one
    /// replaces the oldest. Raise it where many nodes share an address: NAT, or a load balancer that hides addresses.
    #[arg(long, default_value = "64", value_name = "NUMBER")]
    pub(crate) max_connections_per_source: NonZeroUsize,

    /// Serve /metrics, /healthz and /readyz over HTTP, without authentication, at ADDRESS:PORT, or nowhere (`none`).
    /// Responses contain no names of Services or nodes.
    #[arg(long, default_value = "127.0.0.1:7601", value_name = "ADDRESS")]
    pub(crate) metrics: HttpAddress,

    /// Serve a status page for browsers, without authentication, at ADDRESS:PORT, such as 127.0.0.1:7602. It has names
    /// and addresses of Services and nodes.
    #[arg(long, default_value = "none", value_name = "ADDRESS")]
    pub(crate) page: HttpAddress,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Where the objects of the cluster come from. Default: the API server of the cluster that this process runs in.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub(crate) struct SourceArgs {
    /// Read Kubernetes manifests (Service, EndpointSlice, Node, ServiceCIDR) from this directory. Edits take effect at
    /// once.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// Connect to the API server of this kubeconfig. Default: $KUBECONFIG, else the cluster that this process runs in.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Settings of the cluster that are not in its objects.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Treat these CIDRs, comma-separated, as service CIDRs, besides ServiceCIDR objects. Nodes drop packets to their
    /// addresses that no Service has.
    #[arg(long, value_delimiter = ',', value_name = "CIDR", value_parser = some_addresses)]
    pub(crate) service_cidr: Vec<IpNet>,

    /// Do not create Events for Services that are not served completely and for backends that start. Events need
    /// `create` on events.events.k8s.io.
    #[arg(long)]
    pub(crate) no_events: bool,

    /// Remove the taint fairlead.io/starting from a node when its backend has programmed its first state. The kubelet
    /// sets it with --register-with-taints=fairlead.io/starting:NoSchedule. Needs `get` and `patch` on nodes.
    #[arg(long)]
    pub(crate) remove_startup_taint: bool,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// Parses one CIDR of `--service-cidr` or `--cluster-cidr`.
fn some_addresses(text: &str) -> Result<IpNet, String> {
    let cidr = cidr(text)?;
    if cidr.prefix_len() == 0 { Err(format!("{cidr} contains all addresses")) } else { Ok(cidr) }
}

impl SourceArgs {
    /// `--kubeconfig`, or else the environment's. Not left to the parser: the variable must not exclude `--manifests`.
    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        if self.kubeconfig.is_some() {
            return self.kubeconfig.clone();
        }
        let path = std::env::var_os("KUBECONFIG")?;
        if path.is_empty() { None } else { Some(path.into()) }
    }

    /// Rejects two sources, which a file may have.
    pub(super) fn validate(&self) -> Result<()> {
        if self.kubeconfig.is_some() && self.manifests.is_some() {
            bail!("kubeconfig and manifests exclude each other");
        }
        Ok(())
    }
}

impl FrontendArgs {
    /// `--max-history`.
    pub(crate) fn history_limits(&self) -> HistoryLimits {
        HistoryLimits { bytes: usize::from(self.max_history.get()) << 20, ..HistoryLimits::default() }
    }

    /// `--max-connections-per-source`.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        let limits = ConnectionLimits::default();
        let per_key = self.max_connections_per_source.get();
        ConnectionLimits {
            node_sources: ConnectionBounds { per_key, ..limits.node_sources },
            unknown_sources: ConnectionBounds { per_key, ..limits.unknown_sources },
            ..limits
        }
    }

    /// The TCP addresses at which this process listens; addresses with a host name are left out.
    pub(crate) fn listening(&self) -> impl Iterator<Item = SocketAddr> {
        let Self { listen, metrics, page, .. } = self;
        listen.iter().filter_map(|address| address.parse().ok()).chain(metrics.0).chain(page.0)
    }

    /// Checks settings that depend on each other.
    pub(super) fn validate(&self) -> Result<()> {
        self.source.validate()?;
        self.tls.validate()?;
        let has_tls = self.tls.tls_cert.is_some();
        if self.insecure && has_tls {
            bail!("--insecure and --tls-cert exclude each other");
        }
        if let Some(address) = self.listen.iter().find(|address| !address.starts_with("unix:"))
            && !self.insecure
            && !has_tls
        {
            bail!(
                "--listen {address}: a TCP port without TLS is open to everyone who can reach it. \
                 Set --tls-cert and --tls-key, use unix:/PATH, or set --insecure"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Command, testing::parse},
        *,
    };

    fn frontend(args: &[&str]) -> Result<FrontendArgs, String> {
        match parse(&[&["frontend", "--manifests", "m"], args].concat())?.command {
            Command::Frontend(frontend) => Ok(frontend),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tcp_without_tls_needs_insecure() {
        assert_eq!(frontend(&[]).unwrap().listen, ["unix:/run/fairlead/frontend.sock"]);
        for address in ["127.0.0.1:7600", "[::1]:7600", "0.0.0.0:7600"] {
            let error = frontend(&["--listen", "unix:/s", "--listen", address]).unwrap_err();
            assert!(error.contains(address) && error.contains("set --insecure"), "{error}");
            assert!(frontend(&["--listen", address, "--insecure"]).is_ok());
            assert!(frontend(&["--listen", address, "--tls-cert", "c", "--tls-key", "k"]).is_ok());
        }
        assert!(frontend(&["--insecure", "--tls-cert", "c", "--tls-key", "k"]).is_err());
    }

    #[test]
    fn default_connection_limits_are_those_of_the_library() {
        assert_eq!(frontend(&[]).unwrap().connection_limits(), ConnectionLimits::default());
        let limits = frontend(&["--max-connections-per-source", "1000"]).unwrap().connection_limits();
        assert_eq!([limits.node_sources.per_key, limits.unknown_sources.per_key], [1000, 1000]);
        assert!(frontend(&["--max-connections-per-source", "0"]).is_err());
    }

    #[test]
    fn service_cidrs_are_parsed() {
        let cidrs = |cidrs: &str| frontend(&["--service-cidr", cidrs]).map(|frontend| frontend.cluster.service_cidr);
        let expected = ["10.96.0.0/16", "fd00:10:96::/112"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs("10.96.0.1/16, fd00:10:96::/112"), Ok(expected));
        assert!(cidrs("10.96.0.0").unwrap_err().contains("the prefix length is missing"));
        assert!(cidrs("0.0.0.0/0").unwrap_err().contains("all addresses"));
        let pods = frontend(&["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56"]).unwrap().cluster_cidr;
        assert_eq!(pods, ["10.244.0.0/16", "fd00:10:244::/56"].map(|cidr| cidr.parse().unwrap()));
    }

    #[test]
    fn metrics_are_on_loopback_by_default() {
        let metrics = |args: &[&str]| frontend(args).map(|frontend| frontend.metrics);
        assert_eq!(metrics(&[]), Ok(HttpAddress(Some(([127, 0, 0, 1], 7601).into()))));
        assert_eq!(metrics(&["--metrics", "none"]), Ok(HttpAddress(None)));
        assert!(matches!(metrics(&["--metrics", "[::]:9000"]), Ok(HttpAddress(Some(_)))));
        assert!(metrics(&["--metrics", "7601"]).unwrap_err().contains("expected an address with a port"));
    }

    #[test]
    fn sources_exclude_each_other() {
        assert!(parse(&["frontend", "--manifests", "m", "--kubeconfig", "k"]).is_err());
    }
}

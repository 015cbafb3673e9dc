//! The flags of a frontend: where its objects come from, where it listens.

mod tls;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};
use clap::Args;
use ipnet::IpNet;

use super::{
    DEFAULT_ADDRESS, HttpAddress,
    observe::{self, ProfilingArgs},
};
pub(crate) use tls::TlsArgs;

#[derive(Debug, Args)]
pub(crate) struct FrontendArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Where to listen: `unix:/PATH`, where whoever may open the socket is trusted, or HOST:PORT, which needs --tls-cert.
    /// May be given several times.
    #[arg(long, default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) listen: Vec<String>,

    /// Listen on TCP without TLS, on 127.0.0.1 too: everybody who can reach the port can read every node's view, and be
    /// taken for every node.
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) insecure: bool,

    /// Ask a node whose stream is so old, give or take a fifth, to connect anew, so that nodes spread over all replicas.
    /// 0: never.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = super::conntrack::duration)]
    pub(crate) max_stream_age: Duration,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// Where to answer /metrics, /healthz and /readyz over HTTP, for everybody who can connect: ADDRESS:PORT, or `none` for nowhere.
    /// No answer has names of Services or nodes in it.
    #[arg(long, default_value = "127.0.0.1:7601", value_name = "ADDRESS", value_parser = observe::address)]
    pub(crate) metrics: HttpAddress,

    #[command(flatten)]
    pub(crate) profiling: ProfilingArgs,

    /// Where to serve a page for people, which shows how nodes and Services are: ADDRESS:PORT, such as 127.0.0.1:7602, or `none` for
    /// nowhere. Everybody who can connect reads names of Services and nodes there.
    #[arg(long, default_value = "none", value_name = "ADDRESS", value_parser = observe::address)]
    pub(crate) page: HttpAddress,
}

/// Where the cluster's objects come from. Without either flag: the API server of the cluster that this runs in.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct SourceArgs {
    /// A directory of Kubernetes manifests (Service, EndpointSlice, Node, ServiceCIDR); edits take effect at once.
    #[arg(long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// A kubeconfig file that leads to the API server. The default is the environment's KUBECONFIG, if there is one.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What holds of the cluster besides what its objects say.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Where cluster IPs are allocated from, besides what ServiceCIDR objects say: CIDRs, comma-separated. Nodes drop
    /// what is sent to an address in there that no Service has.
    #[arg(long, value_delimiter = ',', value_name = "CIDR", value_parser = service_cidr)]
    pub(crate) service_cidr: Vec<IpNet>,

    /// Make no Events on Services that nodes cannot program, and on Nodes whose agent starts. With them the API must allow to create and patch events.events.k8s.io.
    #[arg(long)]
    pub(crate) no_events: bool,
}

/// Reads one CIDR of `--service-cidr`.
fn service_cidr(text: &str) -> Result<IpNet, String> {
    let cidr: IpNet = text.trim().parse().map_err(|_| format!("{text:?} is no CIDR, such as 10.96.0.0/12"))?;
    if cidr.prefix_len() == 0 {
        return Err(format!("{cidr} is all addresses there are"));
    }
    Ok(cidr.trunc())
}

impl SourceArgs {
    /// `--kubeconfig`, or else the environment's. Not left to the parser: a variable must not exclude `--manifests`.
    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        let environment = || std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.kubeconfig.clone().or_else(environment)
    }
}

impl FrontendArgs {
    /// `--listen`, checked against `--tls-cert` and `--insecure`.
    pub(crate) fn addresses(&self) -> Result<&[String]> {
        let secured = self.insecure || self.tls.tls_cert.is_some();
        if let Some(address) = self.listen.iter().find(|address| !secured && !address.starts_with("unix:")) {
            bail!(
                "--listen {address}: a TCP port without TLS is open to everybody who can reach it. \
                 Give --tls-cert and --tls-key, use unix:/PATH, or say --insecure"
            );
        }
        Ok(&self.listen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::HttpAddress;
    use super::super::{Cli, Command, testing::parse};

    #[test]
    fn plaintext_tcp_must_be_asked_for() {
        let addresses = |args: &[&str]| match parse(&[&["frontend", "--manifests", "m"], args].concat()) {
            Ok(Cli { command: Command::Frontend(frontend), .. }) => {
                frontend.addresses().map(<[String]>::to_vec).map_err(|error| error.to_string())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(addresses(&[]).unwrap(), ["unix:/run/fairlead/frontend.sock"]);
        for address in ["127.0.0.1:7600", "[::1]:7600", "0.0.0.0:7600"] {
            let error = addresses(&["--listen", "unix:/s", "--listen", address]).unwrap_err();
            assert!(error.contains(address) && error.contains("say --insecure"), "{error}");
            assert!(addresses(&["--listen", address, "--insecure"]).is_ok());
            assert!(addresses(&["--listen", address, "--tls-cert", "c", "--tls-key", "k"]).is_ok());
        }
    }

    #[test]
    fn service_cidrs_go_with_every_source() {
        let cidrs = |cidrs: &str| match parse(&["frontend", "--manifests", "m", "--service-cidr", cidrs]) {
            Ok(Cli { command: Command::Frontend(frontend), .. }) => Ok(frontend.cluster.service_cidr),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        let expected = ["10.96.0.0/16", "fd00:10:96::/112"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs("10.96.0.1/16, fd00:10:96::/112"), Ok(expected));
        assert!(cidrs("10.96.0.0").unwrap_err().contains("is no CIDR"));
        assert!(cidrs("0.0.0.0/0").unwrap_err().contains("all addresses"));
    }

    #[test]
    fn metrics_are_for_this_machine_unless_told_otherwise() {
        let metrics = |args: &[&str]| match parse(&[&["frontend", "--manifests", "m"], args].concat()) {
            Ok(Cli { command: Command::Frontend(frontend), .. }) => Ok(frontend.metrics),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        assert_eq!(metrics(&[]), Ok(HttpAddress::At(([127, 0, 0, 1], 7601).into())));
        assert_eq!(metrics(&["--metrics", "none"]), Ok(HttpAddress::Nowhere));
        assert!(matches!(metrics(&["--metrics", "[::]:9000"]), Ok(HttpAddress::At(_))));
        assert!(metrics(&["--metrics", "7601"]).unwrap_err().contains("no address with a port"));
    }

    #[test]
    fn the_sources_exclude_each_other() {
        assert!(parse(&["frontend", "--manifests", "m", "--kubeconfig", "k"]).is_err());
    }
}

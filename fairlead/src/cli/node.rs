//! The flags for this node and its frontend.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use backend::{Credentials, Discover, Grpc, GrpcOptions, LossLimit};
use clap::{Args, value_parser};
use frontend::identity::is_node_name;
use runtime::metrics::CertificateFile;

use super::DEFAULT_ADDRESS;
use crate::{config::duration, discovery::ServiceDiscovery};

#[derive(Clone, Debug, Args)]
pub(crate) struct FrontendAddressArgs {
    /// Connect to the frontend at `unix:/PATH`, `https://HOST:PORT`, or `http://HOST:PORT` (of a frontend that runs
    /// with --insecure). All addresses of a DNS name are used. `kubernetes:NAMESPACE/SERVICE:PORT` stands for the ready
    /// endpoints of that Service, which --discovery-kubeconfig finds. May be given several times: a reachable one is
    /// chosen at random.
    #[arg(
        long = "frontend",
        env = "FAIRLEAD_FRONTEND",
        value_delimiter = ',',
        default_value = DEFAULT_ADDRESS,
        value_name = "ADDRESS"
    )]
    pub(crate) addresses: Vec<String>,

    /// Discover `--frontend kubernetes:...` through this kubeconfig, which must have the API server's own address, not
    /// its Service's, and allow to get and list EndpointSlices in that namespace.
    #[arg(long, env = "FAIRLEAD_DISCOVERY_KUBECONFIG", value_name = "FILE")]
    pub(crate) discovery_kubeconfig: Option<PathBuf>,

    /// Verify the frontend's certificate with these CAs (PEM). Required for https. All TLS files are read for each
    /// connection.
    #[arg(long, env = "FAIRLEAD_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Expect this name in the frontend's certificate. Default: the HOST of its address.
    #[arg(long, env = "FAIRLEAD_FRONTEND_NAME", value_name = "NAME")]
    pub(crate) frontend_name: Option<String>,

    /// Authenticate with this certificate (PEM), of this node or of an admin identity. For https; needs --tls-key.
    #[arg(long, env = "FAIRLEAD_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Use this private key (PEM) for --tls-cert.
    #[arg(long, env = "FAIRLEAD_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Authenticate with this ServiceAccount token, bound to a pod of this node, instead of --tls-cert. For https.
    #[arg(long, env = "FAIRLEAD_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Run as this node, its Node's metadata.name. Default: the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Keep the last committed state in this directory: after a reboot the node can program its kernel without a
    /// frontend.
    #[arg(long, env = "FAIRLEAD_STATE_DIR", default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// Only log what would be written, and where kube-proxy's rules behave differently. Serves HTTP only if --healthz,
    /// --metrics or --drained-port is set.
    #[arg(long)]
    pub(crate) shadow: bool,

    /// Withhold losses when more than this percentage of the Services with endpoints lose all of them within a minute,
    /// until a snapshot confirms it ten seconds later. Not counted: the namespace that loses most (of several),
    /// Services that had no endpoints a minute ago, and endpoints from before a restart of this node. Losses of fewer
    /// than ten Services are applied at once. 100 disables this.
    #[arg(long, default_value_t, value_name = "PERCENT")]
    pub(crate) max_loss: LossLimit,

    /// Wait this long for the end of another instance in this network namespace, as during an update; then exit.
    #[arg(long, default_value = "1m", value_name = "TIME", value_parser = duration)]
    pub(crate) instance_timeout: Duration,

    /// Set the OOM score adjustment of this process: -1000 (never killed) to 1000 (killed first). Lowering it needs
    /// CAP_SYS_RESOURCE. Default: unchanged.
    #[arg(
        long,
        value_name = "SCORE",
        allow_negative_numbers = true,
        value_parser = value_parser!(i16).range(-1000..=1000)
    )]
    pub(crate) oom_score_adj: Option<i16>,
}

impl FrontendAddressArgs {
    /// Checks settings that depend on each other.
    pub(super) fn validate(&self) -> Result<()> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => bail!("--tls-cert needs --tls-key"),
            (None, Some(_)) => bail!("--tls-key needs --tls-cert"),
            _ => Ok(()),
        }
    }

    /// The certificates that this process uses.
    pub(crate) fn certificate_files(&self) -> Vec<CertificateFile> {
        let mut files = Vec::new();
        if let Some(path) = self.tls_cert.clone() {
            files.push(CertificateFile { name: "tls-cert", path, is_bundle: false });
        }
        if let Some(path) = self.tls_ca.clone() {
            files.push(CertificateFile { name: "tls-ca", path, is_bundle: true });
        }
        files
    }

    /// The client for the frontend.
    pub(crate) fn grpc(&self) -> Result<Grpc> {
        self.validate()?;
        let mut endpoints = Vec::new();
        let mut discovery = Vec::<Arc<dyn Discover>>::new();
        for address in &self.addresses {
            if ServiceDiscovery::has_scheme(address) {
                discovery.push(Arc::new(self.service_discovery(address)?));
            } else {
                endpoints.push(address.clone());
            }
        }

        let credentials = Credentials {
            authorities: self.tls_ca.clone(),
            identity: self.tls_cert.clone().zip(self.tls_key.clone()),
            token: self.token_file.clone(),
            frontend_name: self.frontend_name.clone(),
        };
        Grpc::new(GrpcOptions { endpoints, discovery, credentials })
    }

    fn service_discovery(&self, address: &str) -> Result<ServiceDiscovery> {
        let Some(kubeconfig) = self.discovery_kubeconfig.clone() else {
            bail!("--frontend {address} needs --discovery-kubeconfig");
        };
        ServiceDiscovery::new(address, kubeconfig).map_err(|error| anyhow!("--frontend {error}"))
    }
}

impl NodeArgs {
    /// `--node-name`, or this machine's host name.
    pub(crate) fn name(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

/// A node's name as kubelet and kube-proxy derive it: trimmed, in lower case.
pub(crate) fn node_name(given: Option<&str>) -> Result<String> {
    let text = match given {
        Some(name) => name.to_owned(),
        None => {
            fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read the host name; set --node-name")?
        }
    };
    let name = text.trim().to_lowercase();
    if !is_node_name(&name) {
        bail!(
            "{name:?} is not a valid name of a Node, which has at most 253 lower case letters, digits, '-' and '.'; \
             set --node-name"
        );
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_is_trimmed_and_in_lower_case() {
        assert_eq!(node_name(Some(" Node-A ")).unwrap(), "node-a");
        for name in [" ", "node_a"] {
            assert!(node_name(Some(name)).unwrap_err().to_string().contains("--node-name"));
        }
    }
}

//! The flags that say which node this is, and where its frontend is.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, anyhow, bail};
use backend::{Credentials, Discover, Grpc, GrpcOptions, LossLimit, RunMode};
use clap::Args;

use super::{BackendName, DEFAULT_ADDRESS};
use crate::discovery::{EndpointsOf, FrontendService};

#[derive(Clone, Debug, Args)]
pub(crate) struct FrontendAddressArgs {
    /// Where the frontend listens: `unix:/PATH`, `https://HOST:PORT`, or `http://HOST:PORT` for one that was told
    /// --insecure; of a name all addresses. `kubernetes:NAMESPACE/SERVICE:PORT` stands for the ready endpoints of that Service, found by
    /// --discovery-kubeconfig. May be given several times: one that works is chosen by chance.
    #[arg(long = "frontend", env = "FAIRLEAD_FRONTEND", default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) addresses: Vec<String>,

    /// A kubeconfig file that leads to the API server by its own address, not by its Service. Needed for `--frontend kubernetes:...`,
    /// to get and list EndpointSlices in that namespace.
    #[arg(long, value_name = "FILE")]
    pub(crate) discovery_kubeconfig: Option<PathBuf>,

    /// Certificates (PEM) of the authorities that may have signed the frontend's; needed for https. This and the other files
    /// are read for each connection.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// The name that the frontend's certificate must be for, where it is not the HOST of its address; for https.
    #[arg(long, value_name = "NAME")]
    pub(crate) frontend_name: Option<String>,

    /// This node's certificate (PEM), or that of somebody who may look at all nodes; for https.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key (PEM) of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A ServiceAccount token that is bound to this node (a projected volume has such), in place of --tls-cert; for https.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Where the last committed state is kept, so that a node that reboots alone comes up with it.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// Follow the frontend and log what would be written, and what kube-proxy's rules here do otherwise, and write nothing: no rule, no
    /// setting, no flow, no state. Listens nowhere unless --healthz or --metrics is given.
    #[arg(long)]
    pub(crate) shadow: bool,

    /// Hold back a change after which more than this share of the Services here that have endpoints have none or are gone, until a
    /// snapshot says so again ten seconds later. In percent; 100: believe everything at once. Losses of fewer than ten Services never wait.
    #[arg(long, default_value_t, value_name = "PERCENT")]
    pub(crate) max_loss: LossLimit,

    /// How readily the kernel ends this process when memory runs out: -1000 (never) to 1000 (first). Lowering it takes CAP_SYS_RESOURCE;
    /// where it cannot be written, that is logged. Without it, it stays as it is.
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = clap::value_parser!(i16).range(-1000..=1000))]
    pub(crate) oom_score_adj: Option<i16>,
}

/// A node that is looked at from itself.
#[derive(Clone, Debug, Args)]
pub(crate) struct HereArgs {
    /// Which backend runs here, or will.
    #[arg(long, value_enum, default_value = "nft")]
    pub(crate) backend: BackendName,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Where the backend keeps its state, or will.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,
}

impl HereArgs {
    /// `--node-name`, or this machine's host name.
    pub(crate) fn node(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

impl FrontendAddressArgs {
    /// Where to connect, and with what. `known`: where the addresses that were found last are kept.
    pub(crate) fn grpc(&self, known: Option<PathBuf>) -> Result<Grpc> {
        let Self { addresses, discovery_kubeconfig, tls_ca, frontend_name, tls_cert, tls_key, token_file } =
            self.clone();
        let credentials =
            Credentials { authorities: tls_ca, identity: tls_cert.zip(tls_key), token: token_file, frontend_name };
        let (services, endpoints): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| FrontendService::is_meant(address));
        let discover = |address: String| -> Result<Arc<dyn Discover>> {
            let service = address.parse().map_err(|error: String| anyhow!("--frontend {error}"))?;
            let kubeconfig = discovery_kubeconfig
                .clone()
                .with_context(|| format!("--frontend {address} needs --discovery-kubeconfig"))?;
            Ok(Arc::new(EndpointsOf::new(service, kubeconfig)))
        };
        let discovery = services.into_iter().map(discover).collect::<Result<_>>()?;
        Grpc::new(GrpcOptions { endpoints, discovery, address_cache: known, credentials })
    }
}

impl NodeArgs {
    /// Where the addresses of frontends that were found last are kept; nowhere by a shadow.
    pub(crate) fn known_frontends(&self) -> Option<PathBuf> {
        (self.run_mode() == RunMode::Program).then(|| self.state_dir.join("frontends"))
    }

    /// `--shadow`.
    pub(crate) fn run_mode(&self) -> RunMode {
        if self.shadow { RunMode::Shadow } else { RunMode::Program }
    }

    /// `--node-name`, or this machine's host name.
    pub(crate) fn name(&self) -> Result<String> {
        node_name(self.node_name.as_deref())
    }
}

/// A node's name as Kubernetes has it: trimmed, in lower case.
pub(super) fn node_name(given: Option<&str>) -> Result<String> {
    let name = match given {
        Some(name) => name.trim().to_lowercase(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .context("cannot read this machine's host name; give --node-name")?
            .trim()
            .to_lowercase(),
    };
    if name.is_empty() {
        bail!("the node's name is empty: give --node-name");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!(node_name(Some(" Node-A ")).unwrap(), "node-a");
        assert!(node_name(Some(" ")).unwrap_err().to_string().contains("--node-name"));
    }
}

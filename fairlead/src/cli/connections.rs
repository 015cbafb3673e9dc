//! The flags of `fairlead connections`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::{
    RunningBackendArgs,
    view::{ServiceArg, service},
};
use crate::{
    connections::{Grouping, Query},
    print::OutputArgs,
};

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead connections                           the Services whose connections this node translates
  fairlead connections default/web               the endpoints of one Service, with their shares
  fairlead connections default/web --by client   who uses it
  kubectl fairlead connections default/web       the same from all nodes, through kubectl

Read from the kernel's conntrack table, which is not changed, and from the state
file of the backend that runs here. A connection from a pod to a Service is
translated by the node of that pod, and arrives at the node of the endpoint
without a VIP: do not add the two. Bytes and packets are counted for connections
that begin after `sysctl -w net.netfilter.nf_conntrack_acct=1`.

As a kubectl plugin it runs in the backends' pods: you need `list` and `get` on
pods and `create` on pods/exec in the namespace of the chart.")]
pub(crate) struct ConnectionsArgs {
    /// Count only the connections of this Service, of the namespace `default` unless one is given.
    #[arg(value_name = "[NAMESPACE/]NAME", value_parser = service)]
    pub(crate) service: Option<ServiceArg>,

    /// Look for the Service in this namespace.
    #[arg(short = 'n', long, value_name = "NAMESPACE", requires = "service")]
    pub(crate) namespace: Option<String>,

    /// Group the connections. Default: `endpoint` for one Service, else `service`.
    #[arg(long, value_enum, value_name = "GROUP")]
    pub(crate) by: Option<Grouping>,

    /// Repeat until interrupted.
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Read the state file of the backend in this directory.
    #[arg(long, env = "FAIRLEAD_STATE_DIR", default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// Read the state of this node, its Node's metadata.name. Default: that of the running backend, else the host name
    /// in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    #[command(flatten)]
    pub(crate) running: RunningBackendArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl ConnectionsArgs {
    /// What is counted.
    pub(crate) fn query(&self) -> Result<Query> {
        let service = match self.service.clone() {
            Some(service) => Some(service.in_namespace(self.namespace.as_deref())?),
            None => None,
        };
        let default = if service.is_some() { Grouping::Endpoint } else { Grouping::Service };
        Ok(Query { by: self.by.unwrap_or(default), service })
    }
}

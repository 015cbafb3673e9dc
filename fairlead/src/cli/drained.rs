//! The flags of `fairlead drained`.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{Args, value_parser};

use super::observe::DRAINED_PORT;
use crate::config::duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  no node sends new connections to this pod, or the pod is in no Service;
     with --connections, none is left
  1  the timeout has passed; the output says which Services use the pod, which
     nodes are behind, or how many connections are left
  2  the node's backend did not respond within the timeout, or rejected the
     request; or --connections is given on the host network

For preStop in a pod, which is known by its source address and needs no rights.
Images without a shell get the program from an init container that runs
`fairlead drained --install /fairlead/drained` (docs/rollouts.md).")]
pub(crate) struct DrainedArgs {
    /// Ask the backend at this address: the pod's node (status.hostIP).
    #[arg(long, env = "HOST_IP", value_name = "IP", required_unless_present = "install")]
    pub(crate) node_address: Option<IpAddr>,

    /// The --drained-port of the backend.
    #[arg(long, default_value_t = DRAINED_PORT, value_name = "PORT")]
    pub(crate) port: u16,

    /// The addresses of the pod (status.podIPs), for pods with both IP families. Default: the source address.
    #[arg(long, env = "POD_IPS", value_delimiter = ',', value_name = "IP,IP")]
    pub(crate) address: Vec<IpAddr>,

    /// Wait at most this long, up to 5m (longer with --connections). Shorter than terminationGracePeriodSeconds.
    #[arg(long, default_value = "20s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Then wait, for the rest of --timeout, until no TCP connection to these ports of the pod is left: the targetPorts
    /// of its Services, because other ports have connections that stay, such as those of metrics. Not on the host
    /// network.
    #[arg(long, value_delimiter = ',', value_name = "PORT,PORT", value_parser = value_parser!(u16).range(1..))]
    pub(crate) connections: Vec<u16>,

    /// Copy this program to a file, and do nothing else: for an init container.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "timeout", "connections"])]
    pub(crate) install: Option<PathBuf>,
}

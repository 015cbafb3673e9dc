//! The flags of `fairlead protocol-test`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{config::duration, print::OutputArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Each scenario plays a short session and checks the backend against
docs/protocol.md: PASS, FAIL, or SKIP for an optional part that the backend does
not support, and for contents that cannot be compared because the backend sends
no digests and there is no --state-command. With COMMAND, the backend is started
for each scenario. Without, start it when the address is printed.

Exit codes:
  0  no scenario failed
  1  a scenario failed
  2  the command could not run

Examples:
  fairlead protocol-test -- ./my-backend --frontend {address} --node {node}
  fairlead protocol-test --listen unix:/tmp/c.sock --scenario drain -- ./my-backend {address}
  fairlead protocol-test --list")]
pub(crate) struct ProtocolTestArgs {
    /// Listen for the backend at `unix:/PATH`, or HOST:PORT without TLS. Port 0 picks a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub(crate) listen: String,

    /// Expect the backend to identify itself as this node.
    #[arg(long, visible_alias = "node-name", default_value = "conformance", value_name = "NAME")]
    pub(crate) node: String,

    /// Run only this scenario. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<String>,

    /// List the scenarios and run none.
    #[arg(long)]
    pub(crate) list: bool,

    /// Wait this long for each reply of the backend.
    #[arg(long, default_value = "20s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Run this shell command after each Ack to read what the backend has programmed: a JSON list of service ports,
    /// each as `namespace/name:port-name/tcp` or `namespace/name/tcp`, or as an object with `service_port` and
    /// `endpoints`, the `ADDRESS:PORT` of its cluster pools. Service ports without endpoints may be left out.
    #[arg(long, value_name = "SHELL")]
    pub(crate) state_command: Option<String>,

    /// Append the output of the backend to this file. Default: discard it, but show its last lines if it exits.
    #[arg(long, value_name = "FILE")]
    pub(crate) backend_log: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Start the backend with this command. `{address}` and `{node}` in its arguments are replaced; the environment has
    /// FAIRLEAD_ADDRESS and FAIRLEAD_NODE.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

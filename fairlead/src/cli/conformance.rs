//! The flags of `fairlead conformance`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{Output, conntrack::duration};

#[derive(Debug, Args)]
#[command(after_help = "\
Each scenario is a short conversation, after which the backend has done what docs/protocol.md says (PASS) or not (FAIL), or leaves out what it may (SKIP).
With a COMMAND the backend is started anew for each; without, start it yourself when you are told the address.

Exit codes:
  0  nothing has failed
  1  something has failed

Examples:
  fairlead conformance -- env/bin/python backend.py --frontend {address} --node {node} --config stream.conf --reload true
  fairlead conformance --listen unix:/tmp/c.sock --scenario drain -- ./my-backend --frontend {address}
  fairlead conformance --list")]
pub(crate) struct ConformanceArgs {
    /// Where to listen for the backend: `unix:/PATH`, or HOST:PORT, without TLS. Port 0 is one that is free.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    pub(crate) listen: String,

    /// The node that the backend must say it is.
    #[arg(long, visible_alias = "node-name", default_value = "conformance", value_name = "NAME")]
    pub(crate) node: String,

    /// Play this scenario only. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Vec<String>,

    /// List the scenarios and what they are about, and play none.
    #[arg(long)]
    pub(crate) list: bool,

    /// How long the backend may take for an answer.
    #[arg(long, default_value = "20s", value_name = "TIME", value_parser = duration)]
    pub(crate) patience: Duration,

    /// Prints what the backend has programmed, by the shell, after each Ack: a JSON list of service ports as `namespace/name:port-name/tcp`
    /// or `namespace/name/tcp`, or of objects with `service_port` and `endpoints`, those of the cluster pools as `ADDRESS:PORT`. Those
    /// without endpoints may be left out.
    #[arg(long, value_name = "SHELL")]
    pub(crate) state_command: Option<String>,

    /// Append what the backend prints to this file. Otherwise nobody sees it.
    #[arg(long, value_name = "FILE")]
    pub(crate) backend_log: Option<PathBuf>,

    /// How to print what came of it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,

    /// The backend, with its arguments. `{address}` and `{node}` in them are replaced; the environment has FAIRLEAD_ADDRESS and
    /// FAIRLEAD_NODE.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

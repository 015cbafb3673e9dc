//! The flags of `fairlead test`.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::{ServiceName, ViewArgs, conntrack::duration, endpoints::service};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead test                                   every Service that this node serves, from this node
  fairlead test --service default/web --http /    one, and what it answers to GET /

Exit codes:
  0  everything was as the frontend says that it should be
  1  it could not be tested
  2  something was not

What a node cannot see of itself: what others meet (source ranges, policy Local: to them a node is not outside), and its way through a load
balancer. SCTP is not tested. Connections are real: servers see them, and each UDP port is sent one byte.")]
pub(crate) struct TestArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,

    /// This Service only; may be given several times.
    #[arg(long = "service", value_name = "NAMESPACE/NAME", value_parser = service)]
    pub(crate) services: Vec<ServiceName>,

    /// So many connections to each address of each port.
    #[arg(long, default_value = "6", value_name = "NUMBER")]
    pub(crate) count: NonZeroUsize,

    /// How long a connection, or an answer over UDP, may take.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// So many addresses are tried at the same time.
    #[arg(long, default_value = "16", value_name = "NUMBER")]
    pub(crate) at_once: NonZeroUsize,

    /// So many addresses are tried at most; more are left out, and that is said.
    #[arg(long, default_value = "1000", value_name = "NUMBER")]
    pub(crate) most: NonZeroUsize,

    /// Over TCP, ask for this path by HTTP too, and show the status.
    #[arg(long, value_name = "PATH")]
    pub(crate) http: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn bounds_are_numbers_above_zero() {
        assert!(parse(&["test"]).is_ok());
        assert!(parse(&["test", "--service", "default/web", "--count", "20", "--http", "/healthz"]).is_ok());
        for flag in ["--count", "--at-once", "--most"] {
            assert!(parse(&["test", flag, "0"]).is_err());
        }
    }
}

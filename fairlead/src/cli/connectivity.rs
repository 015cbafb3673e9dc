//! The flags of `fairlead test`.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::{ServiceName, ViewArgs, conntrack::duration, endpoints::service};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead test                                   test every Service that this node serves, from this node
  fairlead test --service default/web --http /    test one Service, with GET /

Exit codes:
  0  every result was as the frontend's view predicts
  1  a result was different
  2  the command could not run

A node cannot test what only external clients see: source ranges, external policy Local, and the path through
a load balancer. SCTP is not tested. Connections are real: servers accept them, and each UDP port receives one
byte.")]
pub(crate) struct TestArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,

    /// Test only this Service. May be given several times.
    #[arg(long = "service", value_name = "NAMESPACE/NAME", value_parser = service)]
    pub(crate) services: Vec<ServiceName>,

    /// Open this many connections to each VIP.
    #[arg(long, default_value = "6", value_name = "NUMBER")]
    pub(crate) count: NonZeroUsize,

    /// Wait this long for a connection, or for a reply over UDP.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Test this many VIPs at the same time.
    #[arg(long, alias = "at-once", default_value = "16", value_name = "NUMBER")]
    pub(crate) parallel: NonZeroUsize,

    /// Test at most this many VIPs. The number of those left out is printed.
    #[arg(long, alias = "most", default_value = "1000", value_name = "NUMBER")]
    pub(crate) limit: NonZeroUsize,

    /// Send an HTTP request for this path over each TCP connection, and print the status code.
    #[arg(long, value_name = "PATH")]
    pub(crate) http: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn limits_are_above_zero() {
        assert!(parse(&["test"]).is_ok());
        assert!(parse(&["test", "--service", "default/web", "--count", "20", "--http", "/healthz"]).is_ok());
        for flag in ["--count", "--parallel", "--limit"] {
            assert!(parse(&["test", flag, "0"]).is_err());
        }
    }
}

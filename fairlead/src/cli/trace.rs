//! The flags of `fairlead trace`.

use std::net::{IpAddr, SocketAddr};

use clap::{Args, ValueEnum};
use proto::model::Protocol;

use super::Output;

/// From where a packet is followed whose source has no port.
const SOME_PORT: u16 = 40_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead trace 10.244.1.9 10.96.0.10:80                       a pod, to a cluster IP
  fairlead trace 192.0.2.7 172.18.0.2:30080 --from outside      somebody, to a node port
  fairlead trace 172.18.0.2 '[fd00:10:96::a]:53' -p udp         this node itself

No packet is sent: the rules of nf_tables and iptables, sets of ipset and virtual servers of IPVS are read and
followed, whoever has written them.")]
pub(crate) struct TraceArgs {
    /// Who sends it: an address, with or without a port.
    #[arg(value_name = "SRC", value_parser = source)]
    pub(crate) source: SocketAddr,

    /// Where to: an address and a port.
    #[arg(value_name = "DST:PORT")]
    pub(crate) destination: SocketAddr,

    /// tcp, udp or sctp.
    #[arg(short, long, default_value = "tcp", value_parser = protocol)]
    pub(crate) protocol: Protocol,

    /// How it comes: from this node itself, from a pod, from outside (both through the interface that leads to SRC), or through
    /// --interface. Without it: from the node if SRC is an address of this node.
    #[arg(long, value_enum, conflicts_with = "interface")]
    pub(crate) from: Option<Origin>,

    /// The interface that it comes in through.
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Origin {
    /// A process of this node.
    Node,
    /// A pod on this node.
    Pod,
    /// Another machine.
    Outside,
}

fn protocol(text: &str) -> Result<Protocol, String> {
    text.to_uppercase().parse().map_err(|_| format!("{text:?}: expected tcp, udp or sctp"))
}

/// An address, with or without a port.
fn source(text: &str) -> Result<SocketAddr, String> {
    let address = |text: &str| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, SOME_PORT));
    text.parse().or_else(|_| address(text)).map_err(|_| format!("{text:?} is no address, with or without a port"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn addresses_of_both_families() {
        for line in ["10.0.0.1 10.96.0.1:80", "10.0.0.1:9 10.96.0.1:80", "fd00::1 [fd00::2]:53 -p udp"] {
            let words: Vec<_> = ["trace"].into_iter().chain(line.split(' ')).collect();
            assert!(parse(&words).is_ok(), "{line}");
        }
        assert!(parse(&["trace", "10.0.0.1", "10.96.0.1"]).is_err());
        assert!(parse(&["trace", "pod", "10.96.0.1:80"]).is_err());
        assert!(parse(&["trace", "10.0.0.1", "10.96.0.1:80", "--from", "pod", "--interface", "veth1"]).is_err());
    }
}

//! The flags of `fairlead trace`.

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use proto::model::Protocol;

use crate::print::OutputArgs;

/// The source port of a packet if SRC has none.
const DEFAULT_SOURCE_PORT: u16 = 40_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead trace 10.244.1.9 10.96.0.10:80                from a pod to a cluster IP
  fairlead trace 192.0.2.7 172.18.0.2:30080              from an external client to a node port
  fairlead trace 172.18.0.2 '[fd00:10:96::a]:53' -p udp  from this node

No packet is sent: the rules of nf_tables and iptables, sets of ipset and
virtual servers of IPVS are read and evaluated, including those of other
programs.")]
pub(crate) struct TraceArgs {
    /// Source address of the packet, with or without a port.
    #[arg(value_name = "SRC", value_parser = source)]
    pub(crate) source: SocketAddr,

    /// Destination address and port of the packet.
    #[arg(value_name = "DST:PORT", value_parser = destination)]
    pub(crate) destination: SocketAddr,

    /// Protocol of the packet: tcp, udp or sctp.
    #[arg(short, long, default_value = "tcp", value_parser = protocol)]
    pub(crate) protocol: Protocol,

    /// Interface through which the packet arrives. Default: the one that routes to SRC; none if SRC is an address of
    /// this node, which then sends the packet.
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn protocol(text: &str) -> Result<Protocol, String> {
    text.to_uppercase().parse().map_err(|_| format!("{text:?}: expected tcp, udp or sctp"))
}

/// Parses an address, with or without a port.
fn source(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DEFAULT_SOURCE_PORT));
    }
    text.parse().map_err(|_| format!("{text:?}: expected an address, with or without a port"))
}

/// Parses an address with a port.
fn destination(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected ADDRESS:PORT, such as 10.96.0.10:80 or [fd00::10]:80".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn addresses_of_both_families_are_parsed() {
        for line in ["10.0.0.1 10.96.0.1:80", "10.0.0.1:9 10.96.0.1:80", "fd00::1 [fd00::2]:53 -p udp"] {
            let words: Vec<_> = ["trace"].into_iter().chain(line.split(' ')).collect();
            assert!(parse(&words).is_ok(), "{line}");
        }
        for destination in ["10.96.0.1", "fd00::2", "web:80"] {
            let error = parse(&["trace", "10.0.0.1", destination]).unwrap_err();
            assert!(error.contains("expected ADDRESS:PORT"), "{error}");
        }
        assert!(parse(&["trace", "pod", "10.96.0.1:80"]).is_err());
    }
}

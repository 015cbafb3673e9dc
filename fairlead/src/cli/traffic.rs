//! The flags that say how packets are treated.

use backend_nft::NodePortAddresses;
use clap::Args;
use ipnet::IpNet;

#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Where pod addresses are allocated from: one CIDR, or one of each family, comma-separated. Traffic to cluster IPs
    /// from outside it is masqueraded; under external policy Local, pods reach every endpoint.
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    pub(crate) cluster_cidr: Vec<IpNet>,

    /// Masquerade all traffic to cluster IPs.
    #[arg(long)]
    pub(crate) masquerade_all: bool,

    /// The bit of the packet mark that says "masquerade this" (0 to 31).
    #[arg(long, default_value_t = 14, value_name = "BIT", value_parser = clap::value_parser!(u8).range(0..32))]
    pub(crate) masquerade_bit: u8,

    /// Where node ports answer: `primary` (the node's first address of each family), or CIDRs of local addresses,
    /// comma-separated. Never on loopback.
    #[arg(long, default_value = "primary", value_name = "primary|CIDR,...", value_parser = nodeport_addresses)]
    pub(crate) nodeport_addresses: NodePortAddresses,
}

/// Reads `--nodeport-addresses`.
fn nodeport_addresses(value: &str) -> Result<NodePortAddresses, String> {
    if value == "primary" {
        return Ok(NodePortAddresses::Primary);
    }
    let cidr = |text: &str| {
        let text = text.trim();
        let hint = "expected `primary` alone, or CIDRs such as 192.168.0.0/16";
        text.parse::<IpNet>().map(|cidr| cidr.trunc()).map_err(|_| format!("{text:?} is no CIDR: {hint}"))
    };
    value.split(',').map(cidr).collect::<Result<_, _>>().map(NodePortAddresses::Cidrs)
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{local, parse},
        *,
    };

    fn traffic(args: &[&str]) -> TrafficArgs {
        local(args).traffic
    }

    #[test]
    fn a_dual_stack_pair_of_cluster_cidrs_is_taken_apart() {
        let pair = ["10.244.0.0/16", "fd00:10:244::/56"];
        let expected = pair.map(|cidr| cidr.parse().unwrap());
        assert_eq!(traffic(&["--cluster-cidr", &pair.join(",")]).cluster_cidr, expected);
    }

    #[test]
    fn nodeport_addresses_are_primary_or_cidrs() {
        assert_eq!(traffic(&[]).nodeport_addresses, NodePortAddresses::Primary);
        let cidrs = traffic(&["--nodeport-addresses", "192.168.1.7/16, fd00::/8"]).nodeport_addresses;
        let expected = ["192.168.0.0/16", "fd00::/8"].map(|cidr| cidr.parse().unwrap()).to_vec();
        assert_eq!(cidrs, NodePortAddresses::Cidrs(expected));
        let error =
            parse(&["local", "--backend", "nft", "--nodeport-addresses", "primary,10.0.0.0/8"]).unwrap_err();
        assert!(error.contains("`primary` alone"), "{error}");
    }
}

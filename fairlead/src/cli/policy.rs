//! The flags that limit what users can do with Services: the addresses they may claim, and the size of a Service.

use std::net::SocketAddr;

use clap::{Args, builder::RangedU64ValueParser};
use frontend::{
    index::{AllowedIps, ServicePolicy},
    object::{ConnectionResets, ServiceLimits},
};

/// Which addresses Services may claim, and how much of one Service is used.
#[derive(Clone, Debug, Args)]
pub(crate) struct PolicyArgs {
    /// Serve these spec.externalIPs: `all`, `none` (advised where no Service needs them, because every user who may
    /// write a Service can claim them), or those in CIDRs, comma-separated.
    #[arg(long, default_value_t, value_name = "WHICH")]
    pub(crate) external_ips: AllowedIps,

    /// Serve these load-balancer IPs, from the status of Services: `all`, `none`, or those in CIDRs, comma-separated.
    #[arg(long, default_value_t, value_name = "WHICH")]
    pub(crate) load_balancer_ips: AllowedIps,

    /// Serve no Service on these TCP and UDP ports at addresses of Nodes, and as node ports, comma-separated: by
    /// default those of sshd, BGP, etcd and Kubernetes components. The ports of the endpoints of default/kubernetes and
    /// of this process are protected as well.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "22,179,2379,2380,6443,9345,10249,10250,10256,10257,10258,10259,24256",
        value_name = "PORT"
    )]
    pub(crate) protected_ports: Vec<u16>,

    /// Serve no external or load-balancer IP that is an address of a Node. Needed in a frontend of IPVS backends, and
    /// set in `local` with IPVS: there every node has each VIP as an address, and could not reach that Node.
    #[arg(long)]
    pub(crate) refuse_node_addresses: bool,

    /// Serve at most this number (up to 4096) of external and load-balancer IPs of a Service, the first in sorted
    /// order.
    #[arg(long, default_value_t = ServiceLimits::default().vips, value_name = "COUNT", value_parser = list())]
    pub(crate) max_service_vips: usize,

    /// Serve at most this number of external and load-balancer IPs times ports of a Service.
    #[arg(long, default_value_t = ServiceLimits::default().port_vips, value_name = "COUNT", value_parser = count())]
    pub(crate) max_service_port_vips: usize,

    /// Close the load-balancer IPs of a Service with more source ranges than this (up to 4096), without ranges that
    /// others contain or complete.
    #[arg(long, default_value_t = ServiceLimits::default().source_ranges, value_name = "COUNT", value_parser = list())]
    pub(crate) max_service_source_ranges: usize,

    /// Close the load-balancer IPs of a Service with more source ranges times ports than this.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    #[arg(default_value_t = ServiceLimits::default().port_source_ranges)]
    pub(crate) max_service_port_source_ranges: usize,

    /// Use at most this number of endpoints of a service port in each IP family, the same subset on every node.
    #[arg(long, default_value_t = ServiceLimits::default().endpoints, value_name = "COUNT", value_parser = count())]
    pub(crate) max_service_endpoints: usize,

    /// Use at most this number of endpoints times ports of a Service in each IP family, the same subset on every node.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    #[arg(default_value_t = ServiceLimits::default().port_endpoints)]
    pub(crate) max_service_port_endpoints: usize,

    /// Reset TCP connections to endpoints that are gone, once other endpoints serve: `never`; `node-gone`, endpoints
    /// that do not serve, on a Node whose object was deleted; or `removed`, also endpoints in no EndpointSlice of the
    /// Service. The annotation fairlead.io/reset-connections of a Service may choose less.
    #[arg(long, default_value_t, value_name = "WHICH")]
    pub(crate) reset_connections: ConnectionResets,
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn list() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=ServiceLimits::MAX_LIST as u64)
}

impl PolicyArgs {
    /// `listening`: the addresses at which this process listens, whose ports are protected.
    pub(crate) fn policy(&self, listening: impl IntoIterator<Item = SocketAddr>) -> ServicePolicy {
        let ports = listening.into_iter().map(|address| address.port());
        ServicePolicy {
            external_ips: self.external_ips.clone(),
            load_balancer_ips: self.load_balancer_ips.clone(),
            protected_ports: self.protected_ports.iter().copied().chain(ports).collect(),
            // A flag of `frontend`, and one of the traffic flags of `local`.
            cluster_cidrs: Vec::new(),
            refuse_node_addresses: self.refuse_node_addresses,
            limits: ServiceLimits {
                vips: self.max_service_vips,
                port_vips: self.max_service_port_vips,
                source_ranges: self.max_service_source_ranges,
                port_source_ranges: self.max_service_port_source_ranges,
                endpoints: self.max_service_endpoints,
                port_endpoints: self.max_service_port_endpoints,
            },
            connection_resets: self.reset_connections,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::local;

    #[test]
    fn defaults_are_those_of_the_library() {
        let policy = local("nftables", &[]).cluster.policy.policy([([127, 0, 0, 1], 7601).into()]);
        let expected = frontend::index::ServicePolicy { ..Default::default() };
        let protected = [22, 179, 2379, 2380, 6443, 7601, 9345, 10249, 10250, 10256, 10257, 10258, 10259, 24256];
        assert_eq!(policy, frontend::index::ServicePolicy { protected_ports: protected.into(), ..expected });
    }

    #[test]
    fn addresses_and_limits_are_parsed() {
        let args =
            ["--external-ips", "none", "--load-balancer-ips=192.0.2.0/24,2001:db8::/64", "--max-service-vips=16"];
        let policy = local("nftables", &args).cluster.policy.policy([]);
        assert_eq!(policy.external_ips.to_string(), "none");
        assert_eq!(policy.load_balancer_ips.to_string(), "192.0.2.0/24,2001:db8::/64");
        assert_eq!(policy.limits.vips, 16);
        let parse = |flag| super::super::testing::parse(&["frontend", "--manifests", "m", flag]);
        assert!(parse("--max-service-vips=5000").unwrap_err().contains("4096"));
        assert!(parse("--external-ips=some").unwrap_err().contains("expected `all`"));
        assert!(parse("--max-service-endpoints=0").is_err());
    }
}

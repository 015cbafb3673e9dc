//! The flags for the kernel's connection tracking, named as kube-proxy's.

use std::{path::Path, time::Duration};

use backend::{ConntrackSettings, dataplane::InvalidPackets, tcp_is_liberal};
use clap::Args;

use crate::config::duration;

#[derive(Clone, Debug, Args)]
pub(crate) struct ConntrackArgs {
    /// Limit the conntrack table to this many entries per CPU, at most 1048576 in total. The kernel's limit is only
    /// ever raised.
    #[arg(long, default_value_t = 32_768, value_name = "NUMBER")]
    conntrack_max_per_core: u32,

    /// Limit the conntrack table to at least this many entries. Ignored with --conntrack-max-per-core 0.
    #[arg(long, default_value_t = 131_072, value_name = "NUMBER")]
    conntrack_min: u32,

    /// Keep entries of idle TCP connections this long.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = duration)]
    conntrack_tcp_timeout_established: Duration,

    /// Keep entries of TCP connections that the remote side has closed this long.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration)]
    conntrack_tcp_timeout_close_wait: Duration,

    /// Keep entries of UDP flows without a reply this long.
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = duration)]
    conntrack_udp_timeout: Duration,

    /// Keep entries of UDP flows with a reply this long.
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = duration)]
    conntrack_udp_timeout_stream: Duration,

    /// Accept TCP packets outside of the window as valid. With backend iptables, forwarded packets of no connection are
    /// then not dropped.
    #[arg(long)]
    conntrack_tcp_be_liberal: bool,
}

impl ConntrackArgs {
    /// What happens to invalid packets on this node.
    pub(crate) fn invalid_packets(&self) -> InvalidPackets {
        if self.conntrack_tcp_be_liberal { InvalidPackets::Pass } else { invalid_packets_by_sysctl() }
    }
}

/// What happens to invalid packets on this node, by its current setting.
pub(crate) fn invalid_packets_by_sysctl() -> InvalidPackets {
    if tcp_is_liberal(Path::new("/")) { InvalidPackets::Pass } else { InvalidPackets::Drop }
}

impl From<ConntrackArgs> for ConntrackSettings {
    fn from(args: ConntrackArgs) -> Self {
        Self {
            max_per_core: args.conntrack_max_per_core,
            min: args.conntrack_min,
            tcp_established: args.conntrack_tcp_timeout_established,
            tcp_close_wait: args.conntrack_tcp_timeout_close_wait,
            udp: args.conntrack_udp_timeout,
            udp_stream: args.conntrack_udp_timeout_stream,
            tcp_be_liberal: args.conntrack_tcp_be_liberal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::local, *};

    #[test]
    fn defaults_are_those_of_kube_proxy() {
        assert_eq!(ConntrackSettings::from(local("nftables", &[]).any.common.conntrack), ConntrackSettings::default());
    }

    #[test]
    fn flags_become_settings() {
        let args = local(
            "nftables",
            &[
                "--conntrack-max-per-core=1",
                "--conntrack-min=2",
                "--conntrack-tcp-timeout-established=3s",
                "--conntrack-tcp-timeout-close-wait=4s",
                "--conntrack-udp-timeout=5s",
                "--conntrack-udp-timeout-stream=6s",
                "--conntrack-tcp-be-liberal",
            ],
        );
        let expected = ConntrackSettings {
            max_per_core: 1,
            min: 2,
            tcp_established: Duration::from_secs(3),
            tcp_close_wait: Duration::from_secs(4),
            udp: Duration::from_secs(5),
            udp_stream: Duration::from_secs(6),
            tcp_be_liberal: true,
        };
        assert_eq!(ConntrackSettings::from(args.any.common.conntrack), expected);
    }
}

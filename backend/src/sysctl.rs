//! The kernel's conntrack settings, managed as kube-proxy manages them, before the first rule is written.
//!
//! ```text
//!   ConntrackSettings, CPUs ──▶ desired values ──┐
//!                                                ├─ differ? ──▶ /proc/sys/net/netfilter, /sys/module/nf_conntrack
//!                               current values ──┘
//! ```
//!
//! A file is written only if its value differs. The timeouts belong to a network namespace, the limit and the size of
//! the hash table to the machine.

mod kernel;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

pub use kernel::tcp_is_liberal;

/// The highest limit that grows with the CPUs. The constant is kube-proxy's.
const MAX_BY_CORES: u64 = 1 << 20;
const FLOWS_PER_BUCKET: u64 = 4;

/// The desired settings. Zero leaves a setting unchanged. The fields are those of `conntrack` in
/// `KubeProxyConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// The limit of flows per CPU. The kernel's limit is never lowered: other programs may need more.
    pub max_per_core: u32,
    /// The lowest limit, if there are few CPUs. Applies only with `max_per_core`.
    pub min: u32,
    /// The timeout of an idle TCP connection. All timeouts are in whole seconds.
    pub tcp_established: Duration,
    /// The timeout of a TCP connection in CLOSE_WAIT.
    pub tcp_close_wait: Duration,
    /// The timeout of a UDP flow without replies.
    pub udp: Duration,
    /// The timeout of a UDP flow with replies.
    pub udp_stream: Duration,
    /// Packets outside of the TCP window do not count as invalid. `false` leaves the setting unchanged.
    pub tcp_be_liberal: bool,
}

/// A file of the kernel with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConntrackSetting {
    Max,
    HashSize,
    TcpEstablished,
    TcpCloseWait,
    Udp,
    UdpStream,
    TcpBeLiberal,
}

// === impl ConntrackSettings ===

impl Default for ConntrackSettings {
    /// kube-proxy's defaults.
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(60 * 60);
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: 24 * HOUR,
            tcp_close_wait: HOUR,
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
            tcp_be_liberal: false,
        }
    }
}

impl ConntrackSettings {
    /// The settings that are not left unchanged.
    fn desired(&self, cores: u32) -> BTreeMap<ConntrackSetting, u64> {
        let Self { max_per_core: _, min: _, tcp_established, tcp_close_wait, udp, udp_stream, tcp_be_liberal } = self;
        let max = self.max(cores);
        let all = [
            (ConntrackSetting::Max, max),
            (ConntrackSetting::HashSize, max / FLOWS_PER_BUCKET),
            (ConntrackSetting::TcpEstablished, tcp_established.as_secs()),
            (ConntrackSetting::TcpCloseWait, tcp_close_wait.as_secs()),
            (ConntrackSetting::Udp, udp.as_secs()),
            (ConntrackSetting::UdpStream, udp_stream.as_secs()),
            (ConntrackSetting::TcpBeLiberal, u64::from(*tcp_be_liberal)),
        ];
        all.into_iter().filter(|(_, value)| *value > 0).collect()
    }

    /// The limit: proportional to the CPUs, between `min` and a maximum that takes precedence.
    fn max(&self, cores: u32) -> u64 {
        let scaled = u64::from(self.max_per_core) * u64::from(cores);
        match scaled {
            0 => 0,
            _ if scaled > MAX_BY_CORES => MAX_BY_CORES,
            _ => scaled.max(self.min.into()),
        }
    }
}

// === impl ConntrackSetting ===

impl ConntrackSetting {
    /// The path of the file, relative to the root directory.
    fn path(self) -> &'static str {
        match self {
            Self::Max => "proc/sys/net/netfilter/nf_conntrack_max",
            Self::HashSize => "sys/module/nf_conntrack/parameters/hashsize",
            Self::TcpEstablished => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            Self::TcpCloseWait => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            Self::Udp => "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
            Self::UdpStream => "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
            Self::TcpBeLiberal => "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
        }
    }

    /// The flag that leaves the setting unchanged.
    fn opt_out(self) -> &'static str {
        match self {
            Self::Max | Self::HashSize => "--conntrack-max-per-core 0",
            Self::TcpEstablished => "--conntrack-tcp-timeout-established 0",
            Self::TcpCloseWait => "--conntrack-tcp-timeout-close-wait 0",
            Self::Udp => "--conntrack-udp-timeout 0",
            Self::UdpStream => "--conntrack-udp-timeout-stream 0",
            Self::TcpBeLiberal => "no --conntrack-tcp-be-liberal",
        }
    }

    fn only_grows(self) -> bool {
        matches!(self, Self::Max | Self::HashSize)
    }

    /// Whether the file is to be written.
    fn differs(self, current: u64, desired: u64) -> bool {
        if self.only_grows() { current < desired } else { current != desired }
    }
}

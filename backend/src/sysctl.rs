//! The kernel's settings for connection tracking, which every VIP depends on: managed as kube-proxy manages them,
//! before the first rule is written.
//!
//! ```text
//!   ConntrackSettings ──┐
//!   CPUs                ├──▶ plan ──▶ writes ──▶ /proc/sys/net/netfilter, /sys/module/nf_conntrack
//!   what is set now   ──┘
//! ```
//!
//! Read first: a file is only written when it says something else. The timeouts are of one network namespace, the limit
//! and the size of the hash table are of the machine.

mod kernel;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

/// Beyond this many flows the limit does not grow with the CPUs. The constant is kube-proxy's.
const MAX_BY_CORES: u64 = 1 << 20;
/// How many flows may share one bucket of the hash table.
const FLOWS_PER_BUCKET: u64 = 4;

/// What is wanted. Zero leaves a setting as it is. The fields are those of `conntrack` in `KubeProxyConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// How many flows the kernel may remember for each CPU. It is never lowered: somebody may need more.
    pub max_per_core: u32,
    /// How many it may remember at least, however few CPUs there are. Counts only with `max_per_core`.
    pub min: u32,
    /// How long an idle TCP connection is remembered. In whole seconds, as all of these.
    pub tcp_established: Duration,
    /// How long one that the other side has closed is remembered.
    pub tcp_close_wait: Duration,
    /// How long a UDP flow is remembered that was never answered.
    pub udp: Duration,
    /// How long one is remembered that was.
    pub udp_stream: Duration,
    /// Packets outside of the TCP window are not invalid. `false` leaves it as it is.
    pub tcp_be_liberal: bool,
}

/// A file of the kernel that holds one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Max,
    HashSize,
    TcpEstablished,
    TcpCloseWait,
    Udp,
    UdpStream,
    TcpBeLiberal,
}

/// A file that must say something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    setting: Setting,
    present: u64,
    wanted: u64,
}

/// What to write, given what each wanted file says now. Pure.
fn plan(settings: &ConntrackSettings, present: &BTreeMap<Setting, u64>, cores: u32) -> Vec<Write> {
    let writes = settings.wanted(cores).into_iter().filter_map(|(setting, wanted)| {
        let present = *present.get(&setting)?;
        let differs = if setting.only_grows() { present < wanted } else { present != wanted };
        differs.then_some(Write { setting, present, wanted })
    });
    writes.collect()
}

// === impl ConntrackSettings ===

impl Default for ConntrackSettings {
    /// kube-proxy's.
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
    /// All settings that are not left as they are.
    fn wanted(&self, cores: u32) -> BTreeMap<Setting, u64> {
        let Self { max_per_core: _, min: _, tcp_established, tcp_close_wait, udp, udp_stream, tcp_be_liberal } = self;
        let max = self.max(cores);
        let all = [
            (Setting::Max, max),
            (Setting::HashSize, max / FLOWS_PER_BUCKET),
            (Setting::TcpEstablished, tcp_established.as_secs()),
            (Setting::TcpCloseWait, tcp_close_wait.as_secs()),
            (Setting::Udp, udp.as_secs()),
            (Setting::UdpStream, udp_stream.as_secs()),
            (Setting::TcpBeLiberal, u64::from(*tcp_be_liberal)),
        ];
        all.into_iter().filter(|(_, wanted)| *wanted > 0).collect()
    }

    /// The limit: by CPUs, up to a point; or the least, if that is more and this point is not reached.
    fn max(&self, cores: u32) -> u64 {
        let scaled = u64::from(self.max_per_core) * u64::from(cores);
        match scaled {
            0 => 0,
            _ if scaled > MAX_BY_CORES => MAX_BY_CORES,
            _ => scaled.max(self.min.into()),
        }
    }
}

// === impl Setting ===

impl Setting {
    /// The file, below the root directory.
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

    /// What leaves it as it is, on the command line.
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
}

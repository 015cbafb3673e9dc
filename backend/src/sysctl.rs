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

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fs, io::Write as _, path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use netlink::conntrack::ConntrackHandle;
use proto::model::{IpFamily, Protocol};
use tracing::{debug, info, warn};

/// The highest limit that grows with the CPUs, as in kube-proxy.
const MAX_FLOWS_BY_CORES: u64 = 1 << 20;
/// The size of the hash table, as in kube-proxy: a bucket for each four flows of the limit.
const FLOWS_PER_BUCKET: u64 = 4;

/// The CPUs that are online, as ranges: `0-3,6`.
const ONLINE_CPUS: &str = "sys/devices/system/cpu/online";

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
    /// Writes the settings to the kernel's files below `root` (`/` except in tests).
    ///
    /// # Errors
    /// When a file cannot be read or written; the text names the file, both values and what to do. The limit and the
    /// hash table may keep their sizes: they belong to the machine, and are read-only in containers and in all network
    /// namespaces but the first.
    pub fn apply(&self, root: &Path) -> Result<()> {
        let desired = self.desired(online_cpus(root)?);
        if !desired.is_empty() && !root.join(ConntrackSetting::TcpEstablished.path()).exists() {
            load_module();
        }

        let mut writes = Vec::new();
        for (setting, desired) in desired {
            match read_number(&root.join(setting.path())) {
                Ok(current) if setting.differs(current, desired) => writes.push((setting, current, desired)),
                Ok(_) => {}
                Err(error) if setting == ConntrackSetting::HashSize => {
                    debug!(file = setting.path(), error = format!("{error:#}"), "cannot read a conntrack setting");
                }
                Err(error) => return Err(error).with_context(|| unreadable(setting, desired)),
            }
        }

        // Nothing is written before all files have been read.
        for (setting, current, desired) in writes {
            setting.write(root, current, desired)?;
        }
        Ok(())
    }

    /// The values of the settings, without settings that are left unchanged.
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
            _ if scaled > MAX_FLOWS_BY_CORES => MAX_FLOWS_BY_CORES,
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

    fn write(self, root: &Path, current: u64, desired: u64) -> Result<()> {
        // Without `create`: a missing file is a setting that the kernel does not have.
        let opened = fs::OpenOptions::new().write(true).truncate(true).open(root.join(self.path()));
        let written = opened.and_then(|mut file| file.write_all(desired.to_string().as_bytes()));
        match written {
            Ok(()) => {
                info!(file = self.path(), previous = current, value = desired, "changed a conntrack setting");
                Ok(())
            }
            Err(error) if self.only_grows() => {
                let file = self.path();
                warn!(file, value = current, desired, %error, "cannot enlarge the conntrack table, set it on the host");
                Ok(())
            }
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot set /{} to {desired} (it is {current}): run with write access (a privileged container), \
                     set it on the host beforehand, or leave it unchanged with {}",
                    self.path(),
                    self.opt_out()
                )
            }),
        }
    }
}

/// Whether conntrack accepts TCP packets outside of the window, by the setting below `root`.
pub fn tcp_is_liberal(root: &Path) -> bool {
    // Without the file nf_conntrack is not loaded yet, and begins with zero.
    read_number(&root.join(ConntrackSetting::TcpBeLiberal.path())).is_ok_and(|value| value != 0)
}

/// The CPUs of the machine, not those of this process: the limit is the machine's.
fn online_cpus(root: &Path) -> Result<u32> {
    let path = root.join(ONLINE_CPUS);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    count_cpus(text.trim()).ok_or_else(|| anyhow!("{} contains no list of CPUs: {text:?}", path.display()))
}

/// Counts `0-3,6`.
fn count_cpus(ranges: &str) -> Option<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    ranges.split(',').map(range).sum()
}

fn read_number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().with_context(|| format!("{text:?} is not a number"))
}

fn unreadable(setting: ConntrackSetting, desired: u64) -> String {
    format!(
        "cannot read /{} to set it to {desired}: load the kernel module nf_conntrack, or leave it unchanged with {}",
        setting.path(),
        setting.opt_out()
    )
}

/// Lists flows, which makes the kernel load nf_conntrack. There are none, or it would be loaded.
fn load_module() {
    let listed = ConntrackHandle::open().and_then(|mut handle| handle.flows(IpFamily::V4, Protocol::Udp, |_| Ok(())));
    if let Err(error) = listed {
        // The missing files are the error to show.
        debug!(%error, "cannot list conntrack flows to load nf_conntrack");
    }
}

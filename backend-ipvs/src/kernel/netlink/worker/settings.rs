//! The sysctls of IPVS in the thread's network namespace. A sysctl is written only if its value differs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use netlink::ipvs;
use tracing::debug;

use crate::settings::Arp;

/// See `Documentation/networking/ipvs-sysctl.rst`.
const IPVS: [(&str, &str); 4] = [
    // Connections are tracked, so that they can be masqueraded.
    ("ipv4/vs/conntrack", "1"),
    // Packets of a connection to a deleted destination end the connection, instead of being dropped until it times out.
    ("ipv4/vs/expire_nodest_conn", "1"),
    // A persistent client is not sent to a destination that drains.
    ("ipv4/vs/expire_quiescent_template", "1"),
    // A client that reuses a port is sent to the same destination. Otherwise IPVS drops its first packet while
    // conntrack has an entry for the connection, which delays it by a second. If the destination drains or is deleted,
    // Linux 5.9 and later select another one.
    ("ipv4/vs/conn_reuse_mode", "0"),
];
/// `Documentation/networking/ip-sysctl.rst`.
const STRICT_ARP: [(&str, &str); 2] = [("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")];

/// A sysctl with another value than desired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::netlink) struct Setting {
    /// Below `/proc/sys/net`.
    pub(in crate::kernel::netlink) name: &'static str,
    /// The desired value.
    pub(in crate::kernel::netlink) value: &'static str,
}

/// The sysctls that differ. While IPVS is not loaded, its own sysctls do not exist and are left out.
pub(super) fn wrong(arp: Arp) -> Result<Vec<Setting>> {
    let more: &[_] = match arp {
        Arp::AsItIs => &[],
        Arp::Strict => &STRICT_ARP,
    };
    let own: &[_] = if ipvs::is_loaded() { &IPVS } else { &[] };
    let mut wrong = Vec::new();
    for (name, value) in own.iter().chain(more) {
        let path = path(name);
        let observed = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        if observed.trim() != *value {
            wrong.push(Setting { name, value });
        }
    }
    Ok(wrong)
}

/// Writes a sysctl.
pub(super) fn write(Setting { name, value }: Setting) -> Result<()> {
    let path = path(name);
    fs::write(&path, value).with_context(|| format!("write {}", path.display()))?;
    debug!(sysctl = name, value, "sysctl written");
    Ok(())
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(name)
}

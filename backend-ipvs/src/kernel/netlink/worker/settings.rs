//! The kernel's settings for IPVS, of the thread's network namespace. Read first: a file is only written when it says something else.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use netlink::ipvs;
use tracing::debug;

use crate::settings::Arp;

/// `Documentation/networking/ipvs-sysctl.rst`, and why.
const IPVS: [(&str, &str); 4] = [
    // Connections are tracked, so that they can be masqueraded.
    ("ipv4/vs/conntrack", "1"),
    // What comes for a destination that is gone is not swallowed for as long as the connection is remembered.
    ("ipv4/vs/expire_nodest_conn", "1"),
    // A client that is remembered is not sent to a destination that drains.
    ("ipv4/vs/expire_quiescent_template", "1"),
    // A client that takes a port again goes where it went before. Otherwise its first packet is lost wherever conntrack remembers the
    // connection better than IPVS, which costs a second. If that destination drains or is gone, another is chosen, from Linux 5.9 on.
    ("ipv4/vs/conn_reuse_mode", "0"),
];
/// `Documentation/networking/ip-sysctl.rst`.
const STRICT_ARP: [(&str, &str); 2] = [("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")];

/// A setting that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel::netlink) struct Setting {
    /// Below `/proc/sys/net`.
    pub(in crate::kernel::netlink) name: &'static str,
    /// What it should be.
    pub(in crate::kernel::netlink) value: &'static str,
}

/// Those that are not what they should be. Without IPVS only those that are not its own.
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

/// Writes one.
pub(super) fn write(Setting { name, value }: Setting) -> Result<()> {
    let path = path(name);
    fs::write(&path, value).with_context(|| format!("write {}", path.display()))?;
    debug!(setting = name, value, "set");
    Ok(())
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(name)
}

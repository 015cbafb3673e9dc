//! The sysctl that makes the kernel route packets between loopback addresses and other hosts, for node ports on
//! 127.0.0.0/8.

use std::fs;

use anyhow::{Context as _, Result};
use tracing::info;

/// It belongs to the network namespace of the thread that opens it.
const FILE: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// `net.ipv4.conf.all.route_localnet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Localnet {
    /// It drops them, as it does by default.
    Kept,
    /// It routes them.
    Routed,
}

/// Reads it.
pub(super) fn get() -> Result<Localnet> {
    let found = fs::read_to_string(FILE).with_context(|| format!("read {FILE}"))?;
    Ok(if found.trim() == "0" { Localnet::Kept } else { Localnet::Routed })
}

/// Writes it if it differs.
pub(super) fn set(localnet: Localnet) -> Result<()> {
    let value = match localnet {
        Localnet::Kept => "0",
        Localnet::Routed => "1",
    };
    let found = fs::read_to_string(FILE).with_context(|| format!("read {FILE}"))?;
    if found.trim() != value {
        fs::write(FILE, value).with_context(|| format!("write {FILE}"))?;
        info!(file = FILE, was = found.trim(), now = value, "changed how loopback addresses are routed");
    }
    Ok(())
}

//! What kube-proxy leaves in a node's kernel, whichever mode it ran in, and how it goes while connections live on.
//!
//! ```text
//!   iptables-save ──▶ chains KUBE-*, jumps to them ──▶ iptables-restore      iptables
//!   nf_tables ──────▶ tables kube-proxy ─────────────▶ one transaction       nft
//!   ip_vs, ip_set ──▶ virtual servers, device, sets ─▶ what is idle, at once  ipvs
//! ```
//!
//! A NAT rule is asked for the first packet of a connection only, and connection tracking is left alone: so a connection that was
//! made by kube-proxy's rules goes on without them. New ones need rules of somebody else's, which must be there before.
//!
//! IPVS is asked for every packet, so its virtual servers stay as long as they carry connections. Nothing of others is touched: what
//! is found is what bears kube-proxy's names, what only leads there, and the virtual servers on the addresses and ports that stand
//! under those names.

mod iptables;
mod ipvs;
mod nft;
mod serving;
#[cfg(test)]
mod testing;

use std::net::IpAddr;

use anyhow::Result;
use serde::Serialize;
use tracing::info;

pub use serving::{Outcome, Served, Serving, To, Way};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

/// Something of kube-proxy's, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Which part of the kernel, by the name of the tool that shows it: `iptables-nft nat`, `nf_tables`.
    pub place: String,
    /// Whose packets it concerns; `None` for both families'.
    pub family: Option<Family>,
    /// A rule, a chain, a table, a set, a device; or many of one kind, `chain KUBE-SEP-*`.
    pub what: String,
    /// How many.
    pub count: usize,
}

/// Everything of kube-proxy's in a network namespace: that of the calling thread.
#[derive(Debug)]
pub struct Leftovers {
    iptables: Vec<iptables::Removal>,
    nft: nft::Tables,
    ipvs: ipvs::Leftovers,
}

// === impl Leftovers ===

impl Leftovers {
    /// Looks for it. Blocks; changes nothing.
    ///
    /// # Errors
    /// When some part of the kernel cannot be asked. What is not installed or not loaded holds nothing.
    pub fn find() -> Result<Self> {
        Ok(Self { iptables: iptables::Removal::find()?, nft: nft::Tables::find()?, ipvs: ipvs::Leftovers::find()? })
    }

    /// Nothing is there, or only what stays.
    pub fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// What will be removed.
    pub fn items(&self) -> Vec<Item> {
        let iptables = self.iptables.iter().flat_map(iptables::Removal::items);
        iptables.chain(self.nft.items()).chain(self.ipvs.items()).collect()
    }

    /// What stays and why, and what else somebody should know before.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.iptables.iter().flat_map(|removal| removal.notes.clone()).collect();
        if self.iptables.is_empty() {
            notes.push("no iptables is installed here: rules that were made with it are not looked for".to_owned());
        }
        notes.extend(self.ipvs.notes());
        notes
    }

    /// Removes it. Blocks. Returns the items that stay after all, because rules of others use them.
    ///
    /// # Errors
    /// The first refusal. Nothing of the table that was refused is gone; it can be called again.
    pub fn remove(&self) -> Result<Vec<Item>> {
        for removal in &self.iptables {
            removal.remove()?;
        }
        self.nft.remove()?;
        // Sets that rules refer to cannot be destroyed.
        let used = self.ipvs.remove()?;
        info!(kinds = self.items().len() - used.len(), "removed what kube-proxy has left");
        Ok(used)
    }
}

// === impl Family ===

impl Family {
    /// Both families.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn of_nft(self) -> netlink::nft::TableFamily {
        match self {
            Self::V4 => netlink::nft::TableFamily::Ip,
            Self::V6 => netlink::nft::TableFamily::Ip6,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        })
    }
}

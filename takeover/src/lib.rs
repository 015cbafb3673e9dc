//! What kube-proxy leaves in a node's kernel, whichever mode it ran in, and how it goes while connections live on.
//!
//! ```text
//!   iptables-save ──▶ chains KUBE-*, jumps to them ──▶ iptables-restore      iptables
//!   nf_tables ──────▶ tables kube-proxy ─────────────▶ one transaction       nft
//! ```
//!
//! A NAT rule is asked for the first packet of a connection only, and connection tracking is left alone: so a connection that was
//! made by kube-proxy's rules goes on without them. New ones need rules of somebody else's, which must be there before.
//!
//! Of its IPVS mode only the iptables chains go; the rest is pointed out. Nothing of others is touched: what is found is what
//! bears kube-proxy's names, and what only leads there.

mod iptables;
mod ipvs;
mod nft;
#[cfg(test)]
mod testing;

use anyhow::Result;
use serde::Serialize;
use tracing::info;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    /// Whose packets it concerns.
    pub family: Family,
    /// A rule, a chain or a table; or many chains of one kind, `chain KUBE-SEP-*`.
    pub what: String,
    /// How many.
    pub count: usize,
}

/// Everything of kube-proxy's in a network namespace: that of the calling thread.
#[derive(Debug)]
pub struct Leftovers {
    iptables: Vec<iptables::Removal>,
    nft: nft::Tables,
    /// What to say about the IPVS mode.
    ipvs: Option<String>,
}

// === impl Leftovers ===

impl Leftovers {
    /// Looks for it. Blocks; changes nothing.
    ///
    /// # Errors
    /// When some part of the kernel cannot be asked. What is not installed or not loaded holds nothing.
    pub fn find() -> Result<Self> {
        Ok(Self { iptables: iptables::Removal::find()?, nft: nft::Tables::find()?, ipvs: ipvs::note()? })
    }

    /// Nothing is there, or only what stays.
    pub fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// What will be removed.
    pub fn items(&self) -> Vec<Item> {
        let iptables = self.iptables.iter().flat_map(iptables::Removal::items);
        iptables.chain(self.nft.items()).collect()
    }

    /// What stays and why, and what else somebody should know before.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.iptables.iter().flat_map(|removal| removal.notes.clone()).collect();
        if self.iptables.is_empty() {
            notes.push(
                "no iptables is installed here: rules that were made with it are not looked for".to_owned(),
            );
        }
        notes.extend(self.ipvs.clone());
        notes
    }

    /// Removes it. Blocks.
    ///
    /// # Errors
    /// The first refusal. Nothing of the table that was refused is gone; it can be called again.
    pub fn remove(&self) -> Result<()> {
        for removal in &self.iptables {
            removal.remove()?;
        }
        self.nft.remove()?;
        info!(kinds = self.items().len(), "removed what kube-proxy has left");
        Ok(())
    }
}

// === impl Family ===

impl Family {
    /// Both families.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn of_nft(self) -> netlink::nft::Family {
        match self {
            Self::V4 => netlink::nft::Family::Ip,
            Self::V6 => netlink::nft::Family::Ip6,
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
